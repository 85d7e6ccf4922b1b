"""Buckets equal Iceberg's, for every type that it can bucket."""

from __future__ import annotations

import datetime as dt
import decimal
import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg import types as ice
from pyiceberg.transforms import BucketTransform

from streamhouse_spark.log.bucketing import iceberg_buckets

ROWS = 2_000
EPOCH = dt.datetime(1970, 1, 1)
DECIMALS = decimal.Context(prec=60)


def _timestamp(rng: random.Random) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=rng.randrange(-(10**15), 3 * 10**15))


def _decimal(rng: random.Random, precision: int, scale: int) -> decimal.Decimal:
    limit = 10**precision - 1
    power = 1 << rng.randrange(0, int(precision * 3.3))
    unscaled = rng.choice([0, -1, 127, 128, -128, -129, rng.randint(-limit, limit), power, -power, power - 1, limit])
    return decimal.Decimal(max(min(unscaled, limit), -limit)).scaleb(-scale, context=DECIMALS)


def _bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 3, 4, 5, 16, rng.randrange(40)]))


CASES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "int8": (pa.int8(), ice.IntegerType(), lambda r: r.randrange(-128, 128)),
    "int16": (pa.int16(), ice.IntegerType(), lambda r: r.randrange(-(2**15), 2**15)),
    "int32": (pa.int32(), ice.IntegerType(), lambda r: r.choice([0, -1, r.randrange(-(2**31), 2**31)])),
    "int64": (pa.int64(), ice.LongType(), lambda r: r.choice([0, -1, -(2**63), r.randrange(-(2**63), 2**63)])),
    "uint32": (pa.uint32(), ice.LongType(), lambda r: r.randrange(2**32)),
    "date": (pa.date32(), ice.DateType(), lambda r: _timestamp(r).date()),
    "timestamp": (pa.timestamp("us"), ice.TimestampType(), _timestamp),
    "timestamptz": (
        pa.timestamp("us", "UTC"),
        ice.TimestamptzType(),
        lambda r: _timestamp(r).replace(tzinfo=dt.UTC),
    ),
    "string": (
        pa.string(),
        ice.StringType(),
        lambda r: "".join(r.choice("aé漢😀z") for _ in range(r.randrange(20))),
    ),
    "string_one_length": (pa.string(), ice.StringType(), lambda r: f"{r.randrange(10**9):012d}"),
    "large_string": (pa.large_string(), ice.StringType(), lambda r: "k" * r.randrange(9)),
    "binary": (pa.binary(), ice.BinaryType(), _bytes),
    "large_binary": (pa.large_binary(), ice.BinaryType(), _bytes),
    "decimal_9_2": (pa.decimal128(9, 2), ice.DecimalType(9, 2), lambda r: _decimal(r, 9, 2)),
    "decimal_18_4": (pa.decimal128(18, 4), ice.DecimalType(18, 4), lambda r: _decimal(r, 18, 4)),
    "decimal_38_10": (pa.decimal128(38, 10), ice.DecimalType(38, 10), lambda r: _decimal(r, 38, 10)),
}


def _values(name: str, *, nulls: bool) -> tuple[pa.Array, Any]:
    arrow_type, iceberg_type, make = CASES[name]
    rng = random.Random(name)
    values = [None if nulls and rng.random() < 0.1 else make(rng) for _ in range(ROWS)]
    return pa.array(values, arrow_type), iceberg_type


def _expected(array: pa.Array, iceberg_type: Any, num_buckets: int) -> list[int]:
    transform = BucketTransform(num_buckets).transform(iceberg_type)
    return [0 if value is None else transform(value) for value in array.to_pylist()]  # type: ignore[misc]


@pytest.mark.parametrize("nulls", [False, True], ids=["no_nulls", "nulls"])
@pytest.mark.parametrize("name", CASES)
def test_buckets_equal_those_of_pyiceberg(name: str, nulls: bool) -> None:
    array, iceberg_type = _values(name, nulls=nulls)
    for num_buckets in (1, 4, 7):
        buckets = iceberg_buckets(array, num_buckets)
        assert buckets.dtype == np.int32
        assert buckets.tolist() == _expected(array, iceberg_type, num_buckets)


@pytest.mark.parametrize("name", CASES)
def test_slices_and_chunks_hash_like_the_whole(name: str) -> None:
    array, _ = _values(name, nulls=True)
    whole = iceberg_buckets(array, 16).tolist()
    assert iceberg_buckets(array.slice(7, 100), 16).tolist() == whole[7:107]
    assert iceberg_buckets(array.slice(ROWS), 16).tolist() == []
    chunked = pa.chunked_array([array.slice(0, 3), array.slice(3, 0), array.slice(3)])
    assert iceberg_buckets(chunked, 16).tolist() == whole


@pytest.mark.parametrize("name", CASES)
def test_nulls_are_in_bucket_zero(name: str) -> None:
    arrow_type = CASES[name][0]
    assert iceberg_buckets(pa.nulls(5, arrow_type), 16).tolist() == [0] * 5
    assert iceberg_buckets(pa.array([], arrow_type), 16).tolist() == []
    assert iceberg_buckets(pa.chunked_array([], arrow_type), 16).tolist() == []


def test_buckets_of_more_rows_than_a_chunk_equal_icebergs() -> None:
    array = pa.array([None if i % 11 == 0 else "x" * (i % 23) for i in range(40_000)])
    assert iceberg_buckets(array, 16).tolist() == _expected(array, ice.StringType(), 16)


def test_hashes_equal_the_vectors_of_the_specification() -> None:
    """The example hashes of the specification's appendix on bucket transforms."""
    num_buckets = 2**31 - 1
    vectors: list[tuple[Any, pa.DataType, int]] = [
        (34, pa.int32(), 2017239379),
        (34, pa.int64(), 2017239379),
        (decimal.Decimal("14.20"), pa.decimal128(9, 2), -500754589),
        (dt.date(2017, 11, 16), pa.date32(), -653330422),
        (dt.datetime(2017, 11, 16, 22, 31, 8), pa.timestamp("us"), -2047944441),
        (dt.datetime(2017, 11, 16, 22, 31, 8, 1), pa.timestamp("us"), -1207196810),
        ("iceberg", pa.string(), 1210000089),
        (b"\x00\x01\x02\x03", pa.binary(), -188683207),
    ]
    for value, arrow_type, published in vectors:
        (unsigned,) = struct.unpack("<I", struct.pack("<i", published))
        expected = (unsigned & 0x7FFFFFFF) % num_buckets
        assert iceberg_buckets(pa.array([value], arrow_type), num_buckets).tolist() == [expected], value


@pytest.mark.parametrize(
    "arrow_type",
    [pa.bool_(), pa.float32(), pa.float64(), pa.list_(pa.int32()), pa.struct([("a", pa.int32())])],
    ids=str,
)
def test_a_type_without_buckets_is_rejected(arrow_type: pa.DataType) -> None:
    with pytest.raises(TypeError, match="no bucket for type"):
        iceberg_buckets(pa.nulls(1, arrow_type), 4)


def test_fewer_than_one_bucket_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        iceberg_buckets(pa.array([1]), 0)
