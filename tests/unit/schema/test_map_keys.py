"""Maps have each key once, wherever they lie inside a column, as Spark has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import SchemaMismatchError, Table, Warehouse
from streamhouse_spark.schema.map_keys import first_repeated_key

INT_MAP = pa.map_(pa.int64(), pa.int64())
KEYS: dict[str, tuple[pa.DataType, Any]] = {
    "int": (pa.int64(), st.integers(0, 3)),
    "double": (pa.float64(), st.sampled_from([0.0, -0.0, math.nan, 1.5])),
    "string": (pa.string(), st.sampled_from(["a", "b", ""])),
    "binary": (pa.binary(), st.sampled_from([b"a", b""])),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.integers(0, 1), "b": st.sampled_from(["x", None])}),
    ),
    "list": (pa.list_(pa.int64()), st.lists(st.one_of(st.none(), st.integers(0, 1)), max_size=2)),
}


def same_key(key: Any) -> Any:
    """A text that equal keys have alone."""
    if isinstance(key, dict):
        return repr(sorted(key.items(), key=str))
    return repr(0.0 if key == 0.0 and isinstance(key, float) else key)


def repeats(pairs: list[tuple[Any, Any]] | None) -> bool:
    keys = [same_key(key) for key, _ in pairs or ()]
    return len(keys) != len(set(keys))


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
def test_the_first_map_with_a_repeated_key_is_found(kind, data):
    key_type, keys = KEYS[kind]
    maps = data.draw(st.lists(st.one_of(st.none(), st.lists(st.tuples(keys, st.just(1)), max_size=4)), max_size=6))
    skipped = data.draw(st.integers(0, len(maps)))
    array = pa.array(maps, pa.map_(key_type, pa.int64())).slice(skipped)
    expected = next((row for row, pairs in enumerate(maps[skipped:]) if repeats(pairs)), None)
    assert first_repeated_key(pa.chunked_array([array[:1], array[1:]])) == expected
    as_struct = pa.StructArray.from_arrays([array], ["m"])
    as_list = pa.ListArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), array)
    as_value = pa.MapArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), pa.array(range(len(array))), array)
    for inside in (as_struct, as_list, as_value):
        assert first_repeated_key(pa.chunked_array([inside])) == expected


def test_what_a_null_hides_is_no_map():
    hidden = pa.MapArray.from_arrays([0, 2, 3], [1, 1, 2], [5, 6, 7], mask=pa.array([True, False]))
    assert first_repeated_key(pa.chunked_array([hidden])) is None


TWICE = [(1, 10), (1, 11)]
ROWS = [{"id": 1, "m": [(1, 10), (2, 20)]}, {"id": 2, "m": TWICE}]
ENTRANCES: dict[str, Callable[[Table], object]] = {
    "dicts": lambda table: table.append(ROWS),
    "Arrow": lambda table: table.append(pa.Table.from_pylist(ROWS, table.schema)),
    "upsert": lambda table: table.upsert(ROWS),
    "some columns": lambda table: table.upsert(ROWS, columns=["id", "m"]),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_no_entrance_takes_a_map_with_one_key_twice(memory, world, own_cache, entrance):
    keyed = entrance in ("upsert", "some columns")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("m", INT_MAP)])
    warehouse = Warehouse("wh", storage=memory, world=world)
    table = warehouse.create_table("t", schema, primary_key=["id"] if keyed else [])
    with pytest.raises(SchemaMismatchError, match=r"column 'm' .*one key twice, in row 1 of these rows"):
        ENTRANCES[entrance](table)
    assert table.refresh().version == 1


def test_a_writer_refuses_it_in_the_call(memory, world):
    warehouse = Warehouse("wh", storage=memory, world=world)
    table = warehouse.create_table("t", pa.schema([("id", pa.int64()), ("m", INT_MAP)]))
    with table.writer() as writer, pytest.raises(SchemaMismatchError, match="one key twice"):
        writer.send(ROWS)
