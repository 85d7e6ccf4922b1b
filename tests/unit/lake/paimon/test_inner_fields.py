"""Fields inside columns of tables with a Paimon lake, which change while others write, tier and read."""

from __future__ import annotations

import pytest
from pypaimon.schema.data_types import PyarrowFieldParser

from interop.keyed_cases import read_by_pypaimon
from kit.tables import tier
from streamhouse_spark import LakeMismatchError
from streamhouse_spark.lake.paimon.schema import nested_field_ids
from unit.lake.lake_schemas import SCHEMAS
from unit.lake.paimon.test_evolution import append_by_pypaimon, lake_of
from unit.table.test_nested_column_changes import COLUMNS, NAME, s_of


@pytest.fixture
def table(wh):
    return wh.create_table(NAME, COLUMNS, properties={"table.datalake.format": "paimon"})


def test_names_that_swap_and_fields_that_come_back(table):
    table.append([{"id": 1, "s": {"a": 1, "b": "x"}, "m": {"k": {"v": 1}}}])
    tier(table)
    table.alter(rename_columns={"s.a": "b", "s.b": "a"}, widen_columns={"s.a": "bigint", "m.value.v": "bigint"})
    table.drop_column("s.a")
    table.add_columns("s.a STRING, s.t struct<u:int>")
    table.append([{"id": 2, "s": {"b": 2**40, "a": "new", "t": {"u": 3}}}])
    expected = [{"b": 1, "a": None, "t": None}, {"b": 2**40, "a": "new", "t": {"u": 3}}]
    for _ in range(2):
        assert s_of(table.to_arrow()) == expected
        tier(table)
    assert s_of(table.lake.to_arrow()) == s_of(read_by_pypaimon(table.storage, NAME)) == expected
    table.lake.compact()
    assert s_of(table.lake.to_arrow()) == s_of(read_by_pypaimon(table.storage, NAME)) == expected


def test_own_files_without_ids_inside_are_from_before_the_first_change(table, monkeypatch):
    """Older versions wrote the ids of the columns alone."""
    with monkeypatch.context() as older:
        older.setattr("streamhouse_spark.lake.paimon.schema._file_type", PyarrowFieldParser.from_paimon_type)
        table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
        tier(table)
    table.drop_column("s.b")
    table.alter(rename_columns={"s.a": "b"}, add_columns="s.a STRING")
    for _ in range(2):
        assert s_of(table.to_arrow()) == [{"b": 1, "a": None}]
        tier(table)


def test_files_of_another_engine_without_ids_are_read_by_the_names_of_their_schema(table):
    table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
    table.alter(rename_columns={"s.a": "b", "s.b": "a"})
    tier(table)
    append_by_pypaimon(table, {"id": 2, "s": {"b": 2, "a": "y"}})
    assert s_of(table.lake.to_arrow()) == [{"b": 1, "a": "x"}, {"b": 2, "a": "y"}]
    table.drop_column("s.a")
    table.rename_column("s.b", "a")
    table.append([{"id": 3, "s": {"a": 3}}])
    tier(table)
    found = s_of(table.lake.to_arrow())
    assert found == s_of(read_by_pypaimon(table.storage, NAME)) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_what_another_engine_changes_inside_is_a_difference(table):
    table.append([{"id": 1, "s": {"a": 1, "b": "x"}}])
    table.add_columns("s.c INT")
    tier(table)

    def change(schema):
        next(f for f in schema["fields"] if f["name"] == "s")["type"]["fields"][0]["name"] = "theirs"

    SCHEMAS["paimon"].alter(table, change)
    table.add_columns("s.d INT")
    table.append([{"id": 2, "s": {"a": 2, "d": 2}}])
    with pytest.raises(LakeMismatchError, match=r"'s\.a' .* was renamed to 'theirs' in the lake by"):
        tier(table)
    assert s_of(table.to_arrow()) == [
        {"a": 1, "b": "x", "c": None, "d": None},
        {"a": 2, "b": None, "c": None, "d": 2},
    ]


def test_ids_are_never_given_again(table):
    table.append([{"id": 1}])
    tier(table)
    table.add_columns("s.c INT")
    tier(table)
    first = nested_field_ids(lake_of(table).fields[1].type)
    table.drop_column("s.c")
    tier(table)
    table.add_columns("s.c INT, whole INT")
    tier(table)
    schema = lake_of(table)
    after = nested_field_ids(schema.fields[1].type)
    assert {path for path, _ in first.items() & after.items()} == {("a",), ("b",)}
    assert len({*first.values(), *after.values(), *(field.id for field in schema.fields)}) == 3 + 1 + 5
