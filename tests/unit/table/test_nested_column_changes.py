"""Columns of live tables change inside, while others write, tail, tier and read."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pytest
from pyiceberg import types as ice

from kit.rows import rows_by_id
from kit.tables import TableCase, tier
from streamhouse_spark import Warehouse, relocate
from streamhouse_spark.errors import (
    CommitConflictError,
    FormatVersionError,
    InvalidOptionError,
    LakeMismatchError,
    SchemaMismatchError,
)
from streamhouse_spark.lake.column_mapping import COLUMNS_PROPERTY
from streamhouse_spark.log import checkpoint as checkpoint_module
from streamhouse_spark.log.actions import Create, Payload, SetSchema, action_from_json, action_to_json
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint
from streamhouse_spark.schema.table_schema import TableSchema

NAME = "sales.orders"
COLUMNS = "id bigint not null, s struct<a:int,b:string>, items array<struct<x:int>>, m map<string,struct<v:int>>"
TABLE = TableCase(NAME, COLUMNS, properties={"table.log.ttl": "1d"})


@pytest.fixture
def keyed(wh, own_cache):
    return wh.create_table("sales.keyed", COLUMNS, primary_key=["id"])


def s_of(found: pa.Table) -> list:
    return [row["s"] for row in rows_by_id(found)]


class TestReads:
    def test_a_field_that_is_gone_and_comes_back_is_another_one(self, table):
        table.append([{"id": 1, "s": {"a": 1, "b": "old"}}])
        tier(table)
        table.append([{"id": 2, "s": {"a": 2, "b": "old"}}])
        table.drop_column("s.b")
        table.add_columns("s.b STRING")
        for _ in range(2):
            assert s_of(table.to_arrow()) == [{"a": 1, "b": None}, {"a": 2, "b": None}]
            tier(table)
        assert s_of(table.lake.to_arrow()) == [{"a": 1, "b": None}, {"a": 2, "b": None}]

    def test_changes_and_lookups_of_a_key(self, keyed, wh):
        keyed.upsert([{"id": 1, "s": {"a": 1, "b": "x"}}])
        keyed.alter(rename_columns={"s.a": "b", "s.b": "a"}, add_columns="s.c INT")
        keyed.upsert([{"id": 1, "s": {"a": "y", "b": 2, "c": 3}}])
        assert keyed.lookup_one(1)["s"] == {"b": 2, "a": "y", "c": 3}
        changes = wh.view("sales.keyed$changelog").to_arrow()
        assert changes["s"].to_pylist() == [
            {"b": 1, "a": "x", "c": None},
            {"b": 1, "a": "x", "c": None},
            {"b": 2, "a": "y", "c": 3},
        ]
        before = wh.view("sales.keyed$binlog").to_arrow()["before"].to_pylist()[1]
        assert before["s"] == {"b": 1, "a": "x", "c": None}

    def test_a_partial_update_keeps_what_it_does_not_name(self, keyed):
        keyed.upsert([{"id": 1, "s": {"a": 1, "b": "x"}, "items": [{"x": 1}]}])
        keyed.add_columns("s.c INT, items.element.y INT")
        keyed.upsert([{"id": 1, "m": {"k": {"v": 1}}}], columns=["id", "m"])
        assert rows_by_id(keyed.to_arrow()) == [
            {"id": 1, "s": {"a": 1, "b": "x", "c": None}, "items": [{"x": 1, "y": None}], "m": [("k", {"v": 1})]}
        ]

    def test_rows_that_were_staged_before_are_written_anew_or_refused(self, table, wh):
        other = wh.table(NAME)
        staged = other.log_writer.stager().stage(_whole(other, {"id": 1, "s": {"a": 1, "b": "x"}}))
        table.rename_column("s.a", "c")
        with pytest.raises(CommitConflictError, match="renamed or dropped while rows were staged"):
            other.log_writer.commit(staged)
        other.append([{"id": 2, "s": {"c": 2}}])
        table.add_columns("s.d INT")
        staged = other.log_writer.stager(other.state).stage(_whole(other, {"id": 3, "s": {"c": 3}}))
        table.add_columns("s.e INT")
        other.log_writer.commit(staged)
        assert s_of(table.to_arrow()) == [
            {"c": 2, "b": None, "d": None, "e": None},
            {"c": 3, "b": None, "d": None, "e": None},
        ]

    def test_a_tail_ends_where_a_column_of_its_changed_inside(self, table):
        table.append([{"id": 1, "s": {"a": 1}}])
        whole = table.tail("earliest", until_ms=0, poll_ms=0)
        other = table.tail("earliest", columns=["id", "items"], until_ms=0, poll_ms=0)
        next(whole), next(other)
        table.append([{"id": 2, "s": {"a": 2}}])
        table.alter(drop_columns=["s.b"], add_columns="s.b STRING")
        assert next(other)["id"].to_pylist() == [2]
        with pytest.raises(SchemaMismatchError, match="column 's' has nested fields that were replaced"):
            next(whole)


def _whole(table, row):
    return pa.Table.from_pylist([row], schema=table.schema)


class TestLake:
    def test_a_lake_from_before_the_first_change_is_known_by_the_names_of_then(self, table):
        """The map of a lake that was made before columns could change inside has no fields inside."""
        table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
        tier(table)
        metadata = _metadata(table)
        assert all(len(found) == 2 for found in json.loads(metadata.properties[COLUMNS_PROPERTY])["fields"].values())
        table.alter(rename_columns={"s.a": "b", "s.b": "a"})
        table.rename_column("s.a", "z")
        assert s_of(table.to_arrow()) == [{"b": 1, "z": "x"}]
        tier(table)
        metadata = _metadata(table)
        assert json.loads(metadata.properties[COLUMNS_PROPERTY])["fields"]["2"] == [2, "s", {"1": 5, "2": 6}]
        assert s_of(table.to_arrow()) == s_of(table.lake.to_arrow()) == [{"b": 1, "z": "x"}]

    def test_a_lake_that_is_made_after_a_change(self, table):
        table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
        table.alter(drop_columns=["s.a"], add_columns="s.a STRING")
        tier(table)
        assert s_of(table.to_arrow()) == s_of(table.lake.to_arrow()) == [{"b": "x", "a": None}]
        table.rename_column("s.b", "c")
        assert s_of(table.to_arrow()) == [{"c": "x", "a": None}]
        tier(table)
        assert s_of(table.lake.to_arrow()) == [{"c": "x", "a": None}]

    def test_ids_of_the_lake_stay_and_are_never_used_again(self, table):
        table.append([{"id": 1}])
        tier(table)
        first = _struct(table)
        table.alter(rename_columns={"s.a": "n"}, drop_columns=["s.b"], add_columns="s.b STRING, s.t struct<u:int>")
        tier(table)
        after = _struct(table)
        assert {"n": first["a"]}.items() <= after.items()
        assert not set(first.values()) & {after["b"], after["t"]}

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda update: update.add_column(("s", "foreign"), ice.IntegerType()), "foreign: int"),
            (lambda update: update.rename_column("s.a", "theirs"), "'s.a' .* was renamed to 'theirs' in the lake by"),
            (lambda update: update.delete_column("s.a"), "'s.a' .* was dropped in the lake by another engine"),
        ],
        ids=["add", "rename", "drop"],
    )
    def test_what_another_engine_changes_inside_is_a_difference(self, table, change, says):
        table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
        table.add_columns("s.c INT")
        tier(table)
        with table.open_lake().binding.require().update_schema(allow_incompatible_changes=True) as update:
            change(update)
        table.add_columns("s.d INT")
        table.append([{"id": 2, "s": {"a": 2, "d": 2}}])
        with pytest.raises(LakeMismatchError, match=says):
            tier(table)
        assert [s["d"] for s in s_of(table.to_arrow())] == [None, 2]

    def test_sparks_own_reader_has_no_column_that_was_changed_inside(self, table):
        """It finds fields by their names. A field that came back under its name and type has changed nothing else."""
        table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
        tier(table)
        table.drop_column("s.b")
        table.add_columns("s.b STRING")
        snapshot = table.open_lake().newest()
        names = list(table.refresh().schema.names)
        scan = table.open_lake().scan_files(snapshot_id=snapshot.id, columns=names, schema=table.state.schema)
        assert scan.readable_by_name == {"id", "items", "m"}

    def test_a_file_of_another_engine_without_ids_inside_is_refused(self, table, monkeypatch):
        table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
        tier(table)
        table.rename_column("s.a", "c")
        monkeypatch.setattr("streamhouse_spark.lake.parquet.file_columns._nested_ids", lambda kind: [None, None])
        assert s_of(table.to_arrow()) == [{"c": 1, "b": "x"}], "an own file is from before the change"
        monkeypatch.setattr("streamhouse_spark.lake.parquet.file_columns.TABLE_KEY", "of another")
        with pytest.raises(LakeMismatchError, match="without the ids of the fields inside column 's'"):
            table.to_arrow()


def _metadata(table):
    return table.open_lake().binding.require().metadata


def _struct(table):
    return {field.name: field.field_id for field in _metadata(table).schema().find_field("s").field_type.fields}


@pytest.mark.parametrize("form", ["iceberg", "paimon"])
def test_a_copy_of_the_warehouse_knows_the_fields(tmp_path, form):
    made = Warehouse(str(tmp_path / "made"))
    table = made.create_table(NAME, COLUMNS, properties={"table.datalake.format": form})
    table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
    tier(table)
    table.alter(rename_columns={"s.a": "b", "s.b": "a"})
    tier(table)
    table.alter(rename_columns={"s.a": "c"}, drop_columns=["s.b"], add_columns="s.b INT")
    shutil.copytree(tmp_path / "made", tmp_path / "copy")
    relocate(Warehouse(str(tmp_path / "copy")), copy=True)
    copy = Warehouse(str(tmp_path / "copy")).table(NAME)
    copy.append([{"id": 2, "s": {"c": "y", "b": 2}}])
    for _ in range(2):
        assert s_of(copy.to_arrow()) == [{"c": "x", "b": None}, {"c": "y", "b": 2}]
        tier(copy)


def test_a_clone_and_its_original_change_inside_each_for_itself(wh, table):
    table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
    table.alter(rename_columns={"s.a": "b", "s.b": "a"})
    tier(table)
    table.append([{"id": 2, "s": {"b": 2, "a": "y"}}])
    clone = wh.clone_table(NAME, "sales.clone")
    clone.drop_column("s.a")
    clone.add_columns("s.c INT")
    table.alter(rename_columns={"s.a": "c"}, add_columns="s.d INT")
    for _ in range(2):
        assert s_of(clone.to_arrow()) == [{"b": 1, "c": None}, {"b": 2, "c": None}]
        assert s_of(table.to_arrow()) == [{"b": 1, "c": "x", "d": None}, {"b": 2, "c": "y", "d": None}]
        tier(clone)
        tier(table)


@pytest.mark.parametrize("form", ["iceberg", "paimon"])
@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "keyed"])
def test_nested_changes_of_another_engine_are_adopted(wh, own_cache, form, key):
    """Older files have other names there, and a field that was dropped has nothing to do with one of its name."""
    old = wh.create_table("sales.old", COLUMNS, primary_key=key, properties={"table.datalake.format": form})
    (old.upsert if key else old.append)([{"id": 1, "s": {"a": 1, "b": "x"}}])
    tier(old)
    old.alter(rename_columns={"s.a": "b", "s.b": "a"}, drop_columns=["m"])
    tier(old)
    old.drop_column("s.a")
    old.add_columns("s.a STRING")
    (old.upsert if key else old.append)([{"id": 2, "s": {"b": 2, "a": "new"}}])
    tier(old)
    wh.drop_table("sales.old")
    wh.adopt_table("sales.new", "sales.old", primary_key=key)
    table = wh.table("sales.new")
    assert not table.state.schema.has_field_ids
    expected = [{"b": 1, "a": None}, {"b": 2, "a": "new"}]
    assert s_of(table.to_arrow()) == s_of(table.lake.to_arrow()) == expected
    if key:
        assert [table.lookup_one(i)["s"] for i in (1, 2)] == expected
    (table.upsert if key else table.append)([{"id": 3, "s": {"b": 3, "a": "own"}}])
    tier(table)
    expected = [*expected, {"b": 3, "a": "own"}]
    assert s_of(table.to_arrow()) == s_of(table.lake.to_arrow()) == expected
    table.rename_column("s.b", "c")
    tier(table)
    assert s_of(table.to_arrow()) == [{"c": s["b"], "a": s["a"]} for s in expected]
    table.lake.compact()
    assert s_of(table.to_arrow()) == [{"c": s["b"], "a": s["a"]} for s in expected]


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"add_columns": "nope.x INT"}, "no column 'nope'"),
            ({"add_columns": "s.x INT NOT NULL"}, "'s.x' has NOT NULL, which only columns can have"),
            ({"add_columns": "s.x INT COMMENT 'c'"}, "'s.x' has COMMENT"),
            ({"add_columns": "s.x INT DEFAULT 1"}, "'s.x' has DEFAULT"),
            ({"add_columns": "s.x CHAR(3)"}, "'s.x' has the length char"),
            ({"add_columns": "s. INT"}, "expected a type|the name of a field"),
            ({"add_columns": "s.x INT, s.X INT"}, "already exists"),
            ({"rename_columns": {"s.nope": "x"}}, "'s.nope' does not exist"),
            ({"widen_columns": {"s.b": "varchar(3)"}}, "only columns can have a length"),
            ({"defaults": {"s.a": 1}}, "no column 's.a'"),
            ({"comments": {"s.a": "x"}}, "no column 's.a'"),
        ],
    )
    def test_what_cannot_be_changes_nothing(self, table, change, says):
        before = table.refresh()
        with pytest.raises(SchemaMismatchError, match=says):
            table.alter(**change)
        assert table.refresh() == before

    def test_a_column_cannot_be_dropped_and_changed_inside_in_one_step(self, table):
        with pytest.raises(InvalidOptionError, match="'s' is both dropped and changed"):
            table.alter(drop_columns=["s"], rename_columns={"s.a": "x"})

    def test_a_column_that_a_constraint_names(self, wh):
        table = wh.create_table("t", COLUMNS, properties={"table.constraint.there": "s IS NOT NULL"})
        with pytest.raises(InvalidOptionError, match="cannot be changed inside: it is named in the constraint"):
            table.rename_column("s.a", "x")
        table.add_columns("s.x INT")

    def test_a_name_with_dots_is_the_column_that_has_it(self, wh):
        table = wh.create_table("t", "s struct<a:int>, `s.a` int")
        table.rename_column("s.a", "b")
        assert table.schema.names == ["s", "b"]
        table.rename_column("s.a", "c")
        assert table.schema.field("s").type.field(0).name == "c"


class TestForms:
    def test_a_schema_without_changes_inside_has_the_form_of_before(self, table):
        table.add_columns("more INT")
        assert "fields" not in json.dumps(table.state.schema.to_json())
        assert action_to_json(SetSchema(2, table.state.schema), Payload())["type"] == "schema"

    def test_ids_of_nested_fields_have_their_stored_form(self, table):
        table.alter(drop_columns=["s.a"], add_columns="s.c INT")
        schema = table.refresh().schema
        found = {c["name"]: (c.get("fields"), c.get("last_field")) for c in schema.to_json()}
        assert found == {"id": (None, None), "s": ([2, 3], 3), "items": (None, None), "m": (None, None)}
        assert TableSchema.from_json(schema.to_json()) == schema

    def test_older_versions_refuse_records_and_checkpoints(self, table, store, monkeypatch):
        table.add_columns("s.c INT")
        schema = table.refresh().schema
        for action, kind in (
            (SetSchema(2, schema), "schema-fields"),
            (Create("a.t", schema, (), 1, {}, "a/t"), "create-fields"),
            (Create("a.t", schema, (), 1, {"table.constraint.a": "id > 0"}, "a/t", ("u",)), "copy-fields"),
        ):
            stored = action_to_json(action, Payload())
            assert stored["type"] == kind
            assert action_from_json(stored, memoryview(b"")) == action
        table.drop_column("s")  # a schema of before has them still
        write_checkpoint(store, table.refresh())
        assert read_checkpoint(store, table.uuid, table.state.version) == table.state
        monkeypatch.setattr(checkpoint_module, "NEWEST_VERSION", checkpoint_module.FIELDS_VERSION - 1)
        with pytest.raises(FormatVersionError, match="upgrade"):
            read_checkpoint(store, table.uuid, table.state.version)
