"""Keys as users write them are matched by name, and found without hashing all rows each time."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.tables import tier
from streamhouse_spark import InvalidOptionError, SchemaMismatchError, StreamhouseError, Table, Warehouse
from streamhouse_spark.datasource.table_definition import parse_partitioning
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch, KeyPrefixIndex
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


def test_lookups_match_key_columns_by_name(table):
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


def test_intents_of_several_processes_match_key_columns_by_name(table):
    def intents(schema):
        rows = pa.table({"a": [1], "b": [2]})
        arrays = [rows[c.name] if c.name in rows.column_names else pa.nulls(1, c.type) for c in schema.columns]
        return BucketIntents(pa.table(arrays, names=list(schema.names)), np.array([True]))

    write = IntentWrite()
    prepared = keyed_intents.prepare_changes(table.keyed, write, {0: intents})
    keyed_intents.commit_prepared(table.keyed, write, {0: intents}, prepared)
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


@pytest.fixture
def pair(warehouse_path, own_cache):
    table = Warehouse(warehouse_path).create_table("pair", "v INT, b STRING, a INT", primary_key=["a", "b"], buckets=2)
    table.upsert([{"a": i, "b": f"b{i}", "v": i} for i in range(5)])
    return table


@pytest.fixture
def one(warehouse_path, own_cache):
    table = Warehouse(warehouse_path).create_table("one", "id STRING, v INT", primary_key=["id"])
    table.upsert([{"id": f"k{i}", "v": i} for i in range(5)])
    return table


PAIRS = {
    "a tuple": (3, "b3"),
    "a mapping": {"a": 3, "b": "b3"},
    "a mapping in another order": {"b": "b3", "a": 3},
    "tuples": [(3, "b3")],
    "a tuple of tuples": ((3, "b3"),),
    "lists": [[3, "b3"]],
    "mappings": [{"b": "b3", "a": 3}],
    "columns": {"a": [3], "b": ["b3"]},
    "Arrow": pa.table({"b": ["b3"], "a": pa.array([3], pa.int32())}),
}
ONES = {
    "a value": "k3",
    "values": ["k3"],
    "a tuple of values": ("k3",),
    "tuples": [("k3",)],
    "a mapping": {"id": "k3"},
    "mappings": [{"id": "k3"}],
    "an array": pa.array(["k3"]),
    "a value of numpy": np.str_("k3"),
}
BAD = [(3,), (3, "b3", 5), [(3,)], [3], 3, "b3", [(3, "b3"), (3,)], {"a": 3, "c": 1}, [None], object(), [("x", "b3")]]


@pytest.mark.parametrize("keys", PAIRS.values(), ids=PAIRS)
def test_a_key_of_two_columns_has_several_forms(pair, keys):
    if keys is not PAIRS["columns"]:
        assert pair.lookup(keys)["v"].to_pylist() == [3]
        pair.delete(keys)
        assert sorted(pair.to_arrow()["v"].to_pylist()) == [0, 1, 2, 4]
    else:
        with pytest.raises(StreamhouseError):
            pair.lookup(keys)


@pytest.mark.parametrize("keys", ONES.values(), ids=ONES)
def test_a_key_of_one_column_has_several_forms(one, keys):
    assert one.lookup(keys)["v"].to_pylist() == [3]
    one.delete(keys)
    assert sorted(one.to_arrow()["v"].to_pylist()) == [0, 1, 2, 4]


@pytest.mark.parametrize("keys", BAD, ids=range(len(BAD)))
def test_what_is_no_key_is_an_error_of_its_own(pair, keys):
    before = pair.refresh().version
    for ask in (pair.lookup, pair.delete):
        with pytest.raises(StreamhouseError):
            ask(keys)
    assert pair.refresh().version == before


def test_the_error_says_what_a_key_is(pair):
    with pytest.raises(SchemaMismatchError, match=r"\(a, b\); pass them as a tuple in this order or as a mapping"):
        pair.lookup([(1, "b1"), (2,)])


@pytest.mark.parametrize("count", [0, -1, 16385, 10**20, "x"])
def test_a_count_of_buckets_that_cannot_be_names_the_transform(count):
    transform = {"transform": "bucket", "columns": [["id"]], "arguments": [count]}
    with pytest.raises(InvalidOptionError, match=rf"bucket\({count}, id\).*expected 1 to 16384"):
        parse_partitioning([transform])


SEARCHED_KEYS = st.lists(
    st.sampled_from([b"", b"\0", b"a", b"ab", b"abcdefgh"]).flatmap(lambda b: st.binary(max_size=3).map(b.__add__))
)


@given(SEARCHED_KEYS, SEARCHED_KEYS, st.sampled_from([b"", b"x", b"a long common beginning"]), st.integers(0, 3))
def test_it_says_what_a_set_says(mine, asked, common, skipped):
    mine = [common + key for key in mine] or [common]
    asked = [*asked, *(common + key for key in asked)]
    heads = KeyPrefixIndex(pa.array(sorted(set(mine)), pa.binary()))
    keys = pa.array(asked, pa.binary())[skipped:]
    assert heads.contains(keys).tolist() == [key in set(mine) for key in asked[skipped:]]


@pytest.mark.parametrize("text", ["customer-{:09}", "{:09}-customer"])
def test_a_large_batch_is_not_hashed_at_each_question(monkeypatch, text):
    texts = [text.format(2 * i) for i in range(50_000)]
    keys = encode_keys([pa.array(texts)])
    batch = KeyedBatch.of(keys, [pa.array(texts)], np.zeros(len(keys), np.bool_))
    hashed, real = [], pc.is_in

    def is_in(values, *, value_set):
        hashed.append(len(value_set))
        return real(values, value_set=value_set)

    monkeypatch.setattr(pc, "is_in", is_in)
    for turn in range(20):
        others = encode_keys([pa.array([text.format(999 * turn + i) for i in range(10)])])
        assert batch.has(others).tolist() == [(999 * turn + i) % 2 == 0 for i in range(10)]
    assert sum(hashed) <= 20 * 5 * 2 * 10, "a few keys of the same eight bytes for each"


def test_an_empty_batch_has_none():
    empty = pa.array([], pa.binary())
    batch = KeyedBatch.of(empty, [], np.zeros(0, np.bool_))
    assert batch.has(pa.array([b"x", b""], pa.binary())).tolist() == [False, False]
