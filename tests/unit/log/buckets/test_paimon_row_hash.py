"""Buckets of rows by several columns are the same as Paimon's own."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypaimon.schema.data_types import AtomicType, DataField
from pypaimon.schema.table_schema import TableSchema as PaimonSchema
from pypaimon.write.row_key_extractor import FixedBucketRowKeyExtractor

from streamhouse_spark.log import bucketing
from streamhouse_spark.log.bucketing import buckets_of, paimon_buckets, row_buckets
from unit.log.buckets.test_paimon_hash import CASES


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
def test_buckets_equal_paimons(kinds, num_rows, seed, nulls, num_buckets):
    columns = columns_of(kinds, num_rows, seed, nulls)
    expected = paimons(kinds, columns, num_buckets)
    assert paimon_buckets(columns, num_buckets).tolist() == expected
    assert row_buckets(columns, num_buckets, "paimon").tolist() == expected
    if len(kinds) == 1:
        assert buckets_of(columns[0], num_buckets, "paimon").tolist() == expected


def test_slices_chunks_and_parts(monkeypatch):
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
