"""DuckDB's Iceberg extension and pyiceberg alone read the lake right, knowing nothing of us."""

from __future__ import annotations

import datetime as dt

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.table import StaticTable

from interop.histories import HISTORIES
from interop.lake_cases import EVENTS, EVERY_TYPE, by_bucket, event_rows, every_type_rows, lake_of, sorted_rows, tier
from kit.duck import connect_duckdb
from kit.lake_rows import lake_rows
from kit.tables import tier as tier_table
from streamhouse_spark import Warehouse
from streamhouse_spark.lake.parquet.clustering import Clustering, parse_sort_order
from streamhouse_spark.storage.local import LocalStorage
from unit.lake.filters_of_reads import filter_of


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = connect_duckdb()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _in_duckdb(duck, path: str, what: str = "*", where: str = "true") -> pa.Table:
    return duck.execute(f"SELECT {what} FROM iceberg_scan('{path}') WHERE {where}").arrow().read_all()


def _in_pyiceberg(path: str) -> pa.Table:
    return StaticTable.from_metadata(path).scan().to_arrow()


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path / "wh"))


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "wh/lake/sales/orders")


def test_duckdb_and_pyiceberg_read_values_of_every_type(duck, storage, path):
    lake = lake_of(storage, EVERY_TYPE, bucket_key="id", num_buckets=3)
    rows = pa.concat_tables([every_type_rows(40), every_type_rows(40, seed=1)])
    tier(lake, by_bucket(rows.slice(0, 40), "id", 3))
    tier(lake, by_bucket(rows.slice(40), "id", 3))
    for read in (_in_duckdb(duck, path), _in_pyiceberg(path)):
        columns = [_as_in_table(read[field.name], field.type) for field in EVERY_TYPE.arrow]
        assert sorted_rows(pa.Table.from_arrays(columns, schema=EVERY_TYPE.arrow)) == sorted_rows(rows)


def _as_in_table(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.Array:
    return pa.array(column.to_pylist(), wanted)


@pytest.mark.parametrize("null_keys", [False, True])
def test_duckdb_and_pyiceberg_read_partitions_and_buckets(duck, storage, path, null_keys):
    lake = lake_of(storage, EVENTS, partition_by=["day", "region"], bucket_key="id", num_buckets=4)
    rows = event_rows(200, null_keys=null_keys)
    tier(lake, by_bucket(rows, "id", 4))
    for read in (_in_duckdb(duck, path), _in_pyiceberg(path)):
        assert sorted_rows(read.select(EVENTS.names).cast(EVENTS.arrow)) == sorted_rows(rows)
    day = dt.date(2026, 1, 2)
    where = f"day = DATE '{day}' AND region = 'us/ca'"
    expected = rows.filter((pc.field("day") == day) & (pc.field("region") == "us/ca"))
    assert sorted(_in_duckdb(duck, path, "id", where)["id"].to_pylist()) == sorted(expected["id"].to_pylist())
    one = rows["id"][7].as_py()
    assert _in_duckdb(duck, path, "count(*) AS n", f"id = {one}")["n"].to_pylist() == [1]
    assert _in_duckdb(duck, path, "sum(amount) AS s")["s"].to_pylist() == [pc.sum(rows["amount"]).as_py()]


def test_after_compaction_expiry_and_schema_change(duck, storage, path):
    lake = lake_of(storage, EVENTS, partition_by=["day"], bucket_key="id", num_buckets=2)
    rounds = [event_rows(30, seed=i) for i in range(6)]
    for rows in rounds:
        tier(lake, by_bucket(rows, "id", 2))
    assert lake.compact().files_removed
    lake.expire(keep_last=1, keep_ms=-60_000)
    rows = pa.concat_tables(rounds)
    for read in (_in_duckdb(duck, path), _in_pyiceberg(path)):
        assert sorted_rows(read.select(EVENTS.names).cast(EVENTS.arrow)) == sorted_rows(rows)


def test_rows_that_were_laid_out_by_columns(duck, storage, path):
    lake = lake_of(storage, EVENTS, partition_by=["day"], bucket_key="id", num_buckets=2)
    rounds = [event_rows(300, seed=i) for i in range(4)]
    for rows in rounds:
        tier(lake, by_bucket(rows, "id", 2))
    order = parse_sort_order("zorder(amount, id), region", EVENTS)
    how = Clustering(order, order.fingerprint(EVENTS), file_bytes=2000)
    files = {split.location for split in lake.plan_read().splits}
    report = lake.cluster(how, files=files)
    assert (report.files_removed, report.rows) == (len(files), 1200)
    rows = pa.concat_tables(rounds)
    for read in (_in_duckdb(duck, path), _in_pyiceberg(path)):
        assert sorted_rows(read.select(EVENTS.names).cast(EVENTS.arrow)) == sorted_rows(rows)
    least = pc.quantile(rows["id"], 0.9)[0].as_py()
    expected = sorted(i for i in rows["id"].to_pylist() if i is not None and i > least)
    assert sorted(_in_duckdb(duck, path, "id", f"id > {least}")["id"].to_pylist()) == expected


def test_duckdb_lists_and_reads_each_snapshot(duck, storage, path):
    lake = lake_of(storage, EVENTS)
    ids = [tier(lake, event_rows(5, seed=i)).id for i in range(3)]
    listed = duck.execute(f"SELECT snapshot_id FROM iceberg_snapshots('{path}') ORDER BY sequence_number").fetchall()
    assert [row[0] for row in listed] == ids
    first = duck.execute(f"SELECT count(*) FROM iceberg_scan('{path}', snapshot_from_id = {ids[0]})").fetchone()
    assert first == (5,)


@pytest.mark.parametrize("name", EVERY_TYPE.names[:14])
def test_no_reader_prunes_a_row_that_matches(duck, storage, path, name):
    """Bounds in the metadata are right for each type: filters find exactly the rows that have the value."""
    lake = lake_of(storage, EVERY_TYPE)
    rounds = [every_type_rows(12, seed=i) for i in range(3)]
    for rows in rounds:
        tier(lake, rows)
    rows = pa.concat_tables(rounds)
    alone = StaticTable.from_metadata(path)
    values = sorted(set(rows[name].to_pylist()) - {None}, key=repr)
    for value in [values[0], values[len(values) // 2], values[-1]]:
        scalar = pa.scalar(value, EVERY_TYPE.arrow.field(name).type)
        expected = pc.sum(pc.equal(rows[name], scalar)).as_py()
        plan = lake.plan_read(node=filter_of(EVERY_TYPE, (name, "=", value)))
        ours = lake_rows(lake, plan, filter=pc.field(name) == scalar)
        assert ours.num_rows == expected, value
        if name != "a_float":  # pyiceberg compares 32-bit floats as 64-bit ones
            assert alone.scan(row_filter=EqualTo(name, value)).to_arrow().num_rows == expected, value
        found = duck.execute(f"SELECT count(*) FROM iceberg_scan('{path}') WHERE {name} = ?", [value]).fetchone()
        assert name == "a_float" or found == (expected,), value
    nulls = rows[name].null_count
    assert len(alone.scan(row_filter=IsNull(name)).to_arrow()) == nulls


@pytest.mark.parametrize("name", ["note", "größe `x` '$\"", "a,b"])
def test_a_column_added_between_rounds_is_null_in_older_files(duck, storage, path, name):
    """Files from before have no such column: it is null in them, in every engine."""
    table = Warehouse(storage.url).create_table("sales.orders", "id bigint, day date", partition_by=["day"], buckets=2)
    day = dt.date(2026, 1, 1)
    table.append([{"id": 1, "day": day}])
    tier_table(table)
    quoted = name.replace("`", "``")
    table.alter(add_columns=f"`{quoted}` string comment 'why', s struct<x:int>", comments={"id": "the key"})
    table.append([{"id": 2, "day": day, name: "b", "s": {"x": 1}}, {"id": 3, "day": None}])
    tier_table(table)
    expected = [
        {"id": 1, "day": day, name: None, "s": None},
        {"id": 2, "day": day, name: "b", "s": {"x": 1}},
        {"id": 3, "day": None, name: None, "s": None},
    ]
    assert sorted_rows(table.lake.to_arrow()) == expected
    for read in (_in_duckdb(duck, path), _in_pyiceberg(path)):
        assert sorted_rows(read) == expected
    escaped = name.replace('"', '""')
    assert _in_duckdb(duck, path, "id", f'"{escaped}" IS NOT NULL').to_pylist() == [{"id": 2}]
    assert StaticTable.from_metadata(path).schema().find_field("id").doc == "the key"


@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "keyed"])
def test_columns_that_were_renamed_dropped_widened_and_came_back(duck, tmp_path, own_cache, key):
    table = Warehouse(str(tmp_path / "wh")).create_table(
        "sales.orders",
        "id int not null, a string, b string, n int, f float, d decimal(5,2), gone string",
        primary_key=key,
    )
    write = table.upsert if key else table.append
    write([{"id": i, "a": f"a{i}", "b": f"b{i}", "n": i, "f": i / 2, "d": i, "gone": "x"} for i in range(3)])
    tier_table(table)
    if key:
        table.delete([0])  # deletes of rows in files of the older columns
    table.alter(
        rename_columns={"a": "b", "b": "c", "id": "key"},
        drop_columns=["gone"],
        widen_columns={"n": "bigint", "f": "double", "d": "decimal(20,2)"},
        add_columns="gone int, a string",
    )
    write([{"key": 9, "b": "a9", "c": "b9", "n": 2**40, "f": 1e300, "d": 10**15, "gone": 9, "a": "new"}])
    tier_table(table)
    path = str(tmp_path / "wh/lake/sales/orders")
    expected = sorted_rows(table.to_arrow())
    assert len(expected) == (3 if key else 4)
    for found in (_in_duckdb(duck, path), _in_pyiceberg(path)):
        assert sorted_rows(found.select(table.schema.names).cast(table.schema)) == expected
    for where, keys in (
        ("n >= 2", [2, 9]),
        ("n < 2", [1] if key else [0, 1]),
        ("n = 1099511627776", [9]),
        ("f > 0.75", [2, 9]),
        ("d > 1.50", [2, 9]),
        ("gone IS NULL", [1, 2] if key else [0, 1, 2]),
        ("b = 'a1'", [1]),
        ("c = 'a1'", []),
    ):
        assert sorted(_in_duckdb(duck, path, "key", where)["key"].to_pylist()) == keys, where
        scan = StaticTable.from_metadata(path).scan(row_filter=where, selected_fields=("key",))
        assert sorted(scan.to_arrow()["key"].to_pylist()) == keys, where


@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "keyed"])
def test_duckdb_and_pyiceberg_read_columns_that_changed_inside(duck, tmp_path, own_cache, key):
    table = Warehouse(str(tmp_path / "wh")).create_table(
        "sales.orders",
        "id int not null, s struct<a:int,gone:string,t:struct<f:float>>, items array<struct<x:int,y:string>>, "
        "m map<string,struct<v:int>>",
        primary_key=key,
    )
    write = table.upsert if key else table.append
    old = {"s": {"a": 1, "gone": "g", "t": {"f": 0.5}}, "items": [{"x": 1, "y": "y"}, None], "m": {"k": {"v": 1}}}
    write([{"id": 1, **old}, {"id": 2, "s": None, "items": [], "m": {"k": None}}, {"id": 3, **old}])
    tier_table(table)
    if key:
        table.delete([3])  # deletes of rows in files of the older fields
    table.alter(
        rename_columns={"s.a": "b", "items.element.x": "y", "items.element.y": "x"},
        drop_columns=["s.gone"],
        widen_columns={"s.a": "bigint", "s.t.f": "double", "m.value.v": "bigint"},
        add_columns="s.gone int, s.t.n array<int>, m.value.w string, items.element.z struct<u:date>",
    )
    new = {"s": {"b": 2**40, "t": {"f": 1e300, "n": [1]}, "gone": 9}, "items": [{"y": 5, "x": "x", "z": {"u": None}}]}
    write([{"id": 9, **new, "m": {"k": {"v": 2**40, "w": "w"}}}])
    tier_table(table)
    path = str(tmp_path / "wh/lake/sales/orders")
    expected = sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])
    assert expected[0] == {
        "id": 1,
        "s": {"b": 1, "t": {"f": 0.5, "n": None}, "gone": None},
        "items": [{"y": 1, "x": "y", "z": None}, None],
        "m": [("k", {"v": 1, "w": None})],
    }
    assert len(expected) == (3 if key else 4)
    for found in (_in_duckdb(duck, path), _in_pyiceberg(path)):
        read = found.select(table.schema.names).cast(table.schema)
        assert sorted(read.to_pylist(), key=lambda row: row["id"]) == expected
    assert _in_duckdb(duck, path, "id", "s.b > 1")["id"].to_pylist() == [9]
    assert _in_duckdb(duck, path, "id", "s.b = 1")["id"].to_pylist()[:1] == [1]


def test_duckdb_and_pyiceberg_read_no_row_of_a_dropped_partition(duck, tmp_path):
    table = Warehouse(str(tmp_path / "wh")).create_table("sales.orders", EVENTS.arrow, partition_by=["day"], buckets=2)
    rows = event_rows(60)
    table.append(rows)
    day = rows["day"].drop_null()[0].as_py()
    report = table.drop_partition({"day": day})
    table.append(event_rows(10, seed=7))
    path = str(tmp_path / "wh/lake/sales/orders")
    kept = sorted(row["id"] for row in rows.to_pylist() if row["day"] != day)
    assert report.rows == 60 - len(kept) > 0
    for read in (_in_duckdb(duck, path), _in_pyiceberg(path)):
        assert sorted(read["id"].to_pylist()) == kept
    before = [s for s in table.lake.snapshots()["snapshot_id"].to_pylist() if s != report.snapshot_id]
    assert len(StaticTable.from_metadata(path).scan(snapshot_id=before[-1]).to_arrow()) == 60, "time travel reads it"


@pytest.mark.parametrize("key", ["log", "keyed"])
def test_duckdb_and_pyiceberg_filter_files_of_all_partition_specs(duck, tmp_path, own_cache, key):
    """Each file is of the spec that it was written by, and filters by any of them find its rows."""
    for written in HISTORIES[f"{key}, partitioned anew"](tmp_path):
        expected = sorted(written.rows["id"].to_pylist())
        path = str(written.folder)
        for found in (_in_duckdb(duck, path), _in_pyiceberg(path)):
            assert sorted(found["id"].to_pylist()) == expected
        for where in ("land = 'fr'", "day = '1969-12-31'", "moment < '1970-01-01T00:00:00+00:00'"):
            kept = sorted(row["id"] for row in written.rows.to_pylist() if _holds(row, where))
            assert sorted(_in_duckdb(duck, path, "id", where)["id"].to_pylist()) == kept, where
            scan = StaticTable.from_metadata(path).scan(row_filter=where, selected_fields=("id",))
            assert sorted(scan.to_arrow()["id"].to_pylist()) == kept, where
    assert len(StaticTable.from_metadata(path).metadata.partition_specs) == 4


def _holds(row: dict, where: str) -> bool:
    name = where.split(maxsplit=1)[0]
    wanted = {"land": "fr", "day": dt.date(1969, 12, 31), "moment": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)}[name]
    return row[name] < wanted if name == "moment" else row[name] == wanted
