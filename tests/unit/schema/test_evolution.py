"""Changes of a table's schema that are possible."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from streamhouse_spark import SchemaMismatchError
from streamhouse_spark.schema.ddl import parse_type, type_name
from streamhouse_spark.schema.evolution import (
    ambiguous_columns,
    describe_later_column,
    is_widening,
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
def test_types(before, after):
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
