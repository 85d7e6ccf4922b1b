"""Row deletions in reads of the log: rows deleted before they are read are skipped, later deletions are an error.

A reader of plain rows cannot retract a row that it returned. So a deletion of rows before a reader's position,
committed after it read them, fails every reader that continues from there. Rows of dropped partitions are skipped as
well if the drop came first, and ignored if it came later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.log.commit_reader import iter_deletions, iter_records_backwards
from streamhouse_spark.log.commits.delete_vectors import Deletion, Deletions, union_deleted_offsets
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.storage.base import Storage


def limit_deletions(storage: Storage, state: TableState, commit: int) -> TableState:
    """Return the state with the deletions up to a commit only, so that a read can be repeated.

    If the state has merged deletions of several commits before and after ``commit``, their records tell them apart as
    long as they are retained.
    """
    if not state.deletions or state.deletions[-1].commit <= commit:
        return state
    deletions = [deletion for deletion in state.deletions if deletion.first_commit <= commit]
    if deletions and deletions[-1].commit > commit:
        deletions[-1] = _deletion_up_to(storage, state, deletions[-1], commit)
    return replace(state, deletions=Deletions(deletions))


def _deletion_up_to(storage: Storage, state: TableState, deletion: Deletion, commit: int) -> Deletion:
    """Return the part of a deletion that commits up to ``commit`` made."""
    later, reached = [], state.version + 1
    for record in iter_records_backwards(storage, state):
        if record.number <= commit:
            break
        reached = record.number
        if reached <= deletion.commit:
            later += [action for action in iter_deletions(record) if action.rows]
    if reached > commit + 1:
        return deletion
    left = {}
    for bucket, runs in deletion.rows.items():
        left[bucket] = runs.without(
            OffsetSet.merged([action.rows[bucket] for action in later if bucket in action.rows])
        )
    return replace(deletion, commit=commit, rows={bucket: runs for bucket, runs in left.items() if runs})


def has_lost_rows(state: TableState) -> bool:
    """Return whether rows of a log table were deleted or dropped, so that it has changes other than appends."""
    dropped = state.lake is not None and state.lake.dropped_rows > 0
    return not state.primary_key and (dropped or bool(state.deletions))


@dataclass(frozen=True, slots=True)
class ExcludedRows:
    """Rows that a reader of the log skips, in addition to the deletions in the state."""

    rows: Mapping[int, OffsetSet]
    """Bucket → rows of dropped partitions that the log still holds."""
    lake_may_lack: bool
    """Whether rows below the log start offset may be missing in the lake and are then skipped."""


def partition_drops_as_of(state: TableState, commit: int) -> ExcludedRows:
    """Return the rows of partitions dropped up to a commit, so that a read can be repeated.

    The lake may miss these and deleted rows, but none that was deleted or dropped later, because a repeated read
    returns it.
    """
    named = union_deleted_offsets(deletion for deletion in state.dropped_rows.named if deletion.first_commit <= commit)
    newest = max(state.dropped_rows.newest, state.deletions[-1].commit if state.deletions else 0)
    return ExcludedRows(named, has_lost_rows(state) and newest <= commit)


def deletions_without_drops(state: TableState) -> ExcludedRows:
    """Return the rows that a batch read skips.

    It returns rows of dropped partitions while the log holds them, and fails after that. So the lake may miss rows only
    if no partition was dropped.
    """
    return ExcludedRows({}, bool(state.deletions) and not state.dropped_rows.newest)


def require_undeleted(state: TableState, positions: Mapping[int, int], commit: int, *, who: str, advice: str) -> None:
    """Require that no row before the ``positions`` was deleted after a commit. Raises `OffsetsTrimmedError`."""
    for deletion in state.deletions:
        if deletion.commit <= commit:
            continue
        if deletion.files:
            raise OffsetsTrimmedError(
                f"commit {deletion.commit} deleted rows of {state.name} that have no offsets any more, and {who} may "
                f"have read them while they had some: results derived from them are stale; {advice}"
            )
        if deletion.is_in_lake:
            raise OffsetsTrimmedError(
                f"commit {deletion.commit} deleted rows of {state.name} that were tiered and trimmed since, and {who} "
                f"may have read them: results derived from them are stale; {advice}"
            )
        for bucket, runs in deletion.rows.items():
            read = runs.within(OffsetRange(0, positions.get(bucket, 0)))
            if read:
                raise OffsetsTrimmedError(
                    f"commit {deletion.commit} deleted rows of {state.name} that {who} has read, the first of them "
                    f"offset {read.range.start} of bucket {bucket}: results derived from them are stale; {advice}"
                )
