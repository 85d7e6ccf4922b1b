"""Memory goes by the size of unpacked rows, not by how small they are packed. Counted by Arrow's pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark import OffsetRange, Warehouse
from streamhouse_spark.lake.tiering.plan import plan_tiering
from streamhouse_spark.log.compaction import MERGED_BYTES_MAX, CompactionRun, merge
from streamhouse_spark.log.segments.scan import plan_range, split_by_size
from streamhouse_spark.log.segments.statistics import collect_partitions, collect_stats

MIB = 1 << 20
TEXT = "x" * 4096
ROWS = 8192
"""32 MiB in memory, of which zstd leaves a few KiB."""


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that Arrow held at once for what was made while this ran."""
    default = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(default)
    pa.set_memory_pool(pool)
    try:
        work()
    finally:
        pa.set_memory_pool(default)
    return int(pool.max_memory())


@pytest.fixture
def packed(wh):
    """Eight segments of 32 MiB in memory, which are some 10 KiB each."""
    properties = {"table.log.arrow.compression.type": "zstd", "table.datalake.enabled": "false"}
    table = wh.create_table("t", "id BIGINT, text STRING, day DATE", partition_by=["day"], properties=properties)
    for number in range(8):
        ids = pa.array(np.arange(number * ROWS, (number + 1) * ROWS))
        texts = pa.array([TEXT]).take(pa.array(np.zeros(ROWS, np.int64)))
        days = pa.array(np.full(ROWS, number % 3, np.int32), pa.int32()).cast(pa.date32())
        table.append(pa.table({"id": ids, "text": texts, "day": days}))
    return table


def test_a_segment_says_what_its_rows_take_in_memory(packed, wh):
    segments = packed.refresh().live_segments()
    assert all(s.size_bytes < MIB and 32 * MIB < s.memory_bytes < 34 * MIB for s in segments)
    assert sum(s.size_bytes for s in segments) < MERGED_BYTES_MAX
    packed.log.checkpoint(packed.state)
    again = Warehouse("wh", storage=wh.storage, world=wh.world).table("t").refresh()
    assert [s.memory_bytes for s in again.live_segments()] == [s.memory_bytes for s in segments]


def test_older_segments_are_taken_for_much(packed):
    (old, *_) = (replace(s, unpacked_bytes=None) for s in packed.refresh().live_segments())
    assert old.memory_bytes >= max(8 * old.size_bytes, 64 * old.num_rows)
    plain = replace(old, compressed=False)
    assert plain.memory_bytes == plain.size_bytes


def test_merging_holds_few_batches_however_much_is_merged(packed):
    """256 MiB of rows become one segment."""
    before = packed.to_arrow(columns=["id"])
    state = packed.refresh()
    run = CompactionRun(0, state.buckets[0].segments)
    shape = replace(packed.segment_options(), stats_columns=("id", "day"))
    held = peak_bytes(lambda: merge(packed.log, packed.storage, packed.world, [run], shape))
    (merged,) = packed.refresh().live_segments()
    assert merged.num_rows == 8 * ROWS
    assert held < 3 * 64 * MIB, "two batches of up to 64 MiB: what is read, and what it is joined to"
    assert merged.memory_bytes > 256 * MIB
    assert packed.to_arrow(columns=["id"]).equals(before)
    rows = packed.to_arrow(columns=["id", "day"])
    assert merged.stats == collect_stats(rows, ["id", "day"])
    assert set(merged.partitions) == set(collect_partitions(rows, ["day"]))


def test_a_round_by_key_and_a_read_are_cut_by_memory(packed):
    state = packed.refresh()
    planned = plan_tiering(state.buckets, {0: 0}, state.ends, table="t", bytes_max=128 * MIB, cuts_segments=True)
    assert 2 * ROWS < planned[0].end <= 4 * ROWS
    tiny = plan_tiering(state.buckets, {0: 0}, state.ends, table="t", bytes_max=8 * MIB, cuts_segments=True)
    assert tiny[0].end <= ROWS // 4
    whole = plan_range(state, 0, OffsetRange(0, 8 * ROWS))
    assert 3 <= len(split_by_size(whole, 64 * MIB)) <= 8
