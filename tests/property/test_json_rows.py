"""Rows as JSON and back, for every type of a table, and the same rows from each way of parsing them."""

from __future__ import annotations

import itertools
import json
import math

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.json_values import FORMS, encode_row_texts, find_form
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.schema.variant import VARIANT, encode_variant, readable_value
from streamhouse_spark.serve.row_bodies import write_csv
from streamhouse_spark.write.file_readers import CsvOptions, JsonReader, read_body, to_json_lines

INTEGERS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS | st.floats(-1e6, 1e6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
DAYS = st.integers(-(2**31), 2**31 - 1) | st.integers(-719_600, -719_000) | st.integers(0, 20_000)
MICROS = (
    st.sampled_from([-(2**63), 2**63 - 1])
    | st.integers(-(2**62), 2**62)
    | st.integers(-(2**40), 2**40)
    | st.integers(0, 2000).map(lambda s: s * 1_000_000)
)
SCALARS: dict[pa.DataType, st.SearchStrategy] = {
    pa.bool_(): st.booleans(),
    **{data_type: st.integers(-(2**bits), 2**bits - 1) for data_type, bits in INTEGERS.items()},
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(9, 2): st.decimals(-9_999_999, 9_999_999, places=2),
    pa.decimal128(38, 18): st.decimals(-(10**19), 10**19, places=18),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=8),
    pa.date32(): DAYS,
    pa.timestamp("us", "UTC"): MICROS,
    pa.timestamp("us"): MICROS,
}


def struct_of(types: list[pa.DataType]) -> pa.DataType:
    return pa.struct([(f"f{i}", data_type) for i, data_type in enumerate(types)])


TYPES = st.recursive(
    st.sampled_from([*SCALARS, VARIANT]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.tuples(st.sampled_from([pa.string(), pa.int32(), pa.date32(), pa.binary()]), inner).map(
            lambda pair: pa.map_(*pair)
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda types: pa.struct([(f"f{i}", t) for i, t in enumerate(types)])
        ),
    ),
    max_leaves=4,
)


def values_of(data_type: pa.DataType) -> st.SearchStrategy:
    """Values that ``pa.array`` takes for the type, null among them."""
    if data_type.equals(VARIANT):
        return st.none() | JSON_VALUES.filter(lambda value: value is not None).map(encode_variant)
    if pa.types.is_list(data_type):
        return st.none() | st.lists(values_of(data_type.value_type), max_size=3)
    if pa.types.is_map(data_type):
        keys = SCALARS[data_type.key_type]
        pairs = st.tuples(keys, values_of(data_type.item_type))
        return st.none() | st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    if pa.types.is_struct(data_type):
        return st.none() | st.fixed_dictionaries({field.name: values_of(field.type) for field in data_type})
    return st.none() | SCALARS[data_type]


@st.composite
def tables(draw, types=TYPES, columns_min=1):
    chosen = draw(st.lists(types, min_size=columns_min, max_size=4))
    num_rows = draw(st.integers(1, 5))
    columns = {
        f"c{i}": pa.array(draw(st.lists(values_of(t), min_size=num_rows, max_size=num_rows)), t)
        for i, t in enumerate(chosen)
    }
    return pa.table(columns)


def comparable(array: pa.Array) -> list:
    """Values that compare by their bits, whatever their year, and whatever a null hides."""
    valid = array.is_valid().to_pylist()
    if array.type.equals(VARIANT):  # JSON has one kind of number, and no sign of zero in a decimal
        values = [value and readable_value(value, "") for value in array.to_pylist()]
    elif pa.types.is_struct(array.type):
        values = list(zip(*map(comparable, array.flatten()), strict=True))
    elif pa.types.is_list(array.type) or pa.types.is_map(array.type):
        ends = array.offsets.to_pylist()
        children = [array.values] if pa.types.is_list(array.type) else [array.keys, array.items]
        found = list(zip(*map(comparable, children), strict=True))
        values = [found[begin:end] for begin, end in itertools.pairwise(ends)]
    elif pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        values = array.view(pa.int32() if pa.types.is_date(array.type) else pa.int64()).to_pylist()
    else:
        values = [repr(value) for value in array.to_pylist()]
    return [value if is_there else None for value, is_there in zip(values, valid, strict=True)]


def assert_same(found: pa.Table, rows: pa.Table) -> None:
    """Equal in types and values, where a column that is null everywhere may be left out, and NaN is NaN."""
    for name in rows.column_names:
        if name not in found.column_names:
            assert rows[name].null_count == rows.num_rows
            continue
        assert found[name].type == rows[name].type
        assert found.num_rows == rows.num_rows
        assert comparable(found[name].combine_chunks()) == comparable(rows[name].combine_chunks()), name
    assert set(found.column_names) <= set(rows.column_names)


def read(lines: str, schema: pa.Schema, *, at_once: bool = True) -> pa.Table:
    reader = JsonReader(schema)
    return reader.read(lines.encode()) if at_once else reader._read_each(lines.encode())


@settings(max_examples=300, deadline=None)
@given(tables(), st.booleans())
def test_rows_that_are_written_as_json_are_read_back(rows, at_once):
    whole = rows.slice(0)
    lines = "\n".join(encode_row_texts(whole))
    assert_same(read(lines, rows.schema, at_once=at_once), rows)
    body = f"[{', '.join(encode_row_texts(whole))}]"
    pretty = json.dumps(json.loads(body, parse_float=float), indent=2, ensure_ascii=True)
    for text in (body, pretty):
        found = read_body(to_json_lines(text.encode()), "json", CsvOptions(rows.schema))
        assert_same(found, rows)
    sliced = pa.concat_tables([rows.slice(0, 1), rows]).slice(1)
    assert list(encode_row_texts(sliced)) == list(encode_row_texts(rows))


PLAIN = st.sampled_from([t for t in SCALARS if not pa.types.is_floating(t)])


@settings(max_examples=150, deadline=None)
@given(tables(PLAIN, 2))
def test_rows_that_are_written_as_csv_are_read_back(rows):
    found = read_body(write_csv(rows), "csv", CsvOptions(rows.schema))
    assert_same(found, rows)


TOKENS = st.sampled_from(
    ["null", "true", "0", "-0", "7", "1.0", "1e2", "1.5", "-0.0", "300", "1e39", "3.5e38", "1e400",
     "9223372036854775808",
     "NaN", "Infinity", "-Infinity", '"NaN"', '"Infinity"', '"inf"', '"1.5"', '"1e2"', '"x"', '""', '"YQ=="', '"YQ="',
     '"2026-01-31"', '"2026-01-31T12:00:00Z"', '"2026-01-31 12:00:00"', '"+20000-01-01"', '"2026-02-30"',
     '"2026-01-31T12:00:00.123456789Z"', '"\\ud800"', '"\\u0041"', "[]", "[1]", "[1.5, null]", "{}", '{"f0": 1}',
     '{"f0": 1, "F0": 2}', '{"f9": 1}', '{"f0": 1, "f0": 1}', "01", "+1", "1.", "[1,]", "'a'", '"a\tb"', "0.1", "1.10"]
)  # fmt: skip
NAMES = st.sampled_from(["a", "A", "b", "c", "\\u0061", "absent"])
SCHEMAS = st.lists(TYPES, min_size=3, max_size=3).map(lambda types: pa.schema(list(zip("abc", types, strict=True))))
LINES = st.lists(
    st.lists(st.tuples(NAMES, TOKENS), max_size=3).map(lambda m: "{" + ", ".join(f'"{n}": {v}' for n, v in m) + "}")
    | st.sampled_from(["", " ", "{", "7", "[]", '{"a": 1}{"a": 2}', '{"a": 1} x', "null", "{} null {}", "{}null"]),
    min_size=1,
    max_size=3,
)


def outcome(text: str, schema: pa.Schema, *, at_once: bool = True) -> tuple[pa.Table | None, str]:
    try:
        return read(text, schema, at_once=at_once), ""
    except SchemaMismatchError as error:
        return None, str(error)


@settings(max_examples=600, deadline=None)
@given(SCHEMAS, LINES)
def test_lines_are_the_same_rows_and_errors_however_they_are_parsed(schema, lines):
    text = "\n".join(lines)
    each, error = outcome(text, schema, at_once=False)
    if error:
        assert outcome(text, schema) == (None, error)
        return
    at_once = read(text, schema)
    unknown = [name for name in each.column_names if name not in schema.names]
    assert [name for name in at_once.column_names if name not in schema.names] == unknown
    known = each.drop_columns(unknown)
    assert_same(at_once.drop_columns(unknown), known) if at_once.column_names else None
    assert at_once.num_rows == each.num_rows


def test_every_type_of_a_table_has_a_form():
    schema = TableSchema.of(
        "b BOOLEAN, i TINYINT, s SMALLINT, n INT, l BIGINT, f FLOAT, d DOUBLE, e DECIMAL(9,2), t STRING, c CHAR(3), "
        "v VARCHAR(3), x BINARY, y DATE, z TIMESTAMP, w TIMESTAMP_NTZ, a ARRAY<INT>, m MAP<STRING, INT>, "
        "u STRUCT<a: INT>, q VARIANT"
    )
    assert {find_form(column.type) for column in schema.columns} == set(FORMS)
    assert math.prod(form is not None for form in map(find_form, SCALARS))
