"""``$partitions``: where the rows of each partition lie."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pytest

from streamhouse_spark.errors import InvalidNameError
from streamhouse_spark.kv import snapshots
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.log.segments.scan import read_split
from streamhouse_spark.table import partition_stats as partition_inspect
from streamhouse_spark.table.views import open_view
from streamhouse_spark.warehouse.warehouse import Warehouse

MON, TUE, WED = (dt.date(2026, 3, day) for day in (2, 3, 4))
COUNTS = ["hot_rows", "lake_rows", "lake_files", "lake_size_bytes"]


@pytest.fixture
def wh(memory, world):
    return Warehouse("wh", storage=memory, world=world)


@pytest.fixture(params=["iceberg", "paimon"])
def lake_format(request):
    return request.param


def tier(table):
    job = TieringJob(table.log, table.open_lake(), world=table.world)
    job.run(run_tasks_locally(table.storage, table.settings, table.world))


def shown(table):
    """Partition → hot rows, lake rows, lake files."""
    found = table.inspect.partitions()
    assert found.schema == open_view(table, "partitions").schema
    assert found.column_names == [*table.partition_by, *COUNTS]
    assert all((row["lake_size_bytes"] > 0) == (row["lake_files"] > 0) for row in found.to_pylist())
    keys = zip(*(found[name].to_pylist() for name in table.partition_by), strict=True)
    return dict(zip(keys, zip(*(found[name].to_pylist() for name in COUNTS[:3]), strict=True), strict=True))


def days(*given):
    return [{"id": i, "day": day, "land": land} for i, (day, land) in enumerate(given)]


def test_log_and_lake(wh, lake_format):
    properties = {"bucket.num": "2", "bucket.key": "id", "table.datalake.format": lake_format}
    columns = "id BIGINT, day DATE, land STRING"
    table = wh.create_table("t", columns, partition_by=["day", "land"], properties=properties)
    assert shown(table) == {}
    table.append(days((TUE, "de"), (TUE, "de"), (MON, "fr"), (MON, None), (None, "de")))
    assert shown(table) == {
        (MON, "fr"): (1, 0, 0), (MON, None): (1, 0, 0), (TUE, "de"): (2, 0, 0), (None, "de"): (1, 0, 0),
    }  # fmt: skip
    assert list(shown(table)) == [(MON, "fr"), (MON, None), (TUE, "de"), (None, "de")]
    tier(table)
    table.append(days((TUE, "de"), (WED, "de")))
    table.append(days((TUE, "de")))
    found = shown(table)
    assert found[TUE, "de"] in ((2, 2, 1), (2, 2, 2))
    assert (found[WED, "de"], found[None, "de"]) == ((1, 0, 0), (0, 1, 1))
    table.drop_partition({"day": TUE})
    assert {key for key in shown(table) if key[0] == TUE} == set()
    table.truncate()
    assert shown(table) == {}


def test_by_key(wh, lake_format, own_cache):
    properties = {"table.datalake.format": lake_format}
    table = wh.create_table(
        "t", "id INT, day DATE", primary_key=["id", "day"], partition_by=["day"], properties=properties
    )
    table.upsert([{"id": i, "day": day} for i in range(3) for day in (MON, TUE)])
    tier(table)
    table.delete([{"id": 0, "day": MON}, {"id": 1, "day": WED}])
    table.upsert([{"id": 7, "day": WED}])
    assert shown(table) == {(MON,): (1, 3, 1), (TUE,): (0, 3, 1), (WED,): (1, 0, 0)}


def test_rows_by_key_without_a_lake(wh, clock, monkeypatch, own_cache):
    monkeypatch.setattr(snapshots, "CHANGES_MIN", 1)
    properties = {"table.datalake.enabled": "false", "table.log.ttl": "1h"}
    table = wh.create_table(
        "t", "id INT, day DATE", primary_key=["id", "day"], partition_by=["day"], properties=properties
    )
    table.upsert([{"id": i, "day": day} for i in range(3) for day in (MON, TUE)])
    clock.advance(2 * 3_600_000)
    assert table.maintain().trimmed_to
    table.upsert([{"id": 9, "day": TUE}])
    assert shown(table) == {(MON,): (3, 0, 0), (TUE,): (4, 0, 0)}


def test_segments_of_one_partition_are_not_read(wh, monkeypatch):
    table = wh.create_table("t", "id BIGINT, day DATE, land STRING", partition_by=["day", "land"])
    for day in (MON, TUE, MON):
        table.append(days((day, "de"), (day, "de")))
    read = []

    def noting(storage, split, columns):
        read.extend(split.segments)
        return read_split(storage, split, columns)

    monkeypatch.setattr(partition_inspect, "read_split", noting)
    assert shown(table) == {(MON, "de"): (4, 0, 0), (TUE, "de"): (2, 0, 0)}
    assert read == []
    table.append(days(*((MON, str(i)) for i in range(100)), (MON, "de")))
    assert len(shown(table)) == 102, "more than a record names"
    assert shown(table)[MON, "de"] == (5, 0, 0)
    assert {segment.num_rows for segment in read} == {101}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("DECIMAL(9,2)", [decimal.Decimal("-1.50"), None]),
        ("TIMESTAMP", [dt.datetime(1969, 12, 31, 23, 59, 59, 1, dt.UTC), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
        ("TIMESTAMP_NTZ", [dt.datetime(1969, 12, 31, 23, 59, 59, 1), None]),
        ("BINARY", [b"\x00\xff", b""]),
        ("BOOLEAN", [True, False]),
        ("DOUBLE", [0.1, float("inf"), None]),
        ("SMALLINT", [-3, None]),
        ("STRING", ["ä=/%", ""]),
    ],
)
def test_a_value_is_the_same_in_record_segment_and_manifest(wh, kind, values):
    table = wh.create_table("t", f"id INT, p {kind}", partition_by=["p"])
    for _ in range(2):
        for value in values:
            table.append([{"id": 1, "p": value}])
        table.append([{"id": 2, "p": value} for value in values])
        if table.refresh().lake is None:
            tier(table)
    found = table.inspect.partitions()
    assert found.schema.field("p").type == table.schema.field("p").type
    assert dict(zip(found["p"].to_pylist(), found["hot_rows"].to_pylist(), strict=True)) == dict.fromkeys(values, 2)
    assert found["lake_rows"].to_pylist() == [2] * len(values)
    assert set(pa.table(table.to_arrow())["p"].to_pylist()) == set(values)


def test_a_table_without_partitions_has_none(wh):
    table = wh.create_table("t", "id INT")
    for ask in (table.inspect.partitions, lambda: wh.view("t$partitions")):
        with pytest.raises(
            InvalidNameError, match=r"t\$partitions: the table is not partitioned by columns; \$buckets says where"
        ):
            ask()
    with pytest.raises(InvalidNameError) as error:
        open_view(table, "nothing")
    assert "$partitions" not in str(error.value)
