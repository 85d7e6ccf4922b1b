"""``$partitions``: where the rows of each partition lie."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import FileScanTask

from kit.tables import tier
from streamhouse_spark import InvalidNameError, Warehouse
from streamhouse_spark.kv import kv_snapshots
from streamhouse_spark.lake.iceberg.scan import _num_deleted
from streamhouse_spark.lake.iceberg.schema import PATH_ID
from streamhouse_spark.log.segments.scan import read_split
from streamhouse_spark.table import partitions_table as partition_inspect
from streamhouse_spark.table.system_views import open_view

MON, TUE, WED = (dt.date(2026, 3, day) for day in (2, 3, 4))
COUNTS = ["hot_rows", "lake_rows", "lake_files", "lake_size_bytes"]


@pytest.fixture
def wh(memory, world):
    return Warehouse("wh", storage=memory, world=world)


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


def test_deleted_rows_of_files_from_before_the_partitioning_was_changed(wh):
    table = wh.create_table("t", "id BIGINT, day DATE, land STRING", partition_by=["day"])
    table.append(days((MON, "de"), (MON, "fr"), (TUE, "fr")))
    tier(table)
    table.delete(where=[("land", "=", "de")])
    tier(table)
    table.set_partitioning(["land"])
    table.append(days((MON, "it")))
    tier(table)
    assert {key: found[1] for key, found in shown(table).items()} == {("fr",): 2, ("it",): 1}


def test_partitions_show_rows_in_log_and_lake(wh, lake_format):
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


def test_deleted_rows_are_not_counted(wh):
    table = wh.create_table("t", "id BIGINT, day DATE, land STRING", partition_by=["day", "land"])
    table.append(days((MON, "de"), (MON, "de"), (MON, "de"), (TUE, "de"), (TUE, "de")))
    tier(table)
    table.delete(where=[("id", "=", 1)])
    assert shown(table) == {(MON, "de"): (0, None, 1), (TUE, "de"): (0, 2, 1)}, "only a read can tell"
    tier(table)
    assert shown(table) == {(MON, "de"): (0, 2, 1), (TUE, "de"): (0, 2, 1)}
    table.delete(where=[("id", "in", [0, 4])])
    table.append(days((MON, "de")))
    tier(table)
    table.delete(where=[("id", "=", 3)])
    tier(table)
    assert sum(rows for _, rows, _ in shown(table).values()) == table.to_arrow().num_rows == 2
    assert shown(table)[TUE, "de"] == (0, 0, 1)


def test_what_another_engine_deleted_is_counted_or_not_known():
    own, shared = (delete_file(2, "a"), delete_file(1, "b")), (delete_file(1, None),)
    assert [_num_deleted(FileScanTask(data_file(), set(found))) for found in ((), own[:1], own, shared)] == [
        0, 2, None, None,
    ]  # fmt: skip


def data_file():
    return DataFile.from_args(content=DataFileContent.DATA, file_path="x/f.parquet", record_count=9)


def delete_file(count, name):
    """A file of deleted positions: of that data file alone, with a name, or of several."""
    low, high = (b"x/f.parquet", b"x/f.parquet") if name else (b"x/e.parquet", b"x/f.parquet")
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"x/deletes-{name}.parquet",
        record_count=count,
        lower_bounds={PATH_ID: low},
        upper_bounds={PATH_ID: high},
    )


def test_partitions_of_keyed_tables_show_their_rows(wh, lake_format, own_cache):
    properties = {"table.datalake.format": lake_format}
    table = wh.create_table(
        "t", "id INT, day DATE", primary_key=["id", "day"], partition_by=["day"], properties=properties
    )
    table.upsert([{"id": i, "day": day} for i in range(3) for day in (MON, TUE)])
    tier(table)
    table.delete([{"id": 0, "day": MON}, {"id": 1, "day": WED}])
    table.upsert([{"id": 7, "day": WED}])
    assert shown(table) == {(MON,): (1, 3, 1), (TUE,): (0, 3, 1), (WED,): (1, 0, 0)}
    tier(table)
    merged = lake_format == "paimon"  # a file that deletes rows of another: only a read can tell
    assert shown(table)[(MON,)] == ((0, None, 2) if merged else (0, 2, 1))
    assert shown(table)[(WED,)] == (0, 1, 1)


def test_partitions_of_keyed_tables_without_a_lake_show_their_rows(wh, clock, monkeypatch, own_cache):
    monkeypatch.setattr(kv_snapshots, "CHANGES_MIN", 1)
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
            InvalidNameError, match=r"t\$partitions: the table is not partitioned by columns; use \$buckets"
        ):
            ask()
    with pytest.raises(InvalidNameError) as error:
        open_view(table, "nothing")
    assert "$partitions" not in str(error.value)
