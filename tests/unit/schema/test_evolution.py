"""Possible changes of a schema, and values of an older type read as the present one."""

from __future__ import annotations

import itertools
import random

import pyarrow as pa
import pytest

from streamhouse_spark import SchemaMismatchError
from streamhouse_spark.schema.ddl import parse_type, type_name
from streamhouse_spark.schema.evolution import (
    ambiguous_columns,
    describe_later_column,
    is_widening,
    make_cast,
    require_same_columns,
    with_names,
    without_columns,
)
from streamhouse_spark.schema.table_schema import TableSchema

WIDER = {
    "tinyint": {"smallint", "int", "bigint"},
    "smallint": {"int", "bigint"},
    "int": {"bigint"},
    "bigint": set(),
    "float": {"double"},
    "double": set(),
    "decimal(5,2)": {"decimal(9,2)"},
    "decimal(9,2)": set(),
    "decimal(9,3)": set(),
    "boolean": set(),
    "string": set(),
    "binary": set(),
    "date": set(),
    "timestamp": set(),
    "timestamp_ntz": set(),
    "array<int>": set(),
    "array<bigint>": set(),
}


@pytest.mark.parametrize(("before", "after"), [*itertools.permutations(WIDER, 2)])
def test_exactly_the_widenings_of_a_type_are_allowed(before, after):
    assert is_widening(parse_type(before), parse_type(after)) == (after in WIDER[before])
    assert not is_widening(parse_type(before), parse_type(before))


@pytest.mark.parametrize("before", [pa.int8(), pa.int16(), pa.int32()])
def test_a_wider_type_holds_every_value(before):
    bits = before.bit_width - 1
    values = pa.array([-(2**bits), -1, 0, 2**bits - 1, None], before)
    for name in WIDER[type_name(before)]:
        assert values.cast(parse_type(name)).to_pylist() == values.to_pylist()


def test_what_became_of_a_column():
    first = TableSchema.of("a int, b int, c int")
    second = with_names(first, {"a": "b", "b": "a"})
    third = with_names(without_columns(second, ["c"]), {"a": "x"})
    schemas = {1: first, 2: second, 3: third}
    assert third.names == ("b", "x")
    assert describe_later_column("A", schemas) == "it was renamed to 'x'"
    assert describe_later_column("c", schemas) == "it was dropped"
    assert [describe_later_column(name, schemas) for name in ("b", "x", "never")] == [None] * 3
    assert describe_later_column("a", {}) is None
    assert ambiguous_columns(schemas.values()) == {1, 2}
    assert ambiguous_columns([first]) == frozenset()


def test_columns_that_a_reader_has_to_find_again():
    begun = TableSchema.of("a int, b int")
    later = with_names(begun, {"a": "b", "b": "c"}).with_added(TableSchema.of("a int"), 3)
    require_same_columns(begun, begun.with_comments({"a": "new"}), ["a", "b"], "x", "y")
    with pytest.raises(SchemaMismatchError, match="who: column 'a' was renamed to 'b' since the read began; do this"):
        require_same_columns(begun, later, ["a"], "who", "do this")
    require_same_columns(later, later.with_added(TableSchema.of("d int"), 4), later.names, "x", "y")


STRUCT = "struct<a:int,b:struct<x:int,y:string>>"
SHAPES = [
    (STRUCT, (1, 2, 3, 4), "struct<b:struct<y:string,z:int,x:bigint>,c:date,a:double>", (2, 4, 9, 3, 8, 7)),
    (f"array<{STRUCT}>", (1, 2, 3, 4), "array<struct<b:struct<x:int>>>", (2, 3)),
    (f"array<array<{STRUCT}>>", (1, 2, 3, 4), "array<array<struct<a:bigint>>>", (1,)),
    (f"map<string,{STRUCT}>", (1, 2, 3, 4), "map<string,struct<n:int,aa:int>>", (5, 1)),
    ("map<struct<k:int>,struct<v:int>>", (1, 2), "map<struct<k:int>,struct<v:int,w:int>>", (1, 2, 3)),
    ("struct<a:int,b:int>", (1, 2), "struct<a:int,b:int>", (2, 1)),
    ("struct<a:int>", (1,), "struct<a:int>", (2,)),
    ("struct<a:tinyint>", (1,), "struct<a:bigint>", (1,)),
    ("struct<l:array<int>,m:map<string,int>>", (1, 2), "struct<m:map<string,int>,l:array<bigint>>", (2, 1)),
]


def value(rng, kind):
    if rng.random() < 0.25:
        return None
    if pa.types.is_struct(kind):
        return {field.name: value(rng, field.type) for field in kind}
    if pa.types.is_list(kind):
        return [value(rng, kind.value_type) for _ in range(rng.randrange(4))]
    if pa.types.is_map(kind):
        key = (lambda i: {"k": i}) if pa.types.is_struct(kind.key_type) else str
        return [(key(i), value(rng, kind.item_type)) for i in range(rng.randrange(3))]
    return "x" if pa.types.is_string(kind) else rng.randrange(100)


def fitted(found, before, before_ids, after, after_ids):
    """The value by hand. The ids are taken from iterators, in the order of the types."""
    if pa.types.is_struct(before):
        stored = {}
        for field in before:
            own = next(before_ids)
            stored[own] = field, [next(before_ids) for _ in range(inside(field.type))]
        made = {}
        for field in after:
            own, ids = next(after_ids), None
            ids = [next(after_ids) for _ in range(inside(field.type))]
            there, older = stored.get(own, (None, None))
            made[field.name] = None
            if there is not None and found is not None:
                made[field.name] = fitted(found[there.name], there.type, iter(older), field.type, iter(ids))
        return None if found is None else made
    before_ids, after_ids = list(before_ids), list(after_ids)
    if found is None:
        return None
    if pa.types.is_list(before):
        return [fitted(v, before.value_type, iter(before_ids), after.value_type, iter(after_ids)) for v in found]
    if pa.types.is_map(before):
        keys = inside(before.key_type)
        ids = before_ids[keys:], after_ids[keys:]
        return [(k, fitted(v, before.item_type, iter(ids[0]), after.item_type, iter(ids[1]))) for k, v in found]
    return found


def inside(kind):
    own = kind.num_fields if pa.types.is_struct(kind) else 0
    if pa.types.is_map(kind):
        return inside(kind.key_type) + inside(kind.item_type)
    return own + sum(inside(kind.field(i).type) for i in range(kind.num_fields))


@pytest.mark.parametrize(("before", "before_ids", "after", "after_ids"), SHAPES)
def test_each_slice_of_random_values(before, before_ids, after, after_ids):
    rng = random.Random(7)
    old, new = parse_type(before), parse_type(after)
    values = [value(rng, old) for _ in range(40)]
    array, fit = pa.array(values, old), make_cast(old, before_ids, new, after_ids)
    expected = [fitted(v, old, iter(before_ids), new, iter(after_ids)) for v in values]
    for start, length in [(0, 40), (0, 0), (39, 1), *((rng.randrange(40), rng.randrange(40)) for _ in range(30))]:
        found = fit(array.slice(start, length))
        found.validate(full=True)
        assert found.type == new
        assert found.to_pylist() == expected[start : start + length]
    nested = fit(pa.array([None, *values], old)[1:])
    assert nested.to_pylist() == expected


def test_what_is_the_same_is_taken_over_without_a_copy():
    kind = parse_type(f"array<{STRUCT}>")
    array = pa.array([[{"a": 1, "b": {"x": 1, "y": "y"}}]], kind)
    assert make_cast(kind, (1, 2, 3, 4), kind, (1, 2, 3, 4))(array) is array


def test_fields_without_an_id_are_neither_read_nor_found():
    old, new = parse_type("struct<a:int,b:int>"), parse_type("struct<a:int,b:int>")
    array = pa.array([{"a": 1, "b": 2}], old)
    assert make_cast(old, (None, 2), new, (None, 2))(array).to_pylist() == [{"a": None, "b": 2}]
