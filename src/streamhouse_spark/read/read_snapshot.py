"""`ReadSnapshot`: one consistent state of a table, chosen once per read.

A read snapshot is a table state, a lake snapshot S, and for each bucket the log range that S does not contain. S and
the ranges contain each row of the table exactly once: the log records the offsets that S contains, and trimming never
passes them.

A table can read every retained lake snapshot. A branch can read only its initial snapshot, because later ones contain
rows that the branch never had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from streamhouse_spark.config.table_properties import ADOPTED, BRANCH
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import InvalidOptionError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.lake.types import LakeSnapshot, has_same_offsets
from streamhouse_spark.log.actions import KvSnapshot, TieredSnapshot
from streamhouse_spark.log.catalog.branches import require_no_branch
from streamhouse_spark.log.deletion_vectors import Deletion, Deletions
from streamhouse_spark.log.gc.retention import effective_times_ms
from streamhouse_spark.log.segments.scan import hot_range
from streamhouse_spark.log.state import BucketLog, TableState


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    state: TableState
    lake: TieredSnapshot | None
    hot: Mapping[int, OffsetRange] = field(default_factory=dict)
    """Bucket → nonempty range of offsets to read from the hot log."""
    bases: Mapping[int, KvSnapshot] = field(default_factory=dict)
    """Bucket → key-value snapshot with the rows below `hot`, for a primary-key table without a lake snapshot."""


def take_latest_snapshot(state: TableState, lake: TieredSnapshot | None = None) -> ReadSnapshot:
    """Return the read snapshot of the whole table. Without a lake snapshot, it covers the rows that the log retains.

    ``lake`` replaces a recorded tiered snapshot that has expired. A tiered snapshot with rows from before the last
    truncation is ignored.
    """
    tiered = lake if lake is not None and state.begins_at(lake.starts) else state.lake
    if tiered is None and state.snapshots:
        starts = {
            b: state.snapshots[b].offset if b in state.snapshots else log.start for b, log in state.buckets.items()
        }
        hot = {b: OffsetRange(starts[b], log.end) for b, log in state.buckets.items() if starts[b] < log.end}
        return ReadSnapshot(state, None, hot, state.snapshots)
    if tiered is None:
        ranges = {bucket: log.offsets for bucket, log in state.buckets.items()}
    else:
        ranges = {bucket: hot_range(log, tiered.offsets.get(bucket, 0)) for bucket, log in state.buckets.items()}
    return ReadSnapshot(state, tiered, {b: r for b, r in ranges.items() if r})


def require_recorded(state: TableState, tiered: TieredSnapshot, snapshot: LakeSnapshot | None) -> None:
    """Require that ``snapshot`` is the recorded one, because Paimon reuses the ids of snapshots that were rolled back.

    Raises `SnapshotExpiredError`, after which readers try a fallback snapshot.
    """
    is_as_recorded = (
        snapshot is not None
        and has_same_offsets(snapshot.offsets, tiered.offsets)
        and has_same_offsets(snapshot.starts, tiered.starts)
        and snapshot.dropped_rows >= tiered.dropped_rows  # the count is missing from older records
    )
    if is_as_recorded:
        return
    offsets = dict(snapshot.offsets) if snapshot else "nothing"
    raise SnapshotExpiredError(
        f"{state.name}: lake snapshot {tiered.snapshot_id} contains offsets {offsets}, expected "
        f"{dict(tiered.offsets)} as recorded: another engine rolled the lake back; tier the table for details"
    )


def take_snapshot_as_of(state: TableState, timestamp_ms: int) -> ReadSnapshot:
    """Return the read snapshot of the rows committed at or before ``timestamp_ms``.

    Raises `OffsetsTrimmedError` if these rows are no longer retained, or if the table was truncated or created later.
    """
    if ADOPTED in state.properties and timestamp_ms < state.created_ms:
        raise _not_in_log_error(
            state, timestamp_ms, f"the table was created from a lake table later, at {state.created_ms} ms"
        )
    ends = {bucket: offset_after(log, timestamp_ms) for bucket, log in state.buckets.items()}
    _require_truncated_before(state, timestamp_ms, ends)
    _require_created_before(state, timestamp_ms, ends)
    deletions = _deletions_as_of(state, timestamp_ms)
    tiered = _find_tiered_snapshot(state, ends, timestamp_ms, deletions)
    _require_applied_deletes(state, tiered, timestamp_ms, deletions)
    hot = {}
    for bucket, log in state.buckets.items():
        start = tiered.offsets.get(bucket, 0) if tiered else state.first_offset(bucket)
        if start < log.start:
            why = (
                f"bucket {bucket} needs the log from offset {start}, but the log has {log.offsets} and no recorded "
                "lake snapshot covers the gap"
            )
            raise _not_in_log_error(state, timestamp_ms, why)
        if ends[bucket] <= log.start and not _is_committed_by(state, bucket, start, timestamp_ms):
            why = (
                f"rows of bucket {bucket} below offset {start} are only in the lake, which does not store commit times"
            )
            raise _not_in_log_error(state, timestamp_ms, why)
        if ends[bucket] > start:
            hot[bucket] = OffsetRange(start, ends[bucket])
    return ReadSnapshot(replace(state, deletions=deletions), tiered, hot)


def _not_in_log_error(state: TableState, timestamp_ms: int, why: str) -> OffsetsTrimmedError:
    return OffsetsTrimmedError(
        f"{state.name} as of {timestamp_ms} ms: {why}; read the lake as of that time ({state.name}$lake), or a later "
        "time"
    )


def _deletions_as_of(state: TableState, timestamp_ms: int) -> Deletions:
    """Return the deletions committed at or before ``timestamp_ms``.

    A later record with an earlier time corrects a clock that ran ahead.
    """
    latest_ms, deletions = state.time_ms, []
    for deletion in reversed(state.deletions):
        latest_ms = min(latest_ms, deletion.time_ms)
        if latest_ms <= timestamp_ms:
            deletions.append(deletion)
        elif deletion.first_ms <= timestamp_ms and deletion.first_commit < deletion.commit:
            raise OffsetsTrimmedError(
                f"{state.name} as of {timestamp_ms} ms: rows deleted from {deletion.first_ms} to {deletion.time_ms} "
                "ms can no longer be distinguished; choose a later time"
            )
    return Deletions(reversed(deletions))


def _require_truncated_before(state: TableState, timestamp_ms: int, ends: Mapping[int, int]) -> None:
    """Raise if the table was truncated after ``timestamp_ms``.

    If a row after the truncation was committed by that time, so was the truncation, regardless of its recorded time.
    """
    truncation = state.truncation
    if truncation is None or truncation.time_ms <= timestamp_ms:
        return
    if all(ends[bucket] <= log.start for bucket, log in state.buckets.items()):
        why = f"the table was truncated later, by commit {truncation.commit} at {truncation.time_ms} ms"
        raise _not_in_log_error(state, timestamp_ms, why)


def _require_created_before(state: TableState, timestamp_ms: int, ends: Mapping[int, int]) -> None:
    """Raise if the table was created after ``timestamp_ms``.

    A later record, or a row committed by that time, corrects a clock that ran ahead at creation.
    """
    created_ms = min(state.created_ms, state.time_ms)
    if timestamp_ms < created_ms and all(ends[bucket] <= log.start for bucket, log in state.buckets.items()):
        raise OffsetsTrimmedError(
            f"{state.name} as of {timestamp_ms} ms: the table was created later, at {created_ms} ms; choose a later "
            "time"
        )


def _is_committed_by(state: TableState, bucket: int, offset: int, timestamp_ms: int) -> bool:
    """Return whether every row below the offset is known to have been committed at or before ``timestamp_ms``."""
    if offset <= state.first_offset(bucket):
        return True
    log = state.buckets[bucket]
    if log.segments and log.segments[0].base_offset < offset:
        log_with_first = BucketLog(log.segments[0].base_offset, log.end, log.segments)
        if offset_after(log_with_first, timestamp_ms) >= offset:
            return True
    tiered_snapshots = state.lake_history
    return any(p.offsets.get(bucket, 0) >= offset and 0 < p.time_ms <= timestamp_ms for p in tiered_snapshots)


def _require_applied_deletes(
    state: TableState, tiered: TieredSnapshot | None, timestamp_ms: int, deletions: Sequence[Deletion]
) -> None:
    """Require that the lake snapshot has applied all deletes that name rows of lake files, not offsets."""
    applied_through = tiered.applied_through if tiered is not None else 0
    if any(deletion.is_in_lake and deletion.commit > applied_through for deletion in deletions):
        why = "every recorded lake snapshot of that time contains rows that were deleted before"
        raise _not_in_log_error(state, timestamp_ms, why)


def _find_tiered_snapshot(
    state: TableState, ends: Mapping[int, int], timestamp_ms: int, deletions: Sequence[Deletion]
) -> TieredSnapshot | None:
    """Return the latest recorded snapshot that matches the point in time, or None.

    It has no rows at or after ``ends``, all partitions that the table had, and all rows except those of ``deletions``.
    """
    latest_delete = deletions[-1].commit if deletions else 0
    next_delete = min((d.first_commit for d in state.deletions if d.commit > latest_delete), default=None)
    tiered_snapshots = [
        tiered
        for tiered in state.lake_history
        if state.begins_at(tiered.starts) and (next_delete is None or tiered.applied_through < next_delete)
    ]
    candidates = [tiered for tiered in tiered_snapshots if tiered.time_ms <= timestamp_ms][-1:] or tiered_snapshots
    dropped_rows = min((tiered.dropped_rows for tiered in candidates), default=0)
    for tiered in reversed(tiered_snapshots):
        has_all = tiered.dropped_rows <= dropped_rows
        if has_all and all(offset <= ends.get(bucket, 0) for bucket, offset in tiered.offsets.items()):
            return tiered
    return None


def offset_at(log: BucketLog, timestamp_ms: int) -> int:
    """Return the first offset committed at or after ``timestamp_ms``, or the bucket's end if there is none.

    If rows were trimmed, the result is never below the log start offset.
    """
    for segment, latest_ms in zip(log.segments, effective_times_ms(log.segments), strict=True):
        if latest_ms >= timestamp_ms:
            starts, times_ms = segment.time_runs
            not_after_later = np.minimum.accumulate(np.minimum(times_ms, latest_ms)[::-1])[::-1]
            first = int(np.searchsorted(not_after_later, timestamp_ms))
            return max(log.start, segment.base_offset + int(starts[first]))
    return log.end


def offset_after(log: BucketLog, timestamp_ms: int) -> int:
    """Return the first offset committed after ``timestamp_ms``."""
    return offset_at(log, timestamp_ms + 1)


def require_visible_snapshot(state: TableState, snapshot_id: int | None) -> None:
    """Require that a lake snapshot (None for the latest) is visible to the table or branch.

    Raises `InvalidOptionError`, which names the visible snapshot of a branch.
    """
    if BRANCH not in state.properties:
        return
    if snapshot_id is None:
        require_no_branch(state, "reading the latest lake snapshot")
    visible_ids = [tiered.snapshot_id for tiered in state.lake_history]
    if snapshot_id not in visible_ids:
        visible = f"lake snapshot {visible_ids[-1]}" if visible_ids else "no lake snapshot"
        raise InvalidOptionError(
            f"{state.name} is a branch that can read {visible}; read snapshot {snapshot_id} from the lake of its table"
        )


def require_initial_snapshot(state: TableState, snapshot: LakeSnapshot | None) -> None:
    """Require that the lake snapshot of a branch still has the rows from which the branch was created.

    The snapshot passed `require_visible_snapshot`. Raises `SnapshotExpiredError` if another engine reused its id.
    """
    if BRANCH not in state.properties or snapshot is None:
        return
    tiered = next((tiered for tiered in state.lake_history if tiered.snapshot_id == snapshot.id), None)
    if tiered is not None:
        require_recorded(state, tiered, snapshot)
