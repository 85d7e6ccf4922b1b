"""Scans of tables whose columns were renamed, dropped and widened, as Spark plans and reads them."""

from __future__ import annotations

import pytest

from streamhouse_spark import SchemaMismatchError, SnapshotExpiredError, Warehouse
from unit.datasource.catalog.filter_trees import literal
from unit.datasource.catalog.scans import tier

NAME = "sales.orders"
BIG = 2**40


@pytest.fixture
def table(warehouse_path):
    properties = {"bucket.num": "4", "bucket.key": "k", "table.statistics.columns": "*"}
    return Warehouse(warehouse_path).create_table(NAME, "k int, v int, s string", properties=properties)


def rows_of(planned) -> list[tuple]:
    return sorted(tuple(row.values()) for row in planned.rows())


def equals(column: str, value: int) -> dict:
    return {"op": "=", "children": [{"column": [column]}, literal("i", value)]}


def test_spark_reads_files_itself_only_where_names_and_types_never_moved(table, scans):
    table.append([{"k": i, "v": i, "s": f"s{i}"} for i in range(20)])
    tier(table)
    assert scans.plan(scans.load(NAME)).native
    table.alter(rename_columns={"v": "w"}, widen_columns={"v": "bigint"}, add_columns="v string")
    tier(table)
    for columns, is_native in ((["k", "s"], True), (["w"], False), (["v"], False), (["k", "v"], False)):
        planned = scans.plan(scans.load(NAME), columns)
        assert bool(planned.native) == is_native, columns
        assert len(planned.rows()) == 20
    assert rows_of(scans.plan(scans.load(NAME), ["k", "w", "v"])) == [(i, i, None) for i in range(20)]
    table.append([{"k": 99, "w": BIG, "v": "new", "s": "x"}])
    tier(table)
    assert rows_of(scans.plan(scans.load(NAME), ["w", "v"]))[-1] == (BIG, "new")


def test_an_older_commit_is_read_by_its_own_columns_and_buckets(table, scans):
    """The bucket key of now is another column of then."""
    table.append([{"k": i, "v": 100 + i, "s": "x"} for i in range(20)])
    tier(table)
    then = table.refresh().version
    table.alter(rename_columns={"k": "v", "v": "k"}, drop_columns=["s"])
    table.append([{"v": 50, "k": 150}])
    tier(table)
    old = scans.load(NAME, version=str(then))
    assert old["buckets"]["key"] == ["k"]
    assert scans.load(NAME)["buckets"]["key"] == ["v"]
    for schemes in (["file"], []):
        for i in range(20):
            planned = scans.plan(old, ["k", "v", "s"], filters=[equals("v", 100 + i)], native_schemes=schemes)
            assert (i, 100 + i, "x") in rows_of(planned)
            planned = scans.plan(old, ["k", "v"], filters=[equals("k", i)], native_schemes=schemes)
            assert (i, 100 + i) in rows_of(planned)
    assert rows_of(scans.plan(scans.load(NAME), ["v", "k"])) == [*((i, 100 + i) for i in range(20)), (50, 150)]


def test_a_snapshot_that_another_engine_expired_while_columns_moved(table, scans):
    table.append([{"k": 1, "v": 2, "s": "x"}])
    tier(table)
    loaded = scans.load(NAME)
    pinned = table.state.lake.snapshot_id
    table.alter(rename_columns={"k": "v", "v": "k"})
    table.append([{"k": 3, "v": 4, "s": "y"}])
    tier(table)
    table.open_lake().binding.load().maintenance.expire_snapshots().by_id(pinned).commit()
    with pytest.raises((SchemaMismatchError, SnapshotExpiredError), match="run the query again"):
        scans.plan(loaded)
    assert rows_of(scans.plan(scans.load(NAME), ["k", "v"])) == [(2, 1), (3, 4)]
