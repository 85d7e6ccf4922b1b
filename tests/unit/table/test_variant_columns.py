"""Tables with VARIANT columns, without Spark: with a Paimon lake and without a lake, of rows and by key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kit.tables import TableCase, tier
from kit.variants import readable_rows
from streamhouse_spark import FormatVersionError, SchemaMismatchError
from streamhouse_spark.log import checkpoint as checkpoint_module
from streamhouse_spark.log.actions import Create, Payload, SetSchema, Trim, action_from_json, action_to_json
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint
from streamhouse_spark.schema.variant import VARIANT

PAIMON = {"table.datalake.format": "paimon"}
NO_LAKE = {"table.datalake.enabled": "false"}
VALUES = [{"a": [1, None, {"b": 2.5}]}, [], "text", 5, None]
TABLE = TableCase("sales.events", "id bigint not null, v variant", properties=PAIMON)


def found(rows: pa.Table, column: str = "v") -> dict:
    return {row["id"]: row[column] for row in readable_rows(rows)}


def numbered(values: list, first: int = 0) -> list[dict]:
    return [{"id": first + i, "v": value} for i, value in enumerate(values)]


def test_variants_are_read_from_log_and_lake(table):
    table.append(numbered(VALUES))
    assert found(table.to_arrow()) == dict(enumerate(VALUES))
    tier(table)
    table.append(numbered(VALUES, 10))
    both = {**dict(enumerate(VALUES)), **{10 + i: value for i, value in enumerate(VALUES)}}
    assert found(table.to_arrow()) == both
    assert found(table.lake.to_arrow()) == dict(enumerate(VALUES))
    assert table.to_arrow().schema.equals(table.schema, check_metadata=True)
    tier(table)
    assert found(table.to_arrow()) == found(table.lake.to_arrow()) == both
    table.open_lake().compact()
    assert found(table.to_arrow()) == both


@pytest.mark.parametrize("lake", ["log", "paimon"])
def test_deleted_rows_with_nulls_come_back(table, lake):
    table.append(pa.table({"id": range(len(VALUES))}))
    if lake == "paimon":
        tier(table)
        table.log.commit(lambda _state, _time: (Trim({0: len(VALUES)}),))
    before = table.refresh().version
    table.delete(where=[("id", ">=", 1)])
    table.rollback_to_version(before)
    assert found(table.to_arrow()) == dict.fromkeys(range(len(VALUES)))
    tier(table)
    assert found(table.lake.to_arrow()) == dict.fromkeys(range(len(VALUES)))


def test_variants_are_upserted_and_kept_by_key(wh, own_cache):
    table = wh.create_table("sales.keyed", "id bigint, v variant, n int", primary_key=["id"], properties=PAIMON)
    table.upsert([{"id": i, "v": value, "n": i} for i, value in enumerate(VALUES)])
    table.upsert([{"id": 1, "v": {"new": 1}, "n": 1}])
    table.upsert([{"id": 2, "n": 20}], columns=["n"])
    expected = {**dict(enumerate(VALUES)), 1: {"new": 1}}
    assert found(table.to_arrow()) == expected
    tier(table)
    table.delete([{"id": 0}])
    table.upsert([{"id": 3, "v": None, "n": 3}])
    del expected[0]
    expected[3] = None
    for _ in range(2):
        assert found(table.to_arrow()) == expected
        tier(table)
    assert found(table.lake.to_arrow()) == expected
    assert found(table.lookup([{"id": 1}])) == {1: {"new": 1}}
    changes = readable_rows(wh.view("sales.keyed$binlog").to_arrow())
    assert [row["before"]["v"] for row in changes if row["_change_type"] == "delete"] == [VALUES[0]]


def test_deleted_rows_and_a_column_that_comes_later(table):
    table.append(numbered(VALUES))
    tier(table)
    assert table.delete(where=[("id", ">=", 2)]) == 3
    table.alter(add_columns="w variant", rename_columns={"v": "u"})
    table.append([{"id": 9, "u": 1, "w": {"x": 2}}])
    for _ in range(2):
        assert found(table.to_arrow(), "u") == {0: VALUES[0], 1: [], 9: 1}
        assert found(table.to_arrow(), "w") == {0: None, 1: None, 9: {"x": 2}}
        tier(table)
    assert found(table.lake.to_arrow(), "w") == {0: None, 1: None, 9: {"x": 2}}
    table.drop_column("u")
    with pytest.raises(SchemaMismatchError, match="was dropped"):
        table.append([{"id": 9, "u": 1}])


def test_a_table_without_a_lake_holds_variants(wh):
    table = wh.create_table("sales.log", "id bigint, v variant", properties=NO_LAKE)
    table.append(numbered(VALUES))
    assert found(table.to_arrow()) == dict(enumerate(VALUES))
    with pytest.raises(SchemaMismatchError, match="column 'v' is VARIANT, which requires Iceberg's format 3"):
        table.alter(set_properties={"table.datalake.enabled": "true"})


def test_an_iceberg_lake_gets_none(wh):
    with pytest.raises(SchemaMismatchError, match=r"table\.datalake\.format=paimon") as error:
        wh.create_table("sales.other", "id bigint, v variant")
    assert "which requires Iceberg's format 3, and pyiceberg cannot write that" in str(error.value)
    table = wh.create_table("sales.other", "id bigint")
    table.append([{"id": 1}])
    tier(table)
    for properties in ({}, NO_LAKE):  # the lake is there, and is read, though nothing is tiered any more
        with pytest.raises(SchemaMismatchError, match="which requires Iceberg's format 3"):
            table.alter(add_columns="v variant", set_properties=properties)
    assert table.schema.names == ["id"]


def test_pyiceberg_is_as_the_refusal_says():
    """Where this fails, an Iceberg lake may have variants now."""
    from pyiceberg import types
    from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION

    assert SUPPORTED_TABLE_FORMAT_VERSION == 2
    assert not [name for name in dir(types) if "variant" in name.lower()]


def test_fields_of_values_are_no_fields_of_the_column(table):
    for change in ({"rename_columns": {"v.value": "x"}}, {"drop_columns": ["v.metadata"]}, {"add_columns": "v.x int"}):
        with pytest.raises(SchemaMismatchError, match=r"variant"):
            table.alter(**change)
    wide = table.state
    with pytest.raises(SchemaMismatchError):
        table.alter(add_columns="s struct<a:int>, s2 struct<v:variant>")
    assert table.refresh().schema == wide.schema


def test_older_versions_refuse_records_and_checkpoints(table, store, monkeypatch):
    schema = table.state.schema
    for action, kind in (
        (SetSchema(2, schema), "schema-variant"),
        (Create("a.t", schema, (), 1, PAIMON, "a/t"), "create-variant"),
        (Create("a.t", schema, (), 1, {**PAIMON, "table.constraint.a": "id > 0"}, "a/t", ("u",)), "copy-variant"),
    ):
        stored = action_to_json(action, Payload())
        assert stored["type"] == kind
        assert action_from_json(stored, memoryview(b"")) == action
    table.drop_column("v")  # a schema of before has it still
    write_checkpoint(store, table.refresh())
    assert read_checkpoint(store, table.uuid, table.state.version) == table.state
    monkeypatch.setattr(checkpoint_module, "NEWEST_VERSION", checkpoint_module.FILE_ROWS_VERSION)
    with pytest.raises(FormatVersionError, match="upgrade"):
        read_checkpoint(store, table.uuid, table.state.version)


@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "by key"])
@pytest.mark.parametrize("properties", [PAIMON, NO_LAKE], ids=["paimon", "no lake"])
def test_a_branch_writes_and_publishes_variants(wh, own_cache, key, properties):
    table = wh.create_table("sales.events", "id bigint not null, v variant", properties=properties, primary_key=key)
    write = "upsert" if key else "append"
    getattr(table, write)(numbered(VALUES))
    if properties is PAIMON:
        tier(table)
    getattr(table, write)(numbered(VALUES, 10))
    before = found(table.to_arrow())
    table.create_branch("audit")
    branch = table.branch("audit")
    getattr(branch, write)(numbered([[{"x": None}], None], 20))
    if key:
        branch.delete([0])
    else:
        branch.delete(where=[("id", "=", 0)])
    after = {number: value for number, value in before.items() if number} | {20: [{"x": None}], 21: None}
    assert (found(branch.to_arrow()), found(table.to_arrow())) == (after, before)
    table.fast_forward("audit")
    if properties is PAIMON:
        tier(table)
    assert found(wh.table("sales.events").to_arrow()) == after


@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "by key"])
def test_a_clone_reads_and_writes_variants(wh, own_cache, key):
    table = wh.create_table("sales.events", "id bigint not null, v variant", properties=NO_LAKE, primary_key=key)
    (table.upsert if key else table.append)(numbered(VALUES))
    clone = wh.clone_table("sales.events", "sales.copy")
    (clone.upsert if key else clone.append)(numbered([{"new": True}], 10))
    assert found(wh.table("sales.copy").to_arrow()) == {**dict(enumerate(VALUES)), 10: {"new": True}}
    assert found(table.to_arrow()) == dict(enumerate(VALUES))


def test_marks_of_the_type_are_in_the_rows(table):
    table.append(numbered(VALUES))
    assert table.to_arrow().schema.field("v").type.equals(VARIANT, check_metadata=True)
