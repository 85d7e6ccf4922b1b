"""Keys as users write them: values, tuples, mappings, and lists of these; anything else is an error before a write."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark import InvalidOptionError, SchemaMismatchError, StreamhouseError, Warehouse
from streamhouse_spark.datasource.table_definition import parse_partitioning


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
def test_a_key_of_two_columns(pair, keys):
    if keys is not PAIRS["columns"]:
        assert pair.lookup(keys)["v"].to_pylist() == [3]
        pair.delete(keys)
        assert sorted(pair.to_arrow()["v"].to_pylist()) == [0, 1, 2, 4]
    else:
        with pytest.raises(StreamhouseError):
            pair.lookup(keys)


@pytest.mark.parametrize("keys", ONES.values(), ids=ONES)
def test_a_key_of_one_column(one, keys):
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
