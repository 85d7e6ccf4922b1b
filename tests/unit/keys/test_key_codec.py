"""Keys are ordered as their values, differ as they do, and begin with the bytes of their first columns."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.keys.key_codec import (
    KEY_BYTES_MAX,
    encode_keys,
    encode_lmdb_keys,
    encode_lmdb_prefix,
    is_key_type,
)
from streamhouse_spark.schema.ddl import parse_type
from unit.sample_rows import SCALAR_TYPES

DECIMAL = pa.decimal128(38, 3)
ORDERED = {
    "boolean": (pa.bool_(), st.booleans()),
    "tinyint": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "smallint": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "decimal": (DECIMAL, st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-3"))),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "timestamp with zone": (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "string": (pa.string(), st.text(st.characters(codec="utf-8") | st.just("\0"))),
    "binary": (pa.binary(), st.binary() | st.lists(st.sampled_from([0, 1, 0xFF])).map(bytes)),
}


def encoded(values, data_type):
    return encode_keys([pa.array(values, data_type)]).to_pylist()


def sort_value(value):
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("kind", ORDERED)
@given(data=st.data())
def test_bytes_compare_as_values(kind, data):
    data_type, values = ORDERED[kind]
    left, right = data.draw(values), data.draw(values)
    a, b = encoded([left, right], data_type)
    assert (a < b, a == b) == (sort_value(left) < sort_value(right), left == right)
    assert not a.startswith(b) or a == b


@given(rows=st.lists(st.tuples(st.text(), st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3)), min_size=1))
def test_keys_of_several_columns_sort_column_by_column(rows):
    texts, numbers, blobs = (list(column) for column in zip(*rows, strict=True))
    columns = [pa.array(texts), pa.array(numbers, pa.int32()), pa.array(blobs, pa.binary())]
    keys = encode_keys(columns).to_pylist()
    order = sorted(range(len(rows)), key=lambda i: keys[i])
    assert [rows[i] for i in order] == sorted(rows, key=lambda row: (row[0].encode(), row[1], row[2]))
    for width in (1, 2):
        prefixes = encode_keys(columns[:width]).to_pylist()
        for prefix, row in zip(prefixes, rows, strict=True):
            begins = [key.startswith(prefix) for key in keys]
            assert begins == [other[:width] == row[:width] for other in rows]


@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64()])
def test_every_nan_is_one_key_behind_all_and_zero_has_no_sign(data_type):
    below, zero, negative_zero, infinity, nan, negative_nan = encoded(
        [-math.inf, 0.0, -0.0, math.inf, math.nan, -math.nan], data_type
    )
    assert zero == negative_zero
    assert nan == negative_nan
    assert below < zero < infinity < nan


def test_slices_of_columns_encode_as_their_rows():
    texts, numbers = pa.array(["a", "b\0", "c"]), pa.array([1, 2, 3], pa.int64())
    whole = encode_keys([texts, numbers]).to_pylist()
    assert encode_keys([texts.slice(1, 1), numbers.slice(1, 1)]).to_pylist() == whole[1:2]
    assert encode_keys([numbers.slice(2), texts.slice(2)]).to_pylist() == encode_keys([numbers, texts]).to_pylist()[2:]
    assert encode_keys([texts.slice(3)]).to_pylist() == []


def test_every_scalar_type_can_be_a_key_and_no_nested_one():
    assert all(is_key_type(parse_type(kind)) for kind in SCALAR_TYPES)
    assert not any(is_key_type(t) for t in (pa.list_(pa.int32()), pa.map_(pa.int32(), pa.int32()), pa.struct([])))


def test_long_keys_are_stored_short_and_differ():
    """Of two columns of text, so that the difference may be anywhere."""
    longest = "x" * (KEY_BYTES_MAX - 4)
    texts = [longest, longest + "x", longest + "y", "x" * 5000, "x" * 5001, ""]
    keys = encode_keys([pa.array(texts), pa.array([""] * 6)])
    stored = encode_lmdb_keys(keys)
    assert len(set(stored)) == len(texts)
    assert max(map(len, stored)) <= KEY_BYTES_MAX + 1
    assert min(map(len, stored)) > 0
    assert stored[0] == keys[0].as_py()
    for text, key in zip(texts, stored, strict=True):
        prefix = encode_lmdb_prefix(encode_keys([pa.array([text])])[0].as_py())
        assert key.startswith(prefix)
