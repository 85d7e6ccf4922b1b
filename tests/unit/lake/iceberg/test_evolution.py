"""Columns keep their fields of the Iceberg table, through every change and whoever makes it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, StringType

from faults.scenarios import tier
from streamhouse_spark.errors import CommitConflictError, CorruptDataError, LakeMismatchError
from streamhouse_spark.lake.column_map import COLUMNS_PROPERTY, ColumnMap, LakeField
from streamhouse_spark.lake.iceberg.evolution import iceberg_columns
from streamhouse_spark.lake.iceberg.maintenance import compaction as iceberg_maintain
from streamhouse_spark.lake.model.values import LakeSplit
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.warehouse.warehouse import Warehouse

NAME = "sales.orders"


@pytest.fixture
def table(wh):
    return wh.create_table(NAME, "id bigint, a string, b string, n int", buckets=2, properties={"bucket.key": "id"})


def lake_of(table):
    table.refresh()
    return table.open_lake().place.require()


def fields_of(table):
    return {f.name: f.field_id for f in lake_of(table).schema().fields}


def map_of(table):
    return ColumnMap.from_text(lake_of(table).properties[COLUMNS_PROPERTY], table.uuid, where="here")


def forget_the_map(table):
    """As tables were tiered before there were maps."""
    with lake_of(table).transaction() as transaction:
        transaction.remove_properties(COLUMNS_PROPERTY)


def rows_of(found: pa.Table) -> list[tuple]:
    return sorted(tuple(row.values()) for row in found.to_pylist())


class TestMaps:
    def test_a_new_table_has_one_and_it_changes_with_the_schema(self, table):
        table.append([{"id": 1, "a": "a", "b": "b", "n": 1}])
        tier(table)
        fields = '{"1":[1,"id"],"2":[2,"a"],"3":[3,"b"],"4":[4,"n"]}'
        expected = f'{{"table":"{table.uuid}","schema":1,"fields":{fields}}}'
        assert lake_of(table).properties["streamhouse.columns"] == expected, "what other versions read"
        table.alter(rename_columns={"a": "b", "b": "c"}, drop_columns=["n"], add_columns="a int")
        tier(table)
        assert fields_of(table) == {"id": 1, "b": 2, "c": 3, "a": 5}
        found = map_of(table)
        assert found.schema_id == 2
        assert {i: (f.id, f.name) for i, f in found.fields.items()} == {
            1: (1, "id"), 2: (2, "b"), 3: (3, "c"), 4: (4, "n"), 5: (5, "a"),
        }, "a column that was dropped stays known, for older states"  # fmt: skip

    def test_a_lake_that_begins_after_columns_were_renamed_has_one_too(self, table):
        table.alter(rename_columns={"a": "b", "b": "a"}, drop_columns=["n"])
        table.append([{"id": 1, "a": "is a", "b": "is b"}])
        tier(table)
        assert rows_of(table.lake.to_arrow()) == [(1, "is b", "is a")]
        table.rename_column("a", "c")
        assert rows_of(table.lake.to_arrow(columns=["b", "c"])) == [("is b", "is a")]

    def test_a_type_that_the_lake_does_not_tell_apart_changes_the_map_alone(self, wh):
        table = wh.create_table("sales.small", "n tinyint")
        table.append([{"n": 1}])
        tier(table)
        table.widen_column("n", "int")
        tier(table)
        assert (map_of(table).schema_id, lake_of(table).schema().schema_id) == (2, 0)
        table.append([{"n": 2**30}])
        tier(table)
        assert rows_of(table.lake.to_arrow()) == [(1,), (2**30,)]

    def test_a_map_counts_for_its_table_alone(self, wh, table):
        """Another table that has the lake table later begins with the names that it has then."""
        table.append([{"id": 1, "a": "x", "b": "y"}])
        tier(table)
        theirs = {i: LakeField(5 - i, "abn"[i % 3]) for i in range(1, 5)}
        with lake_of(table).transaction() as transaction:
            transaction.set_properties({COLUMNS_PROPERTY: ColumnMap(theirs, 9).to_text("another")})
        assert rows_of(table.lake.to_arrow()) == [(1, "x", "y", None)]
        table.rename_column("a", "c")
        tier(table)
        assert (map_of(table).schema_id, map_of(table).fields[2]) == (2, LakeField(2, "c"))

    def test_a_damaged_map_is_said(self, table):
        tier(table)
        table.append([{"id": 1}])
        tier(table)
        with lake_of(table).transaction() as transaction:
            transaction.set_properties({COLUMNS_PROPERTY: f'{{"table":"{table.uuid}","schema":1}}'})
        for read in (table.lake.to_arrow, lambda: tier(table)):
            with pytest.raises(CorruptDataError, match=r"streamhouse.columns is .* no map of columns"):
                read()


class TestWithoutAMap:
    """Lake tables from before there were maps: columns could only be added then."""

    def test_columns_are_the_fields_with_their_first_names(self, table):
        table.append([{"id": 1, "a": "a1", "b": "b1", "n": 1}])
        tier(table)
        forget_the_map(table)
        table.add_columns("note string")
        tier(table)
        table.append([{"id": 2, "a": "a2", "note": "x"}])
        tier(table)
        forget_the_map(table)
        table.alter(rename_columns={"a": "b", "b": "a", "note": "n"}, drop_columns=["n"])
        table.add_columns("note int")
        expected = [(1, "a1", "b1", None, None), (2, "a2", None, "x", None)]
        for _ in range(2):
            assert sorted(table.lake.to_arrow().to_pylist(), key=lambda r: r["id"]) == [
                dict(zip(("id", "b", "a", "n", "note"), row, strict=True)) for row in expected
            ]
            tier(table)
        assert fields_of(table) == {"id": 1, "b": 2, "a": 3, "n": 5, "note": 6}
        assert map_of(table).schema_id == table.state.schema_id

    def test_nothing_is_written_while_nothing_changes(self, table):
        table.append([{"id": 1}])
        tier(table)
        forget_the_map(table)
        before = lake_of(table).metadata_location
        tier(table)
        assert lake_of(table).metadata_location == before
        assert iceberg_columns(lake_of(table).metadata, table.open_lake().place.spec).schema_id is None

    def test_a_column_that_came_back_under_its_name_is_another(self, table):
        table.append([{"id": 1, "a": "old"}])
        tier(table)
        forget_the_map(table)
        table.drop_column("a")
        table.add_columns("a string")
        assert table.lake.to_arrow(columns=["a"])["a"].to_pylist() == [None]
        tier(table)
        assert table.lake.to_arrow(columns=["a"])["a"].to_pylist() == [None]


class TestOthers:
    def test_a_rename_in_the_lake_is_told_and_can_be_undone_or_followed(self, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        with lake_of(table).update_schema() as update:
            update.rename_column("a", "z")
        assert table.to_arrow(columns=["a"])["a"].to_pylist() == ["x"], "reads go by the id"
        table.append([{"id": 2, "a": "y"}])
        with pytest.raises(
            LakeMismatchError, match=r"column 'a' \(field 2\) was renamed to 'z' in the lake by another engine; rename"
        ):
            tier(table)
        table.rename_column("a", "z")
        tier(table)
        assert sorted(table.lake.to_arrow(columns=["z"])["z"].to_pylist()) == ["x", "y"]

    def test_a_column_dropped_in_the_lake_is_told(self, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        with lake_of(table).update_schema() as update:
            update.delete_column("a")
        table.append([{"id": 2}])
        with pytest.raises(LakeMismatchError, match=r"column 'a' \(field 2\) was dropped in the lake by another"):
            tier(table)
        table.drop_column("a")
        tier(table)
        assert fields_of(table) == {"id": 1, "b": 3, "n": 4}

    def test_a_name_that_another_engine_took_is_told(self, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        with lake_of(table).update_schema() as update:
            update.add_column("c", StringType())
        table.rename_column("a", "c")
        with pytest.raises(LakeMismatchError, match="'c' is there twice, another engine added one"):
            tier(table)

    def test_a_column_that_another_engine_added_first_becomes_the_tables(self, table):
        table.append([{"id": 1}])
        tier(table)
        with lake_of(table).update_schema() as update:
            update.add_column("more", LongType())
        table.add_columns("more bigint")
        tier(table)
        assert map_of(table).fields[5] == LakeField(5, "more")

    def test_a_sort_order_by_a_dropped_column_is_told(self, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        with lake_of(table).update_sort_order() as update:
            update.asc("a", IdentityTransform())
        table.drop_column("b")
        tier(table)
        table.drop_column("a")
        with pytest.raises(LakeMismatchError, match="column 'a' was dropped here, and is in the sort order"):
            tier(table)


class TestRaces:
    def test_a_process_of_older_columns_leaves_the_lake_alone(self, table, other_process, monkeypatch):
        monkeypatch.setattr(iceberg_maintain, "COMPACT_FILES_MIN", 2)
        for number in range(3):
            table.append([{"id": 2 * number, "a": f"a{number}"}])
            tier(table)
        old = other_process().table(NAME)
        stale = old.open_lake()
        job = TieringJob(old.log, stale, world=old.world)
        table.alter(rename_columns={"a": "c"}, drop_columns=["b"], add_columns="a int")
        table.append([{"id": 1, "c": "x", "a": 7}])
        tier(table)
        before = fields_of(table)
        with pytest.raises(CommitConflictError, match=r"schema 1 of sales\.orders is older"):
            stale.create_or_evolve()
        for work in (stale.compact, stale.write_context):
            with pytest.raises(CommitConflictError, match="try again"):
                work()
        table.append([{"id": 3, "c": "y", "a": 8}])
        job.run(run_tasks_locally(old.storage, old.settings, old.world))
        assert fields_of(table) == before
        found = table.lake.to_arrow(columns=["c", "a"])
        assert rows_of(found.filter(pa.compute.is_valid(found["a"]))) == [("x", 7), ("y", 8)]
        assert table.open_lake().compact().files_removed > 0
        assert rows_of(table.lake.to_arrow(columns=["id", "c"])) == [
            (0, "a0"),
            (1, "x"),
            (2, "a1"),
            (3, "y"),
            (4, "a2"),
        ]

    def test_compaction_brings_the_columns_up_first(self, table, monkeypatch):
        monkeypatch.setattr(iceberg_maintain, "COMPACT_FILES_MIN", 2)
        for number in range(3):
            table.append([{"id": 0, "a": f"a{number}", "n": number}])
            tier(table)
        table.alter(rename_columns={"a": "n", "n": "a"}, widen_columns={"n": "bigint"})
        lake = table.open_lake()
        assert lake.compact().files_removed == 3
        assert rows_of(table.lake.to_arrow(columns=["n", "a"])) == [(f"a{i}", i) for i in range(3)]
        assert map_of(table).schema_id == 2


def test_a_file_without_field_ids_is_refused_where_names_do_not_tell(warehouse_path, tmp_path):
    table = Warehouse(warehouse_path).create_table(NAME, "id bigint, a string")
    table.append([{"id": 1, "a": "x"}])
    tier(table)
    path = str(tmp_path / "theirs.parquet")
    pq.write_table(pa.Table.from_pylist([{"id": 2, "a": "y"}], schema=table.schema), path)
    table.rename_column("a", "c")
    lake = table.open_lake()
    projection = lake.plan_read(schema=table.state.schema).projection
    with pytest.raises(LakeMismatchError, match="by its name alone column 'c' cannot be told"):
        list(lake.read_split(LakeSplit(path, 1, 1), projection))
    found = lake.read_split(LakeSplit(path, 1, 1), lake.plan_read(columns=["id"], schema=table.state.schema).projection)
    assert [row for batch in found for row in batch.to_pylist()] == [{"id": 2}]
