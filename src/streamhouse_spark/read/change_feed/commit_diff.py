"""Offsets that commits appended and deleted, per bucket, and their location in the lake after the log was trimmed.

Rows that were deleted before a lake snapshot are missing from it. They are searched in the retained ancestors of the
recorded snapshot, because files store the offsets of their rows and a row never changes its offset. The commit record
of a dropped partition names only rows that the log contained. Other rows of the partition are in files that the drop
removed, while the lake retains the snapshot before the drop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import NO_RUNS, OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import LakeMismatchError, LakeRolledBackError, SnapshotExpiredError
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.tiering.record_snapshot import find_lost_rows
from streamhouse_spark.lake.types import LakeSnapshot
from streamhouse_spark.log.actions import Action, Append, ResetLake, TieredSnapshot
from streamhouse_spark.log.commit_reader import Commit, find_partition_drop
from streamhouse_spark.log.deletion_vectors import NO_FILE_ROWS, DeleteRows, PartitionDropRows, without_rows
from streamhouse_spark.log.history import state_at
from streamhouse_spark.log.record import CommitAttempt
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.commit_ranges import CommitRange
from streamhouse_spark.table_handle import TableHandle

Parts = dict[int, list[CommitRange]]
"""Bucket → offsets of commits."""
Rows = Mapping[int, OffsetSet]
"""Bucket → offsets."""
NO_LOST_ROWS: Final[Mapping[int, Rows]] = MappingProxyType({})
FIRST: Final = 1
"""The number of the first commit."""
EXPIRED_ERRORS = (SnapshotExpiredError, LakeRolledBackError, LakeMismatchError)


def diff_commits(
    commits: Sequence[Commit], lost: Mapping[int, Rows] = NO_LOST_ROWS, *, by_key: bool = False
) -> tuple[Parts, Parts]:
    """Return the offsets that the commits appended, and the offsets that they deleted.

    ``lost`` is commit number → rows of dropped partitions that the record does not name. With ``by_key``, the rows of a
    record that several writers share are marked as grouped.
    """
    added: Parts = {}
    removed: Parts = {}
    for commit in commits:
        number, time_us, attempts = commit.record.number, commit.time_us, commit.record.attempts
        appended: dict[int, list[Segment]] = {}
        writers: dict[int, set[int]] = {}
        for place, part in enumerate(attempts):
            for action in part.actions:
                for segment in action.segments if isinstance(action, Append) else ():
                    appended.setdefault(segment.bucket, []).append(segment)
                    writers.setdefault(segment.bucket, set()).add(place)
        for bucket, segments in appended.items():
            is_grouped = by_key and len(writers[bucket]) > 1
            rows, updated = _split_updated_rows(segments)
            added.setdefault(bucket, []).extend(
                make_commit_ranges(rows, updated, number, time_us, is_grouped=is_grouped)
            )
        for action in _deletions(attempts):
            for bucket, rows in action.rows.items():
                before = action.updated.get(bucket, NO_RUNS)
                not_updated = rows.without(before) if before else rows
                removed.setdefault(bucket, []).extend(make_commit_ranges(not_updated, before, number, time_us))
        dropped = find_partition_drop(commit.record.actions)
        for of_buckets in (dropped.rows if dropped is not None else {}, lost.get(number, {})):
            for bucket, rows in of_buckets.items():
                removed.setdefault(bucket, []).extend(make_commit_ranges(rows, NO_RUNS, number, time_us))
    return added, removed


def make_commit_ranges(
    rows: OffsetSet, updated: OffsetSet, number: int, time_us: int, *, is_grouped: bool = False
) -> list[CommitRange]:
    """Return the rows of one commit, and its rows that are pre-images or post-images of an update."""
    parts = [CommitRange(rows, number, time_us, is_grouped), CommitRange(updated, number, time_us, is_updated=True)]
    return [part for part in parts if part.rows]


def _split_updated_rows(segments: Sequence[Segment]) -> tuple[OffsetSet, OffsetSet]:
    """Return the offsets of new rows, and the offsets of post-images."""
    parts = [OffsetSet.dense(segment.base_offset, segment.num_rows) for segment in segments]
    all_rows = parts[0] if len(parts) == 1 else OffsetSet.union(parts)
    updated = [segment.updated_rows for segment in segments if segment.updated]
    if not updated:
        return all_rows, NO_RUNS
    after_update = OffsetSet.union(updated)
    return all_rows.without(after_update), after_update


def _deletions(attempts: Sequence[CommitAttempt]) -> Iterator[DeleteRows]:
    for part in attempts:
        if not repeats_partition_drop(part.actions):
            yield from (action for action in part.actions if isinstance(action, DeleteRows))


def repeats_partition_drop(actions: Sequence[Action]) -> bool:
    """Return whether a record deletes only rows of partitions that were dropped before, for a rebuilt lake."""
    return any(isinstance(action, ResetLake) for action in actions)


def cancel_out(added: Parts, removed: Parts) -> tuple[Parts, Parts]:
    """Return the added and the removed rows, except rows that were both added and removed.

    A post-image counts as an added row, because its pre-image may have been added in the same range.
    """
    return _subtract(added, removed), _subtract(removed, added)


def _subtract(parts: Parts, subtracted: Parts) -> Parts:
    remaining: Parts = {}
    for bucket, of_bucket in parts.items():
        excluded = OffsetSet.union([part.rows for part in subtracted.get(bucket, [])])
        left = [part._replace(rows=part.rows.without(excluded), is_updated=False) for part in of_bucket]
        remaining[bucket] = [part for part in left if part.rows]
    return {bucket: of_bucket for bucket, of_bucket in remaining.items() if of_bucket}


@dataclass(frozen=True, slots=True)
class LakeOnlyRows:
    """Rows of a bucket in the files of one lake snapshot, including rows that the snapshot marks as deleted."""

    snapshot_id: int | None
    """None for the latest snapshot, if no row was ever removed from the lake."""
    bucket: int
    rows: OffsetSet


def find_added(table: TableHandle, state: TableState, rows: Rows, *, was_truncated: bool) -> Iterator[LakeOnlyRows]:
    """Locate added rows, which may have been deleted since. Rows that no snapshot contains are omitted.

    Most rows are in the recorded snapshot. The fewest deleted rows are missing from the oldest retained snapshot. If no
    row was ever removed from the lake, and the table was not truncated since, nothing is read.
    """
    if state.lake is not None and not (was_truncated or state.deletions or state.lake.dropped_rows):
        in_lake = {b: runs.within(OffsetRange(0, state.lake_offset(b))) for b, runs in rows.items()}
        yield from (LakeOnlyRows(None, bucket, runs) for bucket, runs in sorted(in_lake.items()) if runs)
        return
    search = _Search(table, state)
    for snapshot in search.newest_and_oldest_first():
        located = search.find_rows(snapshot, rows)
        yield from _as_lake_only_rows(snapshot, located)
        rows = without_rows(rows, located)
        if not rows:  # before more snapshots are loaded
            return


def find_removed(table: TableHandle, state: TableState, rows: Iterable[tuple[int, Rows]]) -> Iterator[LakeOnlyRows]:
    """Locate removed rows, given with the commits that deleted them. Rows that no snapshot contains are omitted.

    A row is in the latest snapshot before its deletion was applied, unless it was tiered later or another engine
    rewrote the file.
    """
    search, waiting = _Search(table, state), sorted(rows, key=lambda part: part[0])
    pending: Rows = {}
    for snapshot in search.snapshots():
        while waiting and waiting[-1][0] > snapshot.applied_through:
            pending = _concat_rows(pending, waiting.pop()[1])
        if pending:
            located = search.find_rows(snapshot, pending)
            yield from _as_lake_only_rows(snapshot, located)
            pending = without_rows(pending, located)
        if not pending and not waiting:
            return


class _Search:
    """Searches the ancestors of a state's recorded lake snapshot."""

    def __init__(self, table: TableHandle, state: TableState) -> None:
        self._recorded = state.lake.snapshot_id if state.lake is not None else None
        self._lake: LakeTable = table.open_lake().with_state(state)

    def snapshots(self) -> Iterator[LakeSnapshot]:
        """Yield the retained ancestors, latest first."""
        return self._lake.ancestors(self._recorded) if self._recorded is not None else iter(())

    def newest_and_oldest_first(self) -> Iterator[LakeSnapshot]:
        """Yield the latest snapshot, then all others, oldest first. A Paimon lake reads them one by one."""
        newest_first = self.snapshots()
        yield from islice(newest_first, 1)
        yield from reversed(list(newest_first))

    def find_rows(self, snapshot: LakeSnapshot, rows: Rows) -> Rows:
        """Return the rows that are in files of the snapshot; none if it expired concurrently."""
        below = {b: runs.within(OffsetRange(0, snapshot.offsets.get(b, 0))) for b, runs in rows.items()}
        below = {bucket: runs for bucket, runs in below.items() if runs}
        if not below:
            return {}
        try:
            located = self._lake.find_rows_with_offsets(snapshot.id, below)
        except SnapshotExpiredError:
            return {}
        return {bucket: runs for bucket, runs in located.items() if runs}


def _as_lake_only_rows(snapshot: LakeSnapshot, located: Rows) -> Iterator[LakeOnlyRows]:
    return (LakeOnlyRows(snapshot.id, bucket, runs) for bucket, runs in sorted(located.items()))


def _concat_rows(rows: Rows, added: Rows) -> Rows:
    common = {bucket: OffsetSet.union([rows[bucket], added[bucket]]) for bucket in rows if bucket in added}
    return {**rows, **added, **common}


def find_dropped_rows(
    table: TableHandle, number: int, tiered: TieredSnapshot, dropped: PartitionDropRows | None
) -> Rows | None:
    """Return the rows that commit ``number``, which recorded ``tiered``, removed and ``dropped`` does not name.

    None if the rows are no longer known, or include rows without offsets that ``dropped`` does not name.
    """
    try:
        before = state_at(table.log, table.storage, number - 1)
        lost = find_lost_rows(before, table.open_lake().with_state(before), tiered)
    except EXPIRED_ERRORS:
        return None
    if lost is None or lost.files != (dropped.files if dropped is not None else NO_FILE_ROWS):
        return None
    return without_rows(lost.rows, dropped.rows if dropped is not None else {})
