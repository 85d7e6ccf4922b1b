"""A lake in a catalog of pyiceberg's own, and one on S3."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from interop.lake_cases import (
    EVENTS,
    by_bucket,
    event_rows,
    lake_of,
    sorted_rows,
    tier,
    tier_through_faults,
    write_round,
)
from kit.lake_rows import lake_rows
from kit.tables import tier as tier_table
from storage.s3_proxy import Fault
from storage.s3_server import settings_for
from streamhouse_spark import CommitConflictError, OffsetRange, Warehouse
from streamhouse_spark.storage.factory import open_storage
from streamhouse_spark.storage.local import LocalStorage


@pytest.fixture(params=["outside", "inside"])
def sqlite_lake(request, tmp_path):
    """A catalog in SQLite that keeps its tables outside the warehouse, or in it."""
    place = tmp_path / ("elsewhere" if request.param == "outside" else "wh/lake")
    place.mkdir(parents=True)
    settings = {
        "lake.iceberg.catalog.type": "sql",
        "lake.iceberg.catalog.uri": f"sqlite:///{tmp_path}/catalog.db",
    }
    if request.param == "outside":
        settings["lake.iceberg.catalog.warehouse"] = str(place)
    return lake_of(
        LocalStorage(str(tmp_path / "wh")),
        EVENTS,
        partition_by=["day"],
        bucket_key="id",
        num_buckets=2,
        settings=settings,
    )


def test_a_lake_lives_in_a_catalog_in_sqlite(sqlite_lake, tmp_path):
    rounds = [event_rows(40, seed=i) for i in range(6)]
    for rows in rounds:
        tier(sqlite_lake, by_bucket(rows, "id", 2))
    everything = pa.concat_tables(rounds)
    assert sorted_rows(lake_rows(sqlite_lake, sqlite_lake.plan_read())) == sorted_rows(everything)
    alone = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db").load_table("sales.orders")
    assert sorted_rows(alone.scan().to_arrow().cast(EVENTS.arrow)) == sorted_rows(everything)
    in_order = pa.concat_tables([by_bucket(rows, "id", 2)[1] for rows in rounds])
    found = [b for _, b in sqlite_lake.read_offsets(1, OffsetRange(3, in_order.num_rows))]
    assert pa.Table.from_batches(found).to_pylist() == in_order.slice(3).to_pylist()
    assert sqlite_lake.compact().files_removed > 0
    assert sqlite_lake.expire(keep_last=1, keep_ms=-60_000).files
    assert sorted_rows(lake_rows(sqlite_lake, sqlite_lake.plan_read())) == sorted_rows(everything)
    assert sqlite_lake.prune_metadata() == []
    sqlite_lake.drop(purge=False)
    assert not sqlite_lake.exists()


def test_columns_change_in_a_catalog_in_sqlite(tmp_path):
    """Also of a table that was there before: it is adopted by the names that it has then."""
    (tmp_path / "elsewhere").mkdir()
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = load_catalog("lake", type="sql", uri=uri, warehouse=str(tmp_path / "elsewhere"))
    catalog.create_namespace("sales")
    catalog.create_table("sales.theirs", pa.schema([("b", pa.string()), ("n", pa.int32())]), properties={"a": "b"})
    settings = {f"lake.iceberg.catalog.{key}": value for key, value in (("type", "sql"), ("uri", uri))}
    settings["lake.iceberg.catalog.warehouse"] = str(tmp_path / "elsewhere")
    warehouse = Warehouse(str(tmp_path / "wh"), settings)
    for name in ("sales.theirs", "sales.ours"):
        table = warehouse.create_table(name, "a string, n int")
        table.append([{"a": "x", "n": 1}])
        table.rename_column("a", "b")
        tier_table(table)
        table.alter(rename_columns={"b": "n", "n": "b"}, widen_columns={"n": "bigint"}, add_columns="a int")
        table.append([{"n": "y", "b": 2**40, "a": 2}])
        tier_table(table)
        expected = [{"n": "x", "b": 1, "a": None}, {"n": "y", "b": 2**40, "a": 2}]
        assert sorted_rows(table.lake.to_arrow()) == expected
        assert sorted_rows(catalog.load_table(name).scan().to_arrow()) == expected


def test_the_fence_holds_in_any_catalog(sqlite_lake):
    tier(sqlite_lake, {0: event_rows(3)})
    context = sqlite_lake.write_context()
    files, new = write_round(sqlite_lake, {0: event_rows(3, seed=1)}, {0: 3})
    tier(sqlite_lake, {0: event_rows(3, seed=2)})
    with pytest.raises(CommitConflictError, match="another tiering service"):
        sqlite_lake.commit(files, expected={0: 3}, new=new, context=context)


@pytest.mark.s3
@pytest.mark.long
def test_pyiceberg_reads_a_lake_on_s3(s3_server):
    url = f"s3://{s3_server.new_bucket()}/wh"
    settings = settings_for(s3_server.endpoint)
    lake = lake_of(
        open_storage(url, settings),
        EVENTS,
        partition_by=["day", "region"],
        bucket_key="id",
        num_buckets=2,
        settings=settings,
    )
    rounds = [event_rows(30, seed=i) for i in range(5)]
    for rows in rounds:
        tier(lake, by_bucket(rows, "id", 2))
    everything = sorted_rows(pa.concat_tables(rounds))
    assert sorted_rows(lake_rows(lake, lake.plan_read())) == everything
    in_order = pa.concat_tables([by_bucket(rows, "id", 2)[0] for rows in rounds])
    found = [b for _, b in lake.read_offsets(0, OffsetRange(2, in_order.num_rows - 1))]
    assert pa.Table.from_batches(found).to_pylist() == in_order.slice(2, in_order.num_rows - 3).to_pylist()
    assert lake.compact().files_removed > 0
    assert lake.expire(keep_last=1, keep_ms=-60_000).files
    alone = StaticTable.from_metadata(f"{url}/lake/sales/orders", settings)
    assert sorted_rows(alone.scan().to_arrow().cast(EVENTS.arrow)) == everything


@pytest.mark.s3
@pytest.mark.long
@pytest.mark.parametrize("fault", [Fault.LOST_ACK, Fault.ERROR_AFTER], ids=lambda f: f.name.lower())
def test_a_round_on_s3_survives_a_fault_at_each_of_its_writes(s3_server, fault):
    assert tier_through_faults(s3_server, fault) > 4
