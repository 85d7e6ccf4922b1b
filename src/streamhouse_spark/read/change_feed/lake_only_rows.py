"""Rows that the log no longer has, located in lake snapshots.

A snapshot misses the rows deleted before it was made; its files may omit or mark them. Such a row is searched in the
retained ancestors of the recorded snapshot. Files name the offsets of their rows, and a row never changes its offset.

Rows of a dropped partition are located here as well. The record of the drop names only those that the log still had.
The others are in the files that the drop removed, while the lake retains the snapshot before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import LakeMismatchError, LakeRolledBackError, SnapshotExpiredError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.lake.model.values import LakeSnapshot
from streamhouse_spark.lake.table import LakeTable
from streamhouse_spark.lake.tiering.partition_drops import find_lost_rows
from streamhouse_spark.log.commits.actions import TieredSnapshot
from streamhouse_spark.log.commits.delete_vectors import NO_FILE_ROWS, PartitionDropRows, without_rows
from streamhouse_spark.log.commits.history import state_at
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.read.change_feed.commit_diff import Rows


@dataclass(frozen=True, slots=True)
class LakeOnlyRows:
    """Rows of a bucket in the files of one lake snapshot, including rows that it marks as deleted."""

    snapshot_id: int | None
    """None for the latest snapshot, if that has all rows it ever had."""
    bucket: int
    rows: OffsetSet


def find_added(table: TableHandle, state: TableState, rows: Rows, *, is_emptied: bool) -> Iterator[LakeOnlyRows]:
    """Locate added rows, some of which may be deleted by now. Rows that no snapshot has are omitted.

    Most are in the recorded snapshot. Of the others, the oldest retained one misses the fewest. Nothing is read from
    the lake if no row ever left it, unless all rows were truncated since (``is_emptied``).
    """
    if state.lake is not None and not (is_emptied or state.deletions or state.lake.dropped_rows):
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
    """Locate removed rows, given with the commits that deleted them. Rows that no snapshot has are omitted.

    Each is in the latest snapshot before its deletion was applied, unless it was tiered later or another engine rewrote
    its file.
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
        """Yield the latest snapshot, then the others from the oldest on, which a Paimon lake must read one by one."""
        newest_first = self.snapshots()
        yield from islice(newest_first, 1)
        yield from reversed(list(newest_first))

    def find_rows(self, snapshot: LakeSnapshot, rows: Rows) -> Rows:
        """Return those of the rows that its files hold; none if it expired concurrently."""
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


EXPIRED_ERRORS = (SnapshotExpiredError, LakeRolledBackError, LakeMismatchError)


def find_dropped_rows(
    table: TableHandle, number: int, tiered: TieredSnapshot, dropped: PartitionDropRows | None
) -> Rows | None:
    """Return the rows with offsets that the record of ``tiered`` lost and ``dropped`` does not name.

    None if they are no longer known, or include rows without offsets that ``dropped`` does not name.
    """
    try:
        before = state_at(table.log, table.storage, number - 1)
        lost = find_lost_rows(before, table.open_lake().with_state(before), tiered)
    except EXPIRED_ERRORS:
        return None
    if lost is None or lost.files != (dropped.files if dropped is not None else NO_FILE_ROWS):
        return None
    return without_rows(lost.rows, dropped.rows if dropped is not None else {})
