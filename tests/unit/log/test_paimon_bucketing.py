"""Buckets equal Paimon's own, by one column of any type and by several."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypaimon.schema.data_types import AtomicType, DataField
from pypaimon.schema.table_schema import TableSchema as PaimonSchema
from pypaimon.write.row_key_extractor import FixedBucketRowKeyExtractor

from streamhouse_spark.log import bucketing
from streamhouse_spark.log.bucketing import buckets_of, is_paimon_bucketable, paimon_buckets, row_buckets

ROWS = 1_500
EPOCH = dt.datetime(1970, 1, 1)


def _timestamp(rng: random.Random) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=rng.choice([0, -1, 999, 1000, rng.randrange(-(10**15), 3 * 10**15)]))


def _decimal(rng: random.Random, precision: int, scale: int) -> decimal.Decimal:
    limit = 10**precision - 1
    return decimal.Decimal(rng.choice([0, -1, 127, -128, limit, -limit, rng.randint(-limit, limit)])).scaleb(-scale)


def _text(rng: random.Random) -> str:
    return "".join(rng.choice("aé漢😀z") for _ in range(rng.choice([0, 1, 2, 3, 5, 7, 8, rng.randrange(40)])))


def _bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 3, 4, 6, 7, 8, 9, 15, 16, 17, rng.randrange(60)]))


CASES: dict[str, tuple[pa.DataType, str, Any]] = {
    "int8": (pa.int8(), "TINYINT", lambda r: r.randrange(-128, 128)),
    "int16": (pa.int16(), "SMALLINT", lambda r: r.randrange(-(2**15), 2**15)),
    "int32": (pa.int32(), "INT", lambda r: r.choice([0, -1, -(2**31), r.randrange(-(2**31), 2**31)])),
    "int64": (pa.int64(), "BIGINT", lambda r: r.choice([0, -1, -(2**63), r.randrange(-(2**63), 2**63)])),
    "date": (pa.date32(), "DATE", lambda r: _timestamp(r).date()),
    "timestamp": (pa.timestamp("us"), "TIMESTAMP(6)", _timestamp),
    "timestamptz": (
        pa.timestamp("us", "UTC"),
        "TIMESTAMP_LTZ(6)",
        lambda r: _timestamp(r).replace(tzinfo=dt.UTC),
    ),
    "string": (pa.string(), "STRING", _text),
    "string_one_length": (pa.string(), "STRING", lambda r: f"{r.randrange(10**9):012d}"),
    "large_string": (pa.large_string(), "STRING", lambda r: "k" * r.randrange(9)),
    "binary": (pa.binary(), "BYTES", _bytes),
    "large_binary": (pa.large_binary(), "BYTES", _bytes),
    "decimal": (pa.decimal128(9, 2), "DECIMAL(9, 2)", lambda r: _decimal(r, 9, 2)),
    "largest_decimal": (pa.decimal128(18, 0), "DECIMAL(18, 0)", lambda r: _decimal(r, 18, 0)),
}


def _paimons(values: pa.Array, paimon_type: str, num_buckets: int) -> list[int]:
    schema = PaimonSchema(
        fields=[DataField(0, "k", AtomicType(paimon_type))],
        options={"bucket": str(num_buckets), "bucket-key": "k"},
    )
    batch = pa.RecordBatch.from_arrays([values], names=["k"])
    return FixedBucketRowKeyExtractor(schema).extract_partition_bucket_batch(batch)[1]


@pytest.mark.parametrize("num_buckets", [1, 2, 7, 16, 4096])
@pytest.mark.parametrize("case", CASES)
def test_buckets_by_one_column_equal_paimons(case, num_buckets):
    data_type, paimon_type, value = CASES[case]
    rng = random.Random(case)
    values = pa.array([None if rng.random() < 0.1 else value(rng) for _ in range(ROWS)], data_type)
    expected = _paimons(values, paimon_type, num_buckets)
    assert paimon_buckets([values], num_buckets).tolist() == expected
    assert buckets_of(values, num_buckets, "paimon").tolist() == expected
    assert set(expected) <= set(range(num_buckets))


@pytest.mark.parametrize("case", CASES)
def test_buckets_of_slices_and_chunks_equal_those_of_the_whole(case, monkeypatch):
    data_type, _, value = CASES[case]
    rng = random.Random(case)
    values = pa.array([None if rng.random() < 0.1 else value(rng) for _ in range(200)], data_type)
    whole = paimon_buckets([values], 16)
    assert np.array_equal(paimon_buckets([values.slice(13, 101)], 16), whole[13:114])
    chunked = pa.chunked_array([values.slice(0, 50), values.slice(50, 0), values.slice(50)])
    assert np.array_equal(paimon_buckets([chunked], 16), whole)
    monkeypatch.setattr("streamhouse_spark.log.bucketing.CHUNK_ROWS", 7)
    assert np.array_equal(paimon_buckets([values], 16), whole)
    assert len(paimon_buckets([values.slice(0, 0)], 16)) == 0


def test_a_number_hashes_by_its_type():
    """So a column cannot be widened under a bucket key."""
    assert paimon_buckets([pa.array([-7], pa.int32())], 16) != paimon_buckets([pa.array([-7], pa.int64())], 16)


def test_buckets_of_nulls_equal_paimons():
    for data_type, paimon_type, _ in CASES.values():
        values = pa.nulls(3, data_type)
        assert paimon_buckets([values], 16).tolist() == _paimons(values, paimon_type, 16)


@pytest.mark.parametrize(
    "data_type", [pa.bool_(), pa.float64(), pa.decimal128(19, 0), pa.uint64(), pa.list_(pa.int32()), pa.timestamp("ns")]
)
def test_other_types_have_no_bucket(data_type):
    assert not is_paimon_bucketable(data_type)
    with pytest.raises(TypeError, match="has no bucket for 1 columns, or for type"):
        paimon_buckets([pa.nulls(1, data_type)], 4)


def test_there_is_at_least_one_bucket():
    with pytest.raises(ValueError, match="at least 1"):
        paimon_buckets([pa.array([1])], 0)


def columns_of(kinds: list[str], num_rows: int, seed: int, nulls: float) -> list[pa.Array]:
    rng = random.Random(seed)
    found = []
    for kind in kinds:
        data_type, _, value = CASES[kind]
        values = [None if rng.random() < nulls else value(rng) for _ in range(num_rows)]
        found.append(pa.array(values, data_type))
    return found


def paimons(kinds: list[str], columns: list[pa.Array], num_buckets: int) -> list[int]:
    names = [f"k{i}" for i in range(len(kinds))]
    schema = PaimonSchema(
        fields=[
            DataField(i, name, AtomicType(CASES[kind][1]))
            for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
        ],
        options={"bucket": str(num_buckets), "bucket-key": ",".join(names)},
    )
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    return FixedBucketRowKeyExtractor(schema)._extract_buckets_batch(batch)


@given(
    kinds=st.lists(st.sampled_from(sorted(CASES)), min_size=1, max_size=6),
    num_rows=st.integers(0, 40),
    seed=st.integers(0, 2**32),
    nulls=st.sampled_from([0, 0.3]),
    num_buckets=st.integers(1, 40),
)
@settings(max_examples=80)
def test_buckets_by_several_columns_equal_paimons(kinds, num_rows, seed, nulls, num_buckets):
    columns = columns_of(kinds, num_rows, seed, nulls)
    expected = paimons(kinds, columns, num_buckets)
    assert paimon_buckets(columns, num_buckets).tolist() == expected
    assert row_buckets(columns, num_buckets, "paimon").tolist() == expected
    if len(kinds) == 1:
        assert buckets_of(columns[0], num_buckets, "paimon").tolist() == expected


def test_buckets_by_several_columns_of_slices_equal_those_of_the_whole(monkeypatch):
    kinds = sorted(CASES)[:24]
    columns = columns_of(kinds, 200, 5, 0.1)
    whole = paimon_buckets(columns, 16)
    assert whole.tolist() == paimons(kinds, columns, 16)
    assert np.array_equal(paimon_buckets([c.slice(13, 101) for c in columns], 16), whole[13:114])
    chunked = [pa.chunked_array([c.slice(0, 7), c.slice(7, 0), c.slice(7)]) for c in columns]
    assert np.array_equal(paimon_buckets(chunked, 16), whole)
    monkeypatch.setattr(bucketing, "CHUNK_ROWS", 7)
    assert np.array_equal(paimon_buckets(columns, 16), whole)


def test_what_cannot_be_hashed():
    id_column = pa.array([1])
    with pytest.raises(TypeError, match="for type double"):
        paimon_buckets([id_column, pa.array([0.5])], 4)
    with pytest.raises(TypeError, match="for 25 columns"):
        paimon_buckets([id_column] * 25, 4)
    for columns, num_buckets in (([id_column], 0), ([], 4)):
        with pytest.raises(ValueError, match="at least 1"):
            paimon_buckets(columns, num_buckets)
    with pytest.raises(TypeError, match="found 2 columns, expected one"):
        row_buckets([id_column, id_column], 4, "iceberg")
