"""Columns keep their fields of the Paimon table, through every change and whoever makes it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory
from pypaimon.common.json_util import JSON
from pypaimon.schema.data_types import AtomicType, DataField, PyarrowFieldParser

from faults.scenarios import tier
from interop.keyed_cases import read_by_pypaimon
from kit.lake_rows import lake_rows
from streamhouse_spark.errors import CommitConflictError, CorruptDataError, LakeMismatchError
from streamhouse_spark.lake.column_map import COLUMNS_PROPERTY, ColumnMap, LakeField
from streamhouse_spark.lake.model.values import LakeSplit
from streamhouse_spark.lake.paimon.evolution import paimon_columns
from streamhouse_spark.lake.paimon.maintenance import compaction as paimon_maintain
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from unit.lake.filters_of_reads import filter_of

NAME = "sales.orders"
PAIMON = {"table.datalake.format": "paimon"}
BIG = 2**40


@pytest.fixture
def table(wh):
    columns = "id bigint, a string, b string, n int"
    return wh.create_table(NAME, columns, buckets=2, properties={"bucket.key": "id", **PAIMON})


@pytest.fixture
def keyed(wh, own_cache):
    columns = "id int not null, a string, b string, n int"
    return wh.create_table("sales.people", columns, primary_key=["id"], buckets=1, properties=PAIMON)


def place_of(table):
    table.refresh()
    return table.open_lake().place


def lake_of(table):
    return place_of(table).require().schema


def fields_of(table):
    return {f.name: f.id for f in lake_of(table).fields}


def map_of(table):
    return ColumnMap.from_text(lake_of(table).options[COLUMNS_PROPERTY], table.uuid, where="here")


def alter_there(table, change):
    """As another engine would: the next schema's file. ``change`` gets the newest one's JSON."""
    place = place_of(table)
    schema = json.loads(JSON.to_json(place.require().schema))
    schema["id"] += 1
    change(schema)
    place.storage.put(place._schema_key(schema["id"]), json.dumps(schema).encode())


def forget_the_map(table):
    """As tables were tiered before there were maps."""
    alter_there(table, lambda schema: schema["options"].pop(COLUMNS_PROPERTY))


def renamed_there(old, new):
    def change(schema):
        next(f for f in schema["fields"] if f["name"] == old)["name"] = new

    return change


def rows_of(found: pa.Table) -> list[tuple]:
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def read_everywhere(table) -> list[tuple]:
    """What our reader and Paimon's own find in the lake, which has to be the same."""
    ours = table.lake.to_arrow()
    theirs = read_by_pypaimon(table.storage, table.name)
    assert theirs.column_names == ours.column_names
    assert [field.type for field in theirs.schema] == [field.type for field in ours.schema]
    assert rows_of(theirs) == rows_of(ours)
    return rows_of(ours)


def append_by_pypaimon(table, row: dict) -> None:
    """As a stock writer appends, from a copy on a disk: what it made there is brought back."""
    with tempfile.TemporaryDirectory() as folder:
        here = {info.key for info in table.storage.list("lake/")}
        for key in here:
            Path(folder, key).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, key).write_bytes(table.storage.read(key))
        paimon = CatalogFactory.create({"warehouse": f"{folder}/lake"}).get_table(table.name)
        builder = paimon.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        schema = PyarrowFieldParser.from_paimon_schema(paimon.table_schema.fields)
        write.write_arrow(pa.Table.from_pylist([row], schema=schema))
        commit.commit(write.prepare_commit())
        for path in Path(folder).rglob("*"):
            key = str(path.relative_to(folder))
            if path.is_file() and key not in here:
                table.storage.put(key, path.read_bytes())


class TestMaps:
    def test_a_new_table_has_one_and_it_changes_with_the_schema(self, table):
        table.append([{"id": 1, "a": "a", "b": "b", "n": 1}])
        tier(table)
        fields = '{"1":[0,"id"],"2":[1,"a"],"3":[2,"b"],"4":[3,"n"]}'
        expected = f'{{"table":"{table.uuid}","schema":1,"fields":{fields}}}'
        assert lake_of(table).options["streamhouse.columns"] == expected, "what other versions read"
        table.alter(rename_columns={"a": "b", "b": "c"}, drop_columns=["n"], add_columns="a int")
        tier(table)
        assert fields_of(table) == {"id": 0, "b": 1, "c": 2, "a": 4}
        assert (lake_of(table).id, map_of(table).schema_id) == (1, 2)
        assert {i: (f.id, f.name) for i, f in map_of(table).fields.items()} == {
            1: (0, "id"), 2: (1, "b"), 3: (2, "c"), 4: (3, "n"), 5: (4, "a"),
        }, "a column that was dropped stays known, for older states"  # fmt: skip
        assert read_everywhere(table) == [(1, "a", "b", None)]
        tier(table)
        assert lake_of(table).id == 1, "nothing is written while nothing changes"

    def test_a_lake_that_begins_after_columns_were_renamed_has_one_too(self, table):
        table.alter(rename_columns={"a": "b", "b": "a"}, drop_columns=["n"])
        table.append([{"id": 1, "a": "is a", "b": "is b"}])
        tier(table)
        assert read_everywhere(table) == [(1, "is b", "is a")]
        table.rename_column("a", "c")
        assert rows_of(table.lake.to_arrow(columns=["b", "c"])) == [("is b", "is a")], "before the lake follows"

    def test_what_names_columns_follows_them(self, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        table.rename_column("id", "key")
        tier(table)
        assert lake_of(table).options["bucket-key"] == "key"
        table.append([{"key": 2, "a": "y"}])
        tier(table)
        assert read_everywhere(table) == [(1, "x", None, None), (2, "y", None, None)]

    def test_the_highest_field_is_never_given_again(self, table):
        table.append([{"id": 1, "n": 7}])
        tier(table)
        table.drop_column("n")
        tier(table)
        alter_there(table, lambda schema: schema.update(highestFieldId=2))  # as who counts what is left
        table.add_columns("n int")
        tier(table)
        assert fields_of(table)["n"] == 4
        assert read_everywhere(table) == [(1, None, None, None)]

    def test_a_damaged_map_is_said(self, table):
        table.append([{"id": 1}])
        tier(table)
        alter_there(table, lambda schema: schema["options"].update({COLUMNS_PROPERTY: '{"table":1'}))
        for read in (table.lake.to_arrow, lambda: tier(table)):
            with pytest.raises(CorruptDataError, match=r"streamhouse.columns is .* no map of columns"):
                read()


class TestWithoutAMap:
    """Lake tables from before there were maps: columns could only be added then."""

    def test_columns_are_the_fields_with_their_first_names(self, table):
        table.append([{"id": 1, "a": "a1", "b": "b1", "n": 1}])
        tier(table)
        forget_the_map(table)
        tier(table)
        assert paimon_columns(lake_of(table), place_of(table).spec).schema_id is None, "nothing changed"
        table.add_columns("note string")
        tier(table)
        table.append([{"id": 2, "a": "a2", "note": "x"}])
        tier(table)
        forget_the_map(table)
        table.alter(rename_columns={"a": "b", "b": "a", "note": "n"}, drop_columns=["n"])
        table.add_columns("note int")
        expected = [(1, "a1", "b1", None, None), (2, "a2", None, "x", None)]
        assert rows_of(table.lake.to_arrow(columns=["id", "b", "a", "n", "note"])) == expected
        tier(table)
        assert read_everywhere(table) == expected
        assert fields_of(table) == {"id": 0, "b": 1, "a": 2, "n": 4, "note": 5}
        assert map_of(table).schema_id == table.state.schema_id


class TestReading:
    @pytest.mark.parametrize(
        ("before", "after", "low"),
        [
            ("tinyint", "smallint", -128), ("tinyint", "bigint", -128), ("smallint", "int", -(2**15)),
            ("int", "bigint", -(2**31)), ("float", "double", -1.5), ("decimal(9,2)", "decimal(20,2)", None),
        ],
    )  # fmt: skip
    def test_every_wider_type(self, wh, before, after, low):
        table = wh.create_table("sales.t", f"id int, v {before}", properties=PAIMON)
        table.append([{"id": 1, "v": low}, {"id": 2, "v": 3}])
        tier(table)
        table.widen_column("v", after)
        three = pa.scalar(3, pa.int8())
        for _ in ("by the older schema", "by the newer one"):
            found = table.lake.to_arrow(filter=pa.compute.field("v") == three.cast(table.schema.field("v").type))
            assert found["id"].to_pylist() == [2]
            tier(table)
        table.append([{"id": 3, "v": 4}])
        tier(table)
        assert [row[0] for row in read_everywhere(table)] == [1, 2, 3]
        assert table.lake.to_arrow()["v"].type == table.schema.field("v").type

    def test_statistics_leave_out_files_by_what_columns_are_now(self, table):
        """A name that is another's now, and a bound of a narrower type, would leave out the wrong files."""
        for number in (1, 5):
            table.append([{"id": 1, "a": f"a{number}", "b": f"b{number}", "n": number}])
            tier(table)
        table.alter(rename_columns={"a": "b", "b": "a"}, widen_columns={"n": "bigint"})
        for _ in ("before", "after"):
            for asked, num_files in (
                ([("b", "=", "a1")], 1), ([("a", "=", "b5")], 1), ([("a", "=", "a1")], 0),
                ([("N", ">", 4)], 1), ([("n", ">", BIG)], 0), ([("n", "<", BIG)], 2),
            ):  # fmt: skip
                lake = table.open_lake()
                schema = table.refresh().schema
                plan = lake.plan_read(node=filter_of(schema, *asked), schema=schema)
                assert len(plan.splits) == num_files, asked
            tier(table)
        table.append([{"id": 1, "a": "b9", "b": "a9", "n": BIG + 1}])
        tier(table)
        plan = table.open_lake().plan_read(
            node=filter_of(table.state.schema, ("n", ">", BIG)), schema=table.state.schema
        )
        assert len(plan.splits) == 1
        table.drop_column("n")
        table.add_columns("n int")
        tier(table)
        plan = table.open_lake().plan_read(
            node=filter_of(table.state.schema, ("n", "=", 77)), schema=table.state.schema
        )
        assert len(plan.splits) == 3, "nothing is known of another column of that name"

    def test_other_readers_take_only_columns_that_never_changed_by_name(self, table):
        table.append([{"id": 1, "a": "a", "b": "b", "n": 1}])
        tier(table)
        table.alter(rename_columns={"a": "c"}, drop_columns=["b"], widen_columns={"n": "bigint"}, add_columns="d int")
        table.add_columns("b string")
        for _ in range(2):
            state = table.refresh()
            scan = table.open_lake().scan_files(
                snapshot_id=state.lake.snapshot_id, columns=state.schema.names, schema=state.schema
            )
            assert scan.same_by_name == {"id", "d"}
            tier(table)

    def test_files_of_a_writer_without_field_ids_by_the_schema_that_they_name(self, table):
        table.append([{"id": 1, "a": "a1", "b": "b1", "n": 1}])
        tier(table)
        append_by_pypaimon(table, {"id": 2, "a": "a2", "b": "b2", "n": 2})
        table.alter(rename_columns={"a": "b", "b": "a"}, widen_columns={"n": "bigint"})
        table.alter(drop_columns=["n"], add_columns="m int")
        table.rename_column("m", "n")
        expected = [(1, "a1", "b1", None), (2, "a2", "b2", None)]
        for _ in ("before", "after"):
            assert rows_of(table.lake.to_arrow(columns=["id", "b", "a", "n"])) == expected
            tier(table)
        append_by_pypaimon(table, {"id": 3, "a": "a3", "b": "b3", "n": 3})
        assert read_everywhere(table) == [*expected, (3, "b3", "a3", 3)]

    def test_older_snapshots_in_their_own_columns_and_in_the_newest(self, table):
        table.append([{"id": 1, "a": "x", "n": 1}])
        tier(table)
        lake, snapshot = table.open_lake(), table.refresh().lake.snapshot_id
        table.alter(rename_columns={"a": "c"}, drop_columns=["n"], add_columns="a int")
        table.append([{"id": 2, "c": "y", "a": 5}])
        tier(table)
        lake = table.open_lake()
        own = lake_rows(lake, lake.plan_read(snapshot_id=snapshot))
        assert own.to_pylist() == [{"id": 1, "a": "x", "b": None, "n": 1}]
        newest = lake_rows(lake, lake.plan_read(snapshot_id=snapshot, schema=table.state.schema))
        assert newest.to_pylist() == [{"id": 1, "c": "x", "b": None, "a": None}]

    def test_metadata_tables_know_files_of_every_schema(self, table):
        table.append([{"id": 1, "a": "x", "n": 1}])
        tier(table)
        table.alter(rename_columns={"a": "n", "n": "a"}, drop_columns=["b"], widen_columns={"n": "bigint"})
        table.append([{"id": 2, "n": "y", "a": BIG}])
        tier(table)
        lake = table.open_lake()
        assert sorted(lake.metadata_table("files")["schema_id"].to_pylist()) == [0, 1]
        assert lake.metadata_table("schemas").num_rows == 2


class TestKeyed:
    def test_rows_of_several_schemas_are_merged_by_the_key(self, keyed):
        keyed.upsert([{"id": i, "a": f"a{i}", "b": f"b{i}", "n": i} for i in range(4)])
        tier(keyed)
        keyed.alter(rename_columns={"id": "a", "a": "id"}, widen_columns={"n": "bigint"}, drop_columns=["b"])
        expected = [(0, "a0", 0), (1, "a1", 1), (2, "a2", 2), (3, "a3", 3)]
        for _ in ("before", "after"):
            assert rows_of(keyed.lake.to_arrow(columns=["a", "id", "n"])) == expected
            tier(keyed)
        assert lake_of(keyed).primary_keys == ["a"]
        keyed.upsert([{"a": 1, "id": "new", "n": BIG}])
        keyed.delete([{"a": 2}])
        tier(keyed)
        expected = [(0, "a0", 0), (1, "new", BIG), (3, "a3", 3)]
        assert read_everywhere(keyed) == expected
        lake = keyed.open_lake()
        found = lake_rows(lake, lake.plan_read(columns=["id", "n"], schema=keyed.refresh().schema))
        assert rows_of(found) == [("a0", 0), ("a3", 3), ("new", BIG)], "merged by a key that is not asked for"
        assert lake.compact().files_removed > 1
        assert read_everywhere(keyed) == expected
        assert {row["schema_id"] for row in lake.metadata_table("files").to_pylist()} == {1}

    def test_files_of_a_writer_without_field_ids_are_merged_too(self, keyed):
        keyed.upsert([{"id": i, "a": f"a{i}", "b": "b", "n": i} for i in range(3)])
        tier(keyed)
        append_by_pypaimon(keyed, {"id": 1, "a": "theirs", "b": "b", "n": 9})
        keyed.alter(rename_columns={"id": "n", "n": "a", "a": "id"}, widen_columns={"n": "bigint"})
        expected = [(0, "a0", 0), (1, "theirs", 9), (2, "a2", 2)]
        for _ in ("before", "after"):
            assert rows_of(keyed.lake.to_arrow(columns=["n", "id", "a"])) == expected
            without_the_key = rows_of(keyed.lake.to_arrow(columns=["id", "a"]))
            assert without_the_key == sorted(row[1:] for row in expected), "another column has the key's older name"
            tier(keyed)
        lake = keyed.open_lake()
        splits = lake.plan_read(schema=keyed.refresh().schema).splits
        shipped = [LakeSplit.from_json(json.loads(json.dumps(split.to_json()))) for split in splits]
        assert tuple(shipped) == splits
        assert any(file.field_names for split in splits if split.merge for file in split.merge.files)
        assert lake.compact().files_removed == 2
        assert [(row[0], row[1], row[3]) for row in read_everywhere(keyed)] == expected

    def test_compaction_before_the_lake_follows(self, keyed):
        for number in (1, 2):
            keyed.upsert([{"id": 1, "a": f"a{number}", "n": number}])
            tier(keyed)
        keyed.alter(rename_columns={"a": "b", "b": "a", "id": "key"}, widen_columns={"n": "bigint"})
        keyed.refresh()
        assert keyed.open_lake().compact().files_removed == 2
        assert rows_of(keyed.lake.to_arrow(columns=["key", "b", "a", "n"])) == [(1, "a2", None, 2)]
        tier(keyed)
        assert read_everywhere(keyed) == [(1, "a2", None, 2)]


class TestOthers:
    def test_a_rename_in_the_lake_is_told_and_can_be_undone_or_followed(self, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        alter_there(table, renamed_there("a", "z"))
        assert table.to_arrow(columns=["a"])["a"].to_pylist() == ["x"], "reads go by the id"
        table.append([{"id": 2, "a": "y"}])
        with pytest.raises(
            LakeMismatchError, match=r"column 'a' \(field 1\) was renamed to 'z' in the lake by another engine; rename"
        ):
            tier(table)
        table.rename_column("a", "z")
        tier(table)
        assert [row[1] for row in read_everywhere(table)] == ["x", "y"]

    def test_a_column_dropped_in_the_lake_is_told(self, table):
        table.append([{"id": 1, "a": "x"}])
        tier(table)
        alter_there(table, lambda schema: schema["fields"].pop(1))
        table.append([{"id": 2}])
        with pytest.raises(LakeMismatchError, match=r"column 'a' \(field 1\) was dropped in the lake by another"):
            tier(table)
        table.drop_column("a")
        tier(table)
        assert fields_of(table) == {"id": 0, "b": 2, "n": 3}

    def test_a_column_that_another_engine_added(self, table):
        def add(schema):
            field = DataField(4, "c", AtomicType("BIGINT"))
            schema["fields"].append(json.loads(JSON.to_json(field)))
            schema["highestFieldId"] = 4

        table.append([{"id": 1, "a": "x"}])
        tier(table)
        alter_there(table, add)
        table.rename_column("a", "c")
        with pytest.raises(LakeMismatchError, match="'c' is there twice, another engine added one"):
            tier(table)
        table.rename_column("c", "a")
        table.add_columns("c bigint")
        tier(table)
        assert map_of(table).fields[5] == LakeField(4, "c")


class TestRaces:
    def test_a_process_of_older_columns_leaves_the_lake_alone(self, table, other_process, monkeypatch):
        monkeypatch.setattr(paimon_maintain, "COMPACT_FILES_MIN", 2)
        for number in range(3):
            table.append([{"id": 2, "a": f"a{number}"}])
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
        table.refresh()
        assert table.open_lake().compact().files_removed > 0
        found = [(row[0], row[1], row[3]) for row in read_everywhere(table)]
        assert found == [(1, "x", 7), *((2, f"a{i}", None) for i in range(3)), (3, "y", 8)]

    def test_compaction_brings_the_columns_up_first(self, table, monkeypatch):
        monkeypatch.setattr(paimon_maintain, "COMPACT_FILES_MIN", 2)
        for number in range(3):
            table.append([{"id": 0, "a": f"a{number}", "n": number}])
            tier(table)
        table.alter(rename_columns={"a": "n", "n": "a"}, widen_columns={"n": "bigint"})
        table.refresh()
        assert table.open_lake().compact().files_removed == 3
        assert [(row[1], row[3]) for row in read_everywhere(table)] == [(f"a{i}", i) for i in range(3)]
        assert map_of(table).schema_id == 2
