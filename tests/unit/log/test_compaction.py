"""Log compaction merges adjacent segments of a bucket up to a size, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark import OffsetRange, Warehouse
from streamhouse_spark.lake.tiering.plan import plan_tiering
from streamhouse_spark.log import compaction
from streamhouse_spark.log.compaction import (
    MERGED_BYTES_MAX,
    CompactionRun,
    merge_runs,
    plan_inline_merge,
    plan_small_merge,
)
from streamhouse_spark.log.segments.scan import plan_range, split_by_size
from streamhouse_spark.log.segments.statistics import collect_partitions, collect_stats
from unit.log.states import appended, segment


def chain(*sizes: int, uuid: bool = True, bucket: int = 0, schema_ids: tuple[int, ...] = ()) -> list:
    made = []
    for at, size_bytes in enumerate(sizes):
        made.append(
            segment(at, 1, bucket=bucket, commit=2 + at, uuid=f"s{at}" if uuid else None, size_bytes=size_bytes,
                    schema_id=schema_ids[at] if schema_ids else 1)
        )  # fmt: skip
    return made


def spans(runs) -> list[tuple[int, int, int]]:
    return [(r.bucket, r.start, r.end) for r in runs]


def test_inline_rows_are_merged_whatever_their_number():
    mixed = [segment(0, 2), segment(2, 1), segment(3, 5, uuid="a"), segment(8, 1)]
    assert spans(plan_inline_merge(appended(*mixed))) == [(0, 0, 3), (0, 8, 9)]
    assert plan_inline_merge(appended(segment(0, 5, uuid="a"))) == []


def test_small_segments_are_merged_where_enough_of_them_are_adjacent():
    assert spans(plan_small_merge(appended(*chain(*[100] * 8)))) == [(0, 0, 8)]
    assert plan_small_merge(appended(*chain(*[100] * 7))) == []
    split_by_large = [*[100] * 8, compaction.SMALL_SEGMENT_BYTES, *[100] * 9]
    assert spans(plan_small_merge(appended(*chain(*split_by_large)))) == [(0, 0, 8), (0, 9, 18)]


def test_a_run_ends_where_the_schema_changes():
    state = appended(*chain(*[100] * 6, schema_ids=(1, 1, 1, 2, 2, 2)))
    assert spans(plan_small_merge(state, 2)) == [(0, 0, 3), (0, 3, 6)]


def test_merged_segments_are_bounded():
    size_bytes = compaction.SMALL_SEGMENT_BYTES - 1
    state = appended(*chain(*[size_bytes] * 40))
    runs = plan_small_merge(state, 2)
    assert sum(r.end - r.start for r in runs) == 40
    for run in runs:
        assert sum(s.size_bytes for s in run.segments) <= compaction.MERGED_BYTES_MAX


def test_buckets_do_not_mix():
    state = appended(*chain(100, 100), *chain(100, 100, bucket=1), buckets=2)
    assert spans(plan_small_merge(state, 2)) == [(0, 0, 2), (1, 0, 2)]


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
    held = peak_bytes(lambda: merge_runs(packed.log, packed.storage, packed.world, [run], shape))
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
