"""Keys are matched by name: the primary key may have its columns in another order than the table."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from kit.tables import tier
from streamhouse_spark import Table
from streamhouse_spark.write import upsert_intents as keyed_intents
from streamhouse_spark.write.upsert_intents import BucketIntents, IntentWrite

NAME = "sales.pairs"
ROWS = [{"a": 1, "b": 2}, {"a": 2, "b": 1}]

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(params=["all columns are of the key", "one is not"])
def others(request) -> str:
    return "" if request.param.startswith("all") else ", note string"


@pytest.fixture(params=["iceberg", "paimon"])
def table(wh, request, others) -> Table:
    """Without a note, each row has the other's values in its other column."""
    table = wh.create_table(
        NAME,
        f"a bigint not null, b bigint not null{others}",
        primary_key=["b", "a"],
        properties={"table.datalake.format": request.param},
    )
    table.upsert(ROWS)
    return table


def pairs(table: Table) -> set[tuple[int, int]]:
    return {(row["a"], row["b"]) for row in table.to_arrow().to_pylist()}


KEYS = {
    "dicts": [{"a": 1, "b": 2}],
    "dicts in the key's order": [{"b": 2, "a": 1}],
    "a table": pa.table({"a": [1], "b": [2]}),
    "a table in the key's order": pa.table({"b": [2], "a": [1]}),
}


@pytest.mark.parametrize("form", KEYS)
@pytest.mark.parametrize("is_tiered", [True, False])
def test_the_row_that_is_deleted_is_the_one_that_was_named(table, form, is_tiered):
    if is_tiered:
        tier(table)
    table.delete(KEYS[form])
    assert pairs(table) == {(2, 1)}
    if is_tiered:
        tier(table)
        assert pairs(table) == {(2, 1)}


@pytest.mark.parametrize("form", KEYS)
def test_a_row_is_made_of_the_key_that_was_looked_up(table, form):
    table.delete(KEYS[form])
    found = table.lookup(KEYS[form], insert_if_absent=True)
    assert [(row["a"], row["b"], row["_found"]) for row in found.to_pylist()] == [(1, 2, True)]
    assert pairs(table) == {(1, 2), (2, 1)}
    table.lookup([{"a": 5, "b": 6}], insert_if_absent=True)
    assert pairs(table) == {(1, 2), (2, 1), (5, 6)}


@pytest.mark.parametrize("form", KEYS)
def test_what_is_found_is_what_was_named(table, form):
    assert table.lookup(KEYS[form]).select(["b", "a", "_found"]).to_pylist() == [{"b": 2, "a": 1, "_found": True}]


def test_one_row_and_a_prefix(table):
    assert table.lookup_one((2, 1)).items() >= {"a": 1, "b": 2}.items()
    assert table.lookup_one({"a": 1, "b": 2}).items() >= {"a": 1, "b": 2}.items()
    assert [(row["a"], row["b"]) for row in table.prefix_lookup(2).to_pylist()] == [(1, 2)]
    assert [(row["a"], row["b"]) for row in table.prefix_lookup({"b": 1}).to_pylist()] == [(2, 1)]


def test_a_partial_update_and_rows_that_are_written_again(table):
    rows = pa.table({"b": [2, 9], "a": [1, 8]})
    if "note" in table.schema.names:
        table.upsert(rows.append_column("note", pa.array(["x", "y"])), columns=["note"])
    else:
        table.upsert(rows)
    assert pairs(table) == {(1, 2), (2, 1), (8, 9)}


def test_intents_of_several_processes(table):
    def intents(schema):
        rows = pa.table({"a": [1], "b": [2]})
        arrays = [rows[c.name] if c.name in rows.column_names else pa.nulls(1, c.type) for c in schema.columns]
        return BucketIntents(pa.table(arrays, names=list(schema.names)), np.array([True]))

    write = IntentWrite()
    prepared = keyed_intents.prepare(table.keyed, write, {0: intents})
    keyed_intents.commit(table.keyed, write, {0: intents}, prepared)
    assert pairs(table) == {(2, 1)}


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_every_order_of_three(wh, order):
    columns = "a bigint not null, b bigint not null, c bigint not null"
    table = wh.create_table(NAME, columns, primary_key=list(order), buckets=4)
    rows = [dict(zip("abc", values, strict=True)) for values in itertools.product(range(3), repeat=3)]
    table.upsert(rows)
    gone = [row for row in rows if row["a"] == 1 and row["b"] > row["c"]]
    table.delete(gone)
    assert sorted(table.to_arrow().to_pylist(), key=str) == sorted((r for r in rows if r not in gone), key=str)
