"""A table with thousands of buckets: few rows for each share one object, addressed by ranges of bytes. Counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage
from streamhouse_spark import Warehouse
from streamhouse_spark.log import compaction as merge
from streamhouse_spark.log.bucketing import row_buckets
from streamhouse_spark.log.staging import INLINE_BYTES_MAX, inline_bytes_per_bucket, inline_bytes_total

BUCKETS = 4096
ROWS = 20_000


def rows(first: int = 0) -> pa.Table:
    ids = np.arange(first, first + ROWS)
    return pa.table({"id": ids, "text": pa.array([f"row {i:010}" for i in ids.tolist()])})


def made(counted: FaultyStorage) -> Counter[str]:
    """Objects that were written, by folder."""
    keys = [key for _, method, key in counted.trace if method in ("put", "put_if_absent", "create.open")]
    counted.trace.clear()
    return Counter(key.rpartition("/")[0].rpartition("/")[2] for key in keys)


def table_of(counted: FaultyStorage, world, buckets: int, **options):
    key = {} if options else {"bucket.key": "id"}
    table = Warehouse("wh", storage=counted, world=world).create_table(
        "t", "id BIGINT, text STRING", buckets=buckets, properties={**key, "table.datalake.enabled": "false"}, **options
    )
    counted.trace.clear()
    return table


def read_by_another(memory, world) -> pa.Table:
    return Warehouse("wh", storage=memory, world=world).table("t").to_arrow().sort_by("id")


def test_a_small_append_to_all_buckets_is_two_objects(counted, memory, world):
    table = table_of(counted, world, BUCKETS)
    table.append(rows())
    assert made(counted) == {"commits": 1, "manifests": 1}
    assert sum(1 for log in table.refresh().buckets.values() if log.segments) > 0.98 * BUCKETS
    assert read_by_another(memory, world).equals(rows())


@pytest.mark.long
def test_a_small_upsert_of_all_buckets_is_two_objects(counted, memory, world, own_cache):
    table = table_of(counted, world, 512, primary_key=["id"])
    candidates = np.arange(8000)
    _, one_of_each = np.unique(row_buckets([pa.array(candidates)], 512, "iceberg"), return_index=True)
    ids = np.sort(candidates[one_of_each])
    few = pa.table({"id": ids, "text": pa.array([f"{i:0700}" for i in ids.tolist()])})
    table.upsert(few)
    assert made(counted) == {"commits": 1, "manifests": 1}
    assert read_by_another(memory, world).to_pydict() == few.to_pydict()


def test_what_travels_in_records_is_merged_before_it_is_much(counted, world, monkeypatch):
    monkeypatch.setattr(merge, "INLINE_LIVE_BYTES_MAX", 1 << 20)
    table = table_of(counted, world, 512)
    held = []
    for number in range(16):
        table.append(rows(number * ROWS).slice(0, 4000))
        held.append(sum(s.size_bytes for s in table.refresh().live_segments() if s.inline is not None))
    assert max(held) < merge.INLINE_CHECK_INTERVAL * held[0] * 1.1
    assert 0 in held
    assert table.to_arrow().num_rows == 16 * 4000


@pytest.mark.parametrize("num_buckets", [1, 3, 64, 256])
def test_tables_with_few_buckets_keep_their_limits(num_buckets):
    assert inline_bytes_per_bucket(INLINE_BYTES_MAX, num_buckets) == INLINE_BYTES_MAX // num_buckets
    assert inline_bytes_total(INLINE_BYTES_MAX, num_buckets) == INLINE_BYTES_MAX


def test_the_limit_grows_with_the_buckets_beyond():
    assert inline_bytes_per_bucket(INLINE_BYTES_MAX, 4096) == 1024
    assert inline_bytes_total(INLINE_BYTES_MAX, 4096) == 4 << 20
    assert inline_bytes_total(0, 4096) == 0
