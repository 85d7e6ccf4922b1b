"""Log compaction: merges adjacent small segments into large segments with the same rows, offsets and commit times.

With many buckets the merged segments may still be small. They then share objects
(`log/segments/multi_bucket_writer.py`).

Records with live inline rows cannot be deleted. After `INLINE_RECORDS_MAX` such records, or `INLINE_LIVE_BYTES_MAX` of
inline rows, the next writer merges the inline rows. Maintenance merges small objects. **Commit point:** one record of
replace actions. A crash before it leaves orphans. A lost race over the inputs loses the work, not the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.log.actions import Action, Replace
from streamhouse_spark.log.append_commit import is_retained
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.multi_bucket_writer import create_shared, group_into_objects, pack_by_size
from streamhouse_spark.log.segments.reader import InlineRecords, read_segment
from streamhouse_spark.log.segments.statistics import RowSummary
from streamhouse_spark.log.segments.writer import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    SegmentOptions,
    combine_batches,
    write_file,
)
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Sink, Storage
from streamhouse_spark.storage.prefetch import map_with_store_concurrency

INLINE_RECORDS_MAX = 64
INLINE_LIVE_BYTES_MAX = 64 << 20
"""Limit of live inline bytes. A merge holds the merged records in memory, and opening the table reads some records."""
INLINE_CHECK_INTERVAL = 8
SMALL_SEGMENT_BYTES = 8 << 20
MERGED_BYTES_MAX = 64 << 20
SMALL_RUN_MIN = 8


Part = tuple[Segment, OffsetRange]
"""A segment, and a range of its offsets."""


@dataclass(frozen=True, slots=True)
class CompactionRun:
    """Adjacent segments of one bucket and schema that are merged into one."""

    bucket: int
    segments: tuple[Segment, ...]

    @property
    def memory_bytes(self) -> int:
        return sum(segment.memory_bytes for segment in self.segments)

    @property
    def start(self) -> int:
        return self.segments[0].base_offset

    @property
    def end(self) -> int:
        return self.segments[-1].end_offset


def is_inline_merge_due(state: TableState) -> bool:
    """Return whether the writer of the last record should merge inline segments. Checked once every few records."""
    if (state.version - 1) % min(INLINE_CHECK_INTERVAL, INLINE_RECORDS_MAX):
        return False
    return has_much_inline(state)


def has_much_inline(state: TableState, times: int = 1) -> bool:
    """Return whether inline rows reach ``times`` the limits for a merge."""
    inline = [s for s in state.live_segments() if s.inline is not None]
    is_many = len({s.commit for s in inline}) >= times * INLINE_RECORDS_MAX
    return is_many or sum(s.size_bytes for s in inline) >= times * INLINE_LIVE_BYTES_MAX


def plan_inline_merge(state: TableState) -> list[CompactionRun]:
    """Return all runs of inline segments. After the merge no record holds live rows."""
    return [
        CompactionRun(bucket, run)
        for bucket, log in state.buckets.items()
        for run in _find_runs(log.segments, lambda s: s.inline is not None)
    ]


def plan_small_merge(state: TableState, run_min: int = SMALL_RUN_MIN) -> list[CompactionRun]:
    """Return runs of at least ``run_min`` adjacent small segments, each run up to `MERGED_BYTES_MAX`."""
    runs: list[CompactionRun] = []
    for bucket, log in state.buckets.items():
        for small in _find_runs(log.segments, lambda s: s.size_bytes < SMALL_SEGMENT_BYTES):
            parts = pack_by_size(small, lambda s: s.size_bytes, MERGED_BYTES_MAX)
            runs.extend(CompactionRun(bucket, part) for part in parts if len(part) >= run_min)
    return runs


def _find_runs(segments: Sequence[Segment], is_candidate: Callable[[Segment], bool]) -> Iterable[tuple[Segment, ...]]:
    for (chosen, _), run in groupby(segments, key=lambda s: (is_candidate(s), s.schema_id)):
        if chosen:
            yield tuple(run)


def merge_runs(
    log: CommitLog, storage: Storage, world: World, runs: Sequence[CompactionRun], options: SegmentOptions
) -> int:
    """Write the merged segments and commit them. Return the number of replaced segments.

    It is 0 after a lost race, or if the merge took so long that its output was condemned.
    """
    if not runs:
        return 0
    state = log.state
    began_ms = storage.now_ms()
    records = InlineRecords(storage, state.table_uuid)
    groups = [(world.ids.new_uuid(), group) for group in group_into_objects(runs, lambda run: run.memory_bytes)]
    is_small = sum(run.memory_bytes for run in runs) <= MERGED_BYTES_MAX

    def write(group: tuple[str, Sequence[CompactionRun]]) -> list[tuple[CompactionRun, Segment]]:
        uuid, group_runs = group
        parts = [[(segment, segment.offsets) for segment in run.segments] for run in group_runs]
        segments = write_runs(state, storage, uuid, parts, options, records, state.version + 1)
        return list(zip(group_runs, segments, strict=True))

    merged: list[tuple[CompactionRun, Segment]] = []
    for some in [groups] if is_small else [[one] for one in groups]:  # large groups one by one
        records.expect(segment for _, group in some for run in group for segment in run.segments)
        merged += [
            pair for group_segments in map_with_store_concurrency(storage, write, some) for pair in group_segments
        ]

    def plan(current: TableState, time_ms: int) -> Sequence[Action]:
        return tuple(
            Replace(run.bucket, run.start, run.end, (segment,))
            for run, segment in merged
            if _is_still_live(current, run) and is_retained(current, [segment.uuid], began_ms, time_ms)
        )

    committed = log.commit(plan, staged_ms=began_ms)
    return sum(len(r.segments) for r in runs) if committed.wrote else 0


def _is_still_live(state: TableState, run: CompactionRun) -> bool:
    def identity(segment: Segment) -> tuple[int, int, str | None]:
        return segment.base_offset, segment.commit, segment.uuid

    live = {identity(s) for s in state.buckets[run.bucket].segments}
    return all(identity(s) in live for s in run.segments)


def write_runs(
    state: TableState,
    storage: Storage,
    uuid: str,
    runs: Sequence[Sequence[Part]],
    options: SegmentOptions,
    records: InlineRecords,
    commit: int,
) -> list[Segment]:
    """Write one segment per run to one object. The segments are durable when this returns.

    A run has consecutive parts of segments of one schema. The caller has announced the segments to ``records``.
    """
    segments = []
    with create_shared(storage, state.table_uuid, uuid) as sink:
        for run in runs:
            place = sink.begin_part() if len(runs) > 1 else None
            schema_id = run[0][0].schema_id
            schema = state.written_schema(schema_id).arrow
            of_schema = options.of_schema(schema_id, state.schemas)
            segment = write_merged(storage, state.table_uuid, run, schema, of_schema, sink, records)
            segments.append(replace(segment, uuid=uuid, part=place, commit=commit))
    return segments


def write_merged(
    storage: Storage,
    table_uuid: str,
    parts: Sequence[Part],
    schema: pa.Schema,
    options: SegmentOptions,
    sink: Sink,
    records: InlineRecords,
) -> Segment:
    """Write consecutive parts of segments of one schema as one segment, with only a few batches in memory."""
    summary = RowSummary(options.stats_columns, options.partition_by)
    batches = (
        part.batch
        for segment, offsets in parts
        for part in read_segment(storage, table_uuid, segment, schema, offsets, records=records)
    )
    first, start = parts[0][0], parts[0][1].start
    times = _distinct_times([at for segment, offsets in parts for at in _encode_time_runs(segment, offsets, start)])
    memory_bytes = sum(segment.memory_bytes for segment, _ in parts)

    def summarize(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            summary.add(batch)
            yield batch

    size_bytes, index = write_file(
        sink, schema, summarize(_concat_batches(batches)), memory_bytes, options.codec, times
    )
    return replace(
        first,
        base_offset=start,
        size_bytes=size_bytes,
        first_time_ms=times[0][1],
        last_time_ms=max(ms for _, ms in times),
        inline=None,
        **summary.to_fields(schema, is_compressed=options.codec != "none"),
        index_bytes=index.to_bytes(),
        rewrites=any(segment.rewrites for segment, _ in parts),
        updated=_update_pairs(parts, start),
    )


def _concat_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in record batches of about 64k rows, or 64 MiB. Larger batches are not cut."""
    waiting: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        if waiting and (num_rows + batch.num_rows > BATCH_ROWS_MAX or num_bytes + batch.nbytes > BATCH_BYTES_MAX):
            yield combine_batches(pa.Table.from_batches(waiting))
            waiting, num_rows, num_bytes = [], 0, 0
        waiting.append(batch)
        num_rows += batch.num_rows
        num_bytes += batch.nbytes
    if waiting:
        yield combine_batches(pa.Table.from_batches(waiting))


def _encode_time_runs(segment: Segment, offsets: OffsetRange, start: int) -> list[tuple[int, int]]:
    """Return the commit times of a part of a segment, each with its first row, counted from the offset ``start``."""
    starts, times_ms = segment.time_runs
    begins = segment.base_offset + starts
    ends = np.append(begins[1:], segment.end_offset)
    inside = (ends > offsets.start) & (begins < offsets.end)
    places = np.maximum(begins[inside], offsets.start) - start
    return [(int(at), int(ms)) for at, ms in zip(places, times_ms[inside], strict=True)]


def _update_pairs(parts: Sequence[Part], start: int) -> tuple[tuple[int, int], ...]:
    """Return half-open ranges of rows that are after-images of updates, counted from the offset ``start``."""
    runs = OffsetSet.concat([segment.updated_rows.within(offsets) for segment, offsets in parts])
    firsts = runs.starts - start
    return tuple(zip(firsts.tolist(), (firsts + runs.lengths).tolist(), strict=True))


def _distinct_times(times: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the times without repetitions of the time before."""
    return [run for i, run in enumerate(times) if i == 0 or run[1] != times[i - 1][1]]
