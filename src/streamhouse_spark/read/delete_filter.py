"""Deletions of rows as a reader of the log meets them: those that it was told of stay left out, later ones may be news.

A reader of plain rows cannot take back a row that it handed out. So a deletion that came after a position, of rows
before it, is an error to all who go on from there; rows that are deleted before they are read are left out. Rows of
partitions that are dropped before they are read are left out, too, and nobody is told of those dropped later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetRuns
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.log.commit_reader import deletions_in, newest_first
from streamhouse_spark.log.commits.delete_vectors import Deletion, Deletions, union_deleted_offsets
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.storage.base import Storage


def deletions_as_of(storage: Storage, state: TableState, commit: int) -> TableState:
    """Return the state with the deletions up to a commit alone, so that a read of it can be repeated.

    Where the state has one of several commits before and behind it as one, their records tell which rows are whose, as
    long as they are kept.
    """
    if not state.deletions or state.deletions[-1].commit <= commit:
        return state
    deletions = [deletion for deletion in state.deletions if deletion.first_commit <= commit]
    if deletions and deletions[-1].commit > commit:
        deletions[-1] = _deletion_up_to(storage, state, deletions[-1], commit)
    return replace(state, deletions=Deletions(deletions))


def _deletion_up_to(storage: Storage, state: TableState, deletion: Deletion, commit: int) -> Deletion:
    """Return the part of a deletion that is of commits up to one."""
    later, reached = [], state.version + 1
    for record in newest_first(storage, state):
        if record.number <= commit:
            break
        reached = record.number
        if reached <= deletion.commit:
            later += [action for action in deletions_in(record) if action.rows]
    if reached > commit + 1:
        return deletion
    left = {}
    for bucket, runs in deletion.rows.items():
        left[bucket] = runs.without(
            OffsetRuns.merged([action.rows[bucket] for action in later if bucket in action.rows])
        )
    return replace(deletion, commit=commit, rows={bucket: runs for bucket, runs in left.items() if runs})


def has_lost_rows(state: TableState) -> bool:
    """Tell whether rows of a table without a primary key were deleted, or went with a partition: then its changes are
    more than its appended rows.
    """
    dropped = state.lake is not None and state.lake.dropped_rows > 0
    return not state.primary_key and (dropped or bool(state.deletions))


@dataclass(frozen=True, slots=True)
class ExcludedRows:
    """Rows that a reader of the log leaves out, besides those that the state knows to be deleted."""

    rows: Mapping[int, OffsetRuns]
    """Bucket → those of dropped partitions that the log still holds."""
    lake_may_lack: bool
    """Whether all rows that the lake lacks below the log's start are to be left out."""


def partition_drops_as_of(state: TableState, commit: int) -> ExcludedRows:
    """Return the rows of partitions that were dropped up to a commit, so that a read of it can be repeated.

    The lake may lack these and deleted ones, but none that was deleted or dropped later: a repeated read has it.
    """
    named = union_deleted_offsets(deletion for deletion in state.dropped_rows.named if deletion.first_commit <= commit)
    newest = max(state.dropped_rows.newest, state.deletions[-1].commit if state.deletions else 0)
    return ExcludedRows(named, has_lost_rows(state) and newest <= commit)


def deletions_without_drops(state: TableState) -> ExcludedRows:
    """Return what a batch leaves out: rows of dropped partitions are given as long as the log holds them, and an error
    after that. So the lake may lack rows only where no partition was dropped.
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
                f"have read them while they had some: what was made of them is out of date; {advice}"
            )
        if deletion.is_in_lake:
            raise OffsetsTrimmedError(
                f"commit {deletion.commit} deleted rows of {state.name} that were tiered and trimmed since, and {who} "
                f"may have read them: what was made of them is out of date; {advice}"
            )
        for bucket, runs in deletion.rows.items():
            read = runs.within(OffsetRange(0, positions.get(bucket, 0)))
            if read:
                raise OffsetsTrimmedError(
                    f"commit {deletion.commit} deleted rows of {state.name} that {who} has read, the first of them "
                    f"offset {read.range.start} of bucket {bucket}: what was made of them is out of date; {advice}"
                )
