"""Plans a tiering round: the next offset range of each bucket. Does no I/O."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from streamhouse_spark.core.json_codec import JsonSerializable
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import LakeMismatchError, LakeRolledBackError
from streamhouse_spark.lake.types import LakeSnapshot, LiveFile, WriteContext
from streamhouse_spark.log.actions import KvSnapshot
from streamhouse_spark.log.deletion_vectors import unapplied_deletes
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.log.state import BucketLog, TableState

ROUND_BYTES_PER_BUCKET_MAX = 512 << 20
"""Maximum bytes in memory of one bucket in a round. Limits the first rounds after a long downtime."""
KEYED_ROUND_BYTES_PER_BUCKET_MAX = 128 << 20
"""This limit for primary-key tables: a task holds all changes of its range in memory to find the last of each key."""

GROUPS_MIN = 32
GROUP_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TieringTask(JsonSerializable):
    """The part of a round for one bucket: the rows to read and the context to write them in. Serializable."""

    split: LogSplit
    context: WriteContext
    live: tuple[LiveFile, ...] = ()
    """Lake files that may hold older rows of these keys."""
    base: OffsetRange | None = None
    """For a primary-key table whose log starts too late: the split has the rows of a KV snapshot at this offset."""

    @property
    def bucket(self) -> int:
        return self.split.bucket

    @property
    def offsets(self) -> OffsetRange:
        return self.split.offsets if self.base is None else self.base


def task_bytes(task: TieringTask) -> int:
    """Return the approximate bytes of a task's rows in memory."""
    return sum(segment.memory_bytes for segment in task.split.segments)


def group_tasks(tasks: Sequence[TieringTask]) -> list[list[int]]:
    """Divide tasks, by position, into groups of about equal bytes, one per process.

    Few tasks form one group each. Many tasks form `GROUPS_MIN` groups, or more to keep each below `GROUP_BYTES`,
    because starting a process costs more than writing a few rows. Each task, largest first, is added to the smallest
    group (Graham's rule, "Bounds on Multiprocessing Timing Anomalies").
    """
    sizes = [task_bytes(task) for task in tasks]
    num_groups = min(len(tasks), max(GROUPS_MIN, -(-sum(sizes) // GROUP_BYTES)))
    if num_groups == len(tasks):
        return [[position] for position in range(len(tasks))]
    heap = [(0, group) for group in range(num_groups)]
    groups: list[list[int]] = [[] for _ in range(num_groups)]
    for position in sorted(range(len(tasks)), key=lambda p: -sizes[p]):
        group_bytes, group = heapq.heappop(heap)
        groups[group].append(position)
        heapq.heappush(heap, (group_bytes + max(sizes[position], 1), group))
    return groups


def find_round_starts(state: TableState, lake: LakeSnapshot | None) -> Mapping[int, int]:
    """Return the start offsets of the next round: those of the lake, or of a truncation that the lake has not applied.

    Raises `LakeMismatchError` if the lake has rows or truncations that the log never had.
    """
    starts, offsets = (lake.starts, lake.offsets) if lake is not None else ({}, {})
    if state.begins_at(starts):
        return offsets
    firsts = state.first_offsets
    ahead = [b for b in state.buckets if max(starts.get(b, 0), offsets.get(b, 0)) > firsts.get(b, 0)]
    if ahead:
        raise LakeMismatchError(
            f"table {state.name}: the lake has bucket {ahead[0]} from offset {starts.get(ahead[0], 0)} to "
            f"{offsets.get(ahead[0], 0)}, but the table was last truncated at {firsts.get(ahead[0], 0)}: the log lost "
            "records or the lake belongs to another warehouse; restore the warehouse"
        )
    return firsts


def rows_to_delete(state: TableState, lake: LakeSnapshot | None, new: Mapping[int, int]) -> Mapping[int, OffsetSet]:
    """Return the deleted rows below the ``new`` offsets that the latest lake snapshot still has."""
    applied_through, offsets = (lake.applied_through, lake.offsets) if lake is not None else (0, {})
    unapplied = unapplied_deletes(state.deletions, applied_through, offsets)
    below = {bucket: runs.within(OffsetRange(0, new.get(bucket, 0))) for bucket, runs in unapplied.items()}
    return {bucket: runs for bucket, runs in below.items() if runs}


def find_base_snapshots(state: TableState, begin: Mapping[int, int]) -> Mapping[int, KvSnapshot]:
    """Return bucket → KV snapshot, for buckets without lake rows whose log no longer has all changes."""
    return {
        bucket: base
        for bucket, base in state.snapshots.items()
        if begin.get(bucket, 0) <= state.first_offset(bucket) < state.buckets[bucket].start <= base.offset
    }


def plan_tiering(
    buckets: Mapping[int, BucketLog],
    lake_offsets: Mapping[int, int],
    targets: Mapping[int, int],
    *,
    table: str,
    bytes_max: int = ROUND_BYTES_PER_BUCKET_MAX,
    cuts_segments: bool = False,
) -> dict[int, OffsetRange]:
    """Return the next offset range per bucket, from the lake's offset towards ``targets``. Omits buckets without work.

    A range ends between segments if possible, and covers at least one segment. With ``cuts_segments``, a larger segment
    is cut to at most about ``bytes_max``. Raises `LakeRolledBackError` if the log no longer has the next rows, and
    `LakeMismatchError` if the lake has more rows than the log.
    """
    ranges: dict[int, OffsetRange] = {}
    for bucket, log in sorted(buckets.items()):
        lake_offset = lake_offsets.get(bucket, 0)
        _require_next(log, lake_offset, table, bucket)
        offsets = _next_range(log, lake_offset, targets.get(bucket, 0), bytes_max)
        if cuts_segments:
            offsets = _cut_range(log, offsets, bytes_max)
        if offsets:
            ranges[bucket] = offsets
    return ranges


def _require_next(log: BucketLog, lake_offset: int, table: str, bucket: int) -> None:
    """Require that the log has the next offset of the lake."""
    if lake_offset > log.end:
        raise LakeMismatchError(
            f"table {table}: the lake has bucket {bucket} up to {lake_offset}, but the log ends at {log.end}: the "
            "log lost rows or belongs to another warehouse; restore the warehouse"
        )
    if lake_offset < log.start:
        raise LakeRolledBackError(
            f"table {table}: the lake has bucket {bucket} up to {lake_offset}, but the log starts at {log.start}, "
            "so the rows between are lost; roll the lake forward to its latest snapshot with offsets, or accept the "
            "loss (streamhouse retier --allow-loss)"
        )


def _next_range(log: BucketLog, lake_offset: int, target: int, bytes_max: int) -> OffsetRange:
    end, num_bytes = lake_offset, 0
    for segment in log.segments:
        if segment.end_offset <= lake_offset:
            continue
        if end >= target or (num_bytes and num_bytes + segment.memory_bytes > bytes_max):
            break
        num_bytes += segment.memory_bytes
        end = min(segment.end_offset, target)
    return OffsetRange(lake_offset, max(end, lake_offset))


def _cut_range(log: BucketLog, offsets: OffsetRange, bytes_max: int) -> OffsetRange:
    """Return the range, or a smaller part of its first segment."""
    first = next((s for s in log.segments if s.end_offset > offsets.start), None)
    if first is None:
        return offsets
    num_rows = max(1, bytes_max * first.num_rows // max(first.memory_bytes, 1))
    if num_rows >= first.end_offset - offsets.start:
        return offsets
    return OffsetRange(offsets.start, min(offsets.end, offsets.start + num_rows))


def require_progress(recorded: Mapping[int, int], lake_offsets: Mapping[int, int], *, table: str) -> None:
    """Raise `LakeRolledBackError` if the lake has fewer rows than the log has recorded."""
    shortfall = {b: (lake_offsets.get(b, 0), o) for b, o in sorted(recorded.items()) if lake_offsets.get(b, 0) < o}
    if shortfall:
        bucket, (offset, expected) = next(iter(shortfall.items()))
        raise LakeRolledBackError(
            f"table {table}: the lake has bucket {bucket} up to offset {offset}, expected {expected}: the lake was "
            "rolled back, or an older copy was restored; roll it forward to its latest snapshot with "
            "offsets, or rebuild it from the log (streamhouse retier)"
        )
