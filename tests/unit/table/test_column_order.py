"""Columns that move, are added in a place, or lose NOT NULL: rows, lake, time travel and tails over the change."""

from __future__ import annotations

import pytest

from kit.tables import tier
from streamhouse_spark import InvalidOptionError, SchemaMismatchError

NAME = "sales.orders"
FORMATS = ("iceberg", "paimon")
BEFORE = [{"id": 1, "n": 10, "text": "a"}, {"id": 2, "n": 20, "text": "b"}]


@pytest.fixture(params=[(lake, key) for lake in FORMATS for key in ((), ("id",))], ids=str)
def table(request, wh):
    lake, key = request.param
    table = wh.create_table(
        NAME,
        "id bigint not null, n int not null, text string",
        primary_key=key,
        properties={"table.datalake.format": lake, "bucket.key": "id", "bucket.num": "2"},
    )
    store(table, BEFORE)
    return table


def store(table, rows):
    return table.upsert(rows) if table.state.primary_key else table.append(rows)


def rows_of(table):
    found = table.to_arrow()
    return found.schema.names, sorted(found.to_pylist(), key=lambda row: row["id"])


def test_old_and_new_rows_are_read_in_the_new_order_from_log_and_lake(table):
    before_version, before = table.refresh().version, rows_of(table)
    tier(table)
    table.alter(add_columns="note string", drop_not_null=["N"], move_columns={"text": None, "note": "ID"})
    names = ["text", "id", "note", "n"]
    assert (table.schema.names, table.schema.field("n").nullable) == (names, True)
    new = {"text": None, "id": 3, "note": "x", "n": None}
    old = [{"text": row["text"], "id": row["id"], "note": None, "n": row["n"]} for row in BEFORE]
    assert rows_of(table) == (names, old)
    store(table, [new])
    assert rows_of(table) == (names, [*old, new])
    tier(table)
    assert rows_of(table) == (names, [*old, new])
    found = table.lake.to_arrow()
    assert found.schema.names == names
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [*old, new]
    store(table, [{**new, "id": 4, "n": 7}])
    assert rows_of(table) == (names, [*old, new, {**new, "id": 4, "n": 7}])
    then = table.read_version(before_version)
    assert (then.schema.names, sorted(then.to_pylist(), key=lambda row: row["id"])) == before


def test_the_order_changes_again_behind_tiered_rows(table):
    tier(table)
    for moved in ({"n": None}, {"id": "text"}, {"text": None, "id": "text", "n": "id"}):
        table.alter(move_columns=moved)
        store(table, BEFORE[:1] if table.state.primary_key else [])
        tier(table)
        names = list(table.schema.names)
        assert rows_of(table) == (names, [{name: row[name] for name in names} for row in BEFORE])
        assert table.lake.to_arrow().schema.names == names


def test_a_lookup_finds_rows_of_the_old_order(table):
    if not table.state.primary_key:
        pytest.skip("lookups need a primary key")
    assert table.lookup_one(1)["n"] == 10
    table.alter(move_columns={"text": None}, drop_not_null=["n"])
    assert table.lookup_one(1) == {"text": "a", "id": 1, "n": 10}
    table.upsert([{"id": 1, "text": "c", "n": None}])
    assert table.lookup_one(1) == {"text": "c", "id": 1, "n": None}


def test_a_tail_goes_on_over_a_move_and_ends_where_its_column_accepts_null(table):
    tail = table.tail("latest", poll_ms=0)
    store(table, [{"id": 3, "n": 30, "text": "c"}])
    assert next(tail).schema.names[-3:] == ["id", "n", "text"]
    table.alter(move_columns={"text": None})
    store(table, [{"id": 4, "n": 40, "text": "d"}])
    batch = next(tail)
    assert (batch.column("text").to_pylist(), batch.column("n").to_pylist()) == (["d"], [40])
    table.alter(drop_not_null=["n"])
    store(table, [{"id": 5, "n": None, "text": "e"}])
    with pytest.raises(SchemaMismatchError, match="column 'n' accepts null since the read began"):
        next(tail)


def test_a_writer_that_knew_the_old_order_stores_values_by_name(table, other_process):
    other = other_process().table(NAME)
    table.alter(move_columns={"n": None, "text": None}, drop_not_null=["n"])
    store(other, [{"id": 3, "n": 30, "text": "c"}])
    assert rows_of(table)[1][-1] == {"text": "c", "n": 30, "id": 3}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"drop_not_null": ["nope"]}, SchemaMismatchError, "no column 'nope'"),
        ({"drop_not_null": "n"}, InvalidOptionError, "expected a list of"),
        ({"move_columns": {"n": "n"}}, SchemaMismatchError, "cannot follow itself"),
        ({"move_columns": {"n": "nope"}}, SchemaMismatchError, "no column 'nope'"),
        ({"move_columns": ["n"]}, InvalidOptionError, "move_columns"),
    ],
)
def test_an_impossible_change_leaves_the_table_as_it_is(wh, change, error, words):
    table = wh.create_table("a.t", "id bigint not null, n int not null", primary_key=["id"])
    before = table.refresh()
    with pytest.raises(error, match=words):
        table.alter(**change)
    with pytest.raises(InvalidOptionError, match="it is part of the primary key"):
        table.alter(drop_not_null=["ID"])
    assert table.refresh() == before
