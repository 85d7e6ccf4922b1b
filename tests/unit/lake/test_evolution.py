"""Columns keep their fields of the lake table through every change, whoever makes it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import IdentityTransform

from kit.tables import tier
from streamhouse_spark import CommitConflictError, CorruptDataError, LakeMismatchError, Warehouse
from streamhouse_spark.lake.column_mapping import ColumnMapping, LakeField
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.lake.types import LakeSplit
from unit.lake.lake_schemas import SCHEMAS, map_of, rows_of

NAME = "sales.orders"
only_iceberg = pytest.mark.parametrize("lake", ["iceberg"], indirect=True)


@pytest.fixture(params=SCHEMAS)
def lake(request):
    return SCHEMAS[request.param]


@pytest.fixture
def table(wh, lake):
    properties = {"bucket.key": "id", "table.datalake.format": lake.format}
    return wh.create_table(NAME, "id bigint, a string, b string, n int", buckets=2, properties=properties)


def fields_of(lake, table):
    """Return the numbers of the lake table's fields, the first of which is 1."""
    return {name: number - lake.first_field + 1 for name, number in lake.fields_of(table).items()}


class TestMaps:
    def test_the_map_follows_every_schema_change(self, lake, table):
        table.append([{"id": 1, "a": "a", "b": "b", "n": 1}])
        tier(table)
        texts = {
            "iceberg": '{"1":[1,"id"],"2":[2,"a"],"3":[3,"b"],"4":[4,"n"]}',
            "paimon": '{"1":[0,"id"],"2":[1,"a"],"3":[2,"b"],"4":[3,"n"]}',
        }
        expected = f'{{"table":"{table.uuid}","schema":1,"fields":{texts[lake.format]}}}'
        assert lake.map_text(table) == expected, "what other versions read"
        table.alter(rename_columns={"a": "b", "b": "c"}, drop_columns=["n"], add_columns="a int")
        tier(table)
        assert fields_of(lake, table) == {"id": 1, "b": 2, "c": 3, "a": 5}
        columns = map_of(lake, table)
        assert columns.schema_id == 2
        assert {i: (f.id - lake.first_field + 1, f.name) for i, f in columns.fields.items()} == {
            1: (1, "id"), 2: (2, "b"), 3: (3, "c"), 4: (4, "n"), 5: (5, "a"),
        }, "a column that was dropped stays known, for older states"  # fmt: skip
        assert lake.read(table) == [(1, "a", "b", None)]
        version = lake.version(table)
        tier(table)
        assert lake.version(table) == version, "nothing is written while nothing changes"

    def test_a_lake_that_begins_after_a_rename_has_a_map(self, lake, table):
        table.alter(rename_columns={"a": "b", "b": "a"}, drop_columns=["n"])
        table.append([{"id": 1, "a": "is a", "b": "is b"}])
        tier(table)
        assert lake.read(table) == [(1, "is b", "is a")]
        table.rename_column("a", "c")
        assert rows_of(table.lake.to_arrow(columns=["b", "c"])) == [("is b", "is a")], "before the lake follows"

    @only_iceberg
    def test_widening_within_one_lake_type_changes_only_the_map(self, lake, wh):
        table = wh.create_table("sales.small", "n tinyint")
        table.append([{"n": 1}])
        tier(table)
        table.widen_column("n", "int")
        tier(table)
        assert (map_of(lake, table).schema_id, lake.lake_of(table).schema().schema_id) == (2, 0)
        table.append([{"n": 2**30}])
        tier(table)
        assert rows_of(table.lake.to_arrow()) == [(1,), (2**30,)]

    def test_a_map_of_another_table_is_ignored(self, lake, table):
        """Another table that has the lake table later begins with the names that it has then."""
        table.append([{"id": 1, "a": "x", "b": "y"}])
        tier(table)
        theirs = {i: LakeField(5 - i, "abn"[i % 3]) for i in range(1, 5)}
        lake.set_map(table, ColumnMapping(theirs, 9).to_text("another"))
        assert rows_of(table.lake.to_arrow()) == [(1, "x", "y", None)]
        table.rename_column("a", "c")
        tier(table)
        columns = map_of(lake, table)
        assert (columns.schema_id, columns.fields[2]) == (2, LakeField(lake.first_field + 1, "c"))

    def test_a_damaged_map_is_an_error(self, lake, table):
        table.append([{"id": 1}])
        tier(table)
        lake.set_map(table, f'{{"table":"{table.uuid}","schema":1}}')
        for read in (table.lake.to_arrow, lambda: tier(table)):
            with pytest.raises(CorruptDataError, match=r"in its property streamhouse.columns, expected a column map"):
                read()
        table.append([{"id": 2}])
        lake.set_map(table, '{"table":1')
        for read in (table.lake.to_arrow, lambda: tier(table)):
            with pytest.raises(CorruptDataError, match=r"in its property streamhouse.columns, expected a column map"):
                read()


class TestWithoutAMap:
    """Lake tables from before there were maps: columns could only be added then."""

    def test_columns_are_the_fields_with_their_first_names(self, lake, table):
        table.append([{"id": 1, "a": "a1", "b": "b1", "n": 1}])
        tier(table)
        lake.set_map(table, None)
        table.add_columns("note string")
        tier(table)
        table.append([{"id": 2, "a": "a2", "note": "x"}])
        tier(table)
        lake.set_map(table, None)
        table.alter(rename_columns={"a": "b", "b": "a", "note": "n"}, drop_columns=["n"])
        table.add_columns("note int")
        columns = ["id", "b", "a", "n", "note"]
        expected = [(1, "a1", "b1", None, None), (2, "a2", None, "x", None)]
        assert rows_of(table.lake.to_arrow(columns=columns)) == expected
        assert set(table.lake.to_arrow().column_names) == set(columns)
        tier(table)
        assert lake.read(table) == expected
        assert fields_of(lake, table) == {"id": 1, "b": 2, "a": 3, "n": 5, "note": 6}
        assert map_of(lake, table).schema_id == table.state.schema_id

    def test_nothing_is_written_while_nothing_changes(self, lake, table):
        table.append([{"id": 1}])
        tier(table)
        lake.set_map(table, None)
        before = lake.version(table)
        tier(table)
        assert lake.version(table) == before
        assert lake.mapped_schema(table) is None

    def test_a_column_readded_under_its_name_is_another(self, lake, table):
        table.append([{"id": 1, "a": "old"}])
        tier(table)
        lake.set_map(table, None)
        table.drop_column("a")
        table.add_columns("a string")
        assert table.lake.to_arrow(columns=["a"])["a"].to_pylist() == [None]
        tier(table)
        assert table.lake.to_arrow(columns=["a"])["a"].to_pylist() == [None]


class TestOtherEngines:
    def test_a_rename_in_the_lake_fails_the_round_until_the_table_follows(self, lake, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        lake.rename(table, "a", "z")
        assert table.to_arrow(columns=["a"])["a"].to_pylist() == ["x"], "reads go by the id"
        table.append([{"id": 2, "a": "y"}])
        renamed = rf"column 'a' \(field {lake.first_field + 1}\) was renamed to 'z' in the lake by another engine"
        with pytest.raises(LakeMismatchError, match=f"{renamed}; rename"):
            tier(table)
        table.rename_column("a", "z")
        tier(table)
        assert [row[1] for row in lake.read(table)] == ["x", "y"]

    def test_a_column_dropped_in_the_lake_fails_the_round(self, lake, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        lake.drop(table, "a")
        table.append([{"id": 2}])
        dropped = rf"column 'a' \(field {lake.first_field + 1}\) was dropped in the lake by another"
        with pytest.raises(LakeMismatchError, match=dropped):
            tier(table)
        table.drop_column("a")
        tier(table)
        assert fields_of(lake, table) == {"id": 1, "b": 3, "n": 4}

    def test_a_column_added_in_the_lake_becomes_the_tables_under_its_name(self, lake, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        lake.add_bigint(table, "c")
        table.rename_column("a", "c")
        with pytest.raises(LakeMismatchError, match="'c' is duplicated, because another engine added a column"):
            tier(table)
        table.rename_column("c", "a")
        table.add_columns("c bigint")
        tier(table)
        assert map_of(lake, table).fields[5] == LakeField(lake.first_field + 4, "c")

    @only_iceberg
    def test_dropping_a_column_of_the_sort_order_fails_the_round(self, lake, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        with lake.lake_of(table).update_sort_order() as update:
            update.asc("a", IdentityTransform())
        table.drop_column("b")
        tier(table)
        table.drop_column("a")
        with pytest.raises(LakeMismatchError, match="column 'a' was dropped from the table, but is in the sort order"):
            tier(table)


class TestRaces:
    def test_a_process_with_older_columns_leaves_the_lake_alone(self, lake, table, other_process, monkeypatch):
        monkeypatch.setattr(lake.compact_files_min, 2)
        for number in range(3):
            table.append([{"id": 2, "a": f"a{number}"}])
            tier(table)
        old = other_process().table(NAME)
        stale = old.open_lake()
        job = TieringJob(old.log, stale, world=old.world)
        table.alter(rename_columns={"a": "c"}, drop_columns=["b"], add_columns="a int")
        table.append([{"id": 1, "c": "x", "a": 7}])
        tier(table)
        before = lake.fields_of(table)
        with pytest.raises(CommitConflictError, match=r"newer than schema 1 of sales\.orders"):
            stale.create_or_evolve()
        for work in (stale.compact, stale.write_context):
            with pytest.raises(CommitConflictError, match="retry"):
                work()
        table.append([{"id": 3, "c": "y", "a": 8}])
        job.run(run_tasks_locally(old.storage, old.settings, old.world))
        assert lake.fields_of(table) == before
        table.refresh()
        assert table.open_lake().compact().files_removed > 0
        rows = [(row[0], row[1], row[3]) for row in lake.read(table)]
        assert rows == [(1, "x", 7), *((2, f"a{i}", None) for i in range(3)), (3, "y", 8)]

    def test_compaction_evolves_the_lake_first(self, lake, table, monkeypatch):
        monkeypatch.setattr(lake.compact_files_min, 2)
        for number in range(3):
            table.append([{"id": 0, "a": f"a{number}", "n": number}])
            tier(table)
        table.alter(rename_columns={"a": "n", "n": "a"}, widen_columns={"n": "bigint"})
        table.refresh()
        assert table.open_lake().compact().files_removed == 3
        assert [(row[1], row[3]) for row in lake.read(table)] == [(f"a{i}", i) for i in range(3)]
        assert map_of(lake, table).schema_id == 2


def test_a_file_without_field_ids_is_rejected_if_its_names_are_ambiguous(warehouse_path, tmp_path):
    table = Warehouse(warehouse_path).create_table(NAME, "id bigint, a string")
    table.append([{"id": 1, "a": "x"}])
    tier(table)
    path = str(tmp_path / "theirs.parquet")
    pq.write_table(pa.Table.from_pylist([{"id": 2, "a": "y"}], schema=table.schema), path)
    table.rename_column("a", "c")
    lake = table.open_lake()
    projection = lake.plan_read(schema=table.state.schema).projection
    with pytest.raises(LakeMismatchError, match="column 'c' cannot be found by name"):
        list(lake.read_split(LakeSplit(path, 1, 1), projection))
    found = lake.read_split(LakeSplit(path, 1, 1), lake.plan_read(columns=["id"], schema=table.state.schema).projection)
    assert [row for batch in found for row in batch.to_pylist()] == [{"id": 2}]
