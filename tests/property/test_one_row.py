"""Rows, keys and buckets one value at a time are what the vectorised ones are."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.keys.key_codec import encode_keys, encode_lmdb_keys
from streamhouse_spark.kv.row_codec import PackedStrings, RowCodec
from streamhouse_spark.kv.scalar_codec import KeyEncoder, RowDecoder
from streamhouse_spark.log.bucketing import iceberg_buckets

INTEGERS = {bits: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)}
MICROS = st.integers(-62_000_000_000_000_000, 250_000_000_000_000_000)
NESTED = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
VALUES = {
    pa.bool_(): st.booleans(),
    pa.int8(): INTEGERS[8],
    pa.int16(): INTEGERS[16],
    pa.int32(): INTEGERS[32],
    pa.int64(): INTEGERS[64],
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.date32(): st.dates(),
    pa.timestamp("us"): MICROS,
    pa.timestamp("us", tz="UTC"): MICROS,
    pa.decimal128(38, 10): st.decimals(-(10**27), 10**27, allow_nan=False, allow_infinity=False, places=10),
    pa.decimal128(5, 0): st.decimals(allow_nan=False, places=0, max_value=99999, min_value=-99999),
    pa.string(): st.text(),
    pa.binary(): st.binary(),
    NESTED: st.none() | st.fixed_dictionaries({"x": st.none() | INTEGERS[32], "y": st.none() | st.lists(st.text())}),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.text(), INTEGERS[64]).map(lambda d: list(d.items())),
}  # fmt: skip


@st.composite
def rows(draw):
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=12))
    count = draw(st.integers(1, 4))
    columns = [pa.array([draw(st.none() | VALUES[t]) for _ in range(count)], t) for t in types]
    wanted = draw(st.lists(st.sampled_from(range(len(types))), unique=True))
    return types, columns, wanted


def shown(value):
    """As a text, because of NaN, -0.0 and types; UTC is another class where pytz is installed."""
    return repr(value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value)


@given(rows())
def test_single_rows_are_decoded_as_vectors_are(case):
    types, columns, wanted = case
    names = [f"c{i}" for i in range(len(types))]
    codec = RowCodec(types)
    packed = codec.pack(columns, first=b"1234").to_pylist()
    reader = RowDecoder(names, types, [names[i] for i in wanted])
    expected = codec.unpack(PackedStrings.of(packed).skip_bytes(4), wanted)
    found = [reader.read(data, 4) for data in packed]
    assert [list(row) for row in found] == [[names[i] for i in wanted]] * len(packed)
    for place, column in zip(wanted, expected, strict=True):
        values = [row[names[place]] for row in found]
        assert list(map(shown, values)) == list(map(shown, column.to_pylist()))


KEYS = {pa.int16(): INTEGERS[16], pa.int32(): INTEGERS[32], pa.int64(): INTEGERS[64], pa.string(): st.text()}


@given(st.data(), st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3), st.integers(1, 9))
def test_single_keys_have_the_bytes_and_bucket_of_vectors(data, types, num_buckets):
    values = [data.draw(KEYS[t]) for t in types]
    place = data.draw(st.sampled_from([None, *range(len(types))]))
    columns = [pa.array([value], t) for value, t in zip(values, types, strict=True)]
    found = KeyEncoder(types, place, num_buckets).encode(values)
    expected = encode_lmdb_keys(encode_keys(columns))[0]
    bucket = 0 if place is None else int(iceberg_buckets(columns[place], num_buckets)[0])
    if found is None:  # left to Arrow
        assert len(expected) > 400 or (place is not None and len(values[place].encode()) > 64)
    else:
        assert found == (expected, bucket)


@pytest.mark.parametrize("value", [True, 1.0, None, b"x", "\ud800", 1 << 63, -(1 << 63) - 1])
@pytest.mark.parametrize("data_type", KEYS, ids=str)
def test_values_that_are_no_plain_keys_are_left_to_arrow(data_type, value):
    assert KeyEncoder([data_type], None, 1).encode([value]) is None


@pytest.mark.parametrize("data_type", [t for t in KEYS if t != pa.string()], ids=str)
def test_integers_out_of_range_have_no_key(data_type):
    half = 1 << data_type.bit_width - 1
    found = [KeyEncoder([data_type], None, 1).encode([value]) for value in (-half - 1, -half, half - 1, half)]
    assert [key is None for key in found] == [True, False, False, True]
