"""Rows that the log no longer has, in lake snapshots that have them.

A snapshot lacks the rows that were deleted before it was made, and its files may lack them or mark them. So such a row
is looked for in the snapshots that the recorded one was made from, as far as these are kept: files name the offsets of
their rows, and a row never has another offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetRuns
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
    """Rows of a bucket that files of one lake snapshot hold, whether it marks them as deleted or not."""

    snapshot_id: int | None
    """None for the newest, which lacks no row that it ever had."""
    bucket: int
    rows: OffsetRuns


def find_added(table: TableHandle, state: TableState, rows: Rows, *, is_emptied: bool) -> Iterator[LakeOnlyRows]:
    """Find rows, some of which may be deleted by now. Those that no snapshot has are left out.

    Most are in the recorded snapshot. The oldest that is kept lacks the fewest of the others. Nothing is asked of the
    lake where no row ever left it, unless all did since, which ``is_emptied`` says.
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
        if not rows:  # before others are asked for
            return


def find_removed(table: TableHandle, state: TableState, rows: Iterable[tuple[int, Rows]]) -> Iterator[LakeOnlyRows]:
    """Find rows, given with the commits that deleted them. Those that no snapshot has are left out.

    Each is in the newest snapshot that does not lack what its commit deleted, unless it was tiered later, or another
    engine wrote its file again.
    """
    search, waiting = _Search(table, state), sorted(rows, key=lambda part: part[0])
    pending: Rows = {}
    for snapshot in search.snapshots():
        while waiting and waiting[-1][0] > snapshot.told:
            pending = _concat_rows(pending, waiting.pop()[1])
        if pending:
            located = search.find_rows(snapshot, pending)
            yield from _as_lake_only_rows(snapshot, located)
            pending = without_rows(pending, located)
        if not pending and not waiting:
            return


class _Search:
    """Looks at the snapshots that a state's recorded one was made from."""

    def __init__(self, table: TableHandle, state: TableState) -> None:
        self._recorded = state.lake.snapshot_id if state.lake is not None else None
        self._lake: LakeTable = table.open_lake().with_state(state)

    def snapshots(self) -> Iterator[LakeSnapshot]:
        """Give them, the newest first, as far as they are kept."""
        return self._lake.ancestors(self._recorded) if self._recorded is not None else iter(())

    def newest_and_oldest_first(self) -> Iterator[LakeSnapshot]:
        """Give the newest, and behind it the others from the oldest on, which a Paimon lake has to read one by one."""
        newest_first = self.snapshots()
        yield from islice(newest_first, 1)
        yield from reversed(list(newest_first))

    def find_rows(self, snapshot: LakeSnapshot, rows: Rows) -> Rows:
        """Return those of the rows that its files hold; none where it expired meanwhile."""
        below = {b: runs.within(OffsetRange(0, snapshot.offsets.get(b, 0))) for b, runs in rows.items()}
        below = {bucket: runs for bucket, runs in below.items() if runs}
        if not below:
            return {}
        try:
            located = self._lake.rows_with_offsets(snapshot.id, below)
        except SnapshotExpiredError:
            return {}
        return {bucket: runs for bucket, runs in located.items() if runs}


def _as_lake_only_rows(snapshot: LakeSnapshot, located: Rows) -> Iterator[LakeOnlyRows]:
    return (LakeOnlyRows(snapshot.id, bucket, runs) for bucket, runs in sorted(located.items()))


def _concat_rows(rows: Rows, added: Rows) -> Rows:
    common = {bucket: OffsetRuns.union([rows[bucket], added[bucket]]) for bucket in rows if bucket in added}
    return {**rows, **added, **common}


EXPIRED_ERRORS = (SnapshotExpiredError, LakeRolledBackError, LakeMismatchError)


def find_rows_lost_by_record(
    table: TableHandle, number: int, pair: TieredSnapshot, dropped: PartitionDropRows | None
) -> Rows | None:
    """Return the rows with offsets that a record lost and that ``dropped`` does not name, ``pair`` being its lake
    snapshot. None where nothing tells them any more, or tells rows without offsets that it does not name.
    """
    try:
        before = state_at(table.log, table.storage, number - 1)
        lost = find_lost_rows(before, table.open_lake().with_state(before), pair)
    except EXPIRED_ERRORS:
        return None
    if lost is None or lost.files != (dropped.files if dropped is not None else NO_FILE_ROWS):
        return None
    return without_rows(lost.rows, dropped.rows if dropped is not None else {})
