"""Commit of an UPDATE or MERGE of a log table: delete the old rows and add the new rows in one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamhouse_spark.dml.conflict_check import commit_with_conflict_check, has_dropped_partitions, make_delete_actions
from streamhouse_spark.log.actions import Action
from streamhouse_spark.log.append_commit import make_append_action
from streamhouse_spark.log.read_version import ReadVersion, changed_since_read_error
from streamhouse_spark.log.staging import StagedRows
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.lake_row_ids import NO_ROWS, RowLocations
from streamhouse_spark.table_handle import TableHandle


def commit_rewrite(
    table: TableHandle, old: RowLocations, staged: StagedRows | None, read: ReadVersion, updated: RowLocations = NO_ROWS
) -> TableState:
    """Delete old rows and add staged rows in one record, its **commit point**. Returns the state after the record.

    ``updated`` are the old rows that new rows replace; the record stores them. ``read`` is the version in which the old
    rows were read. Raises `CommitConflictError`, without writing a row, if since then the table was truncated or
    altered, an old row was deleted, or for a strict ``read`` any row was added.
    """
    added = mark_as_rewrite(staged) if staged is not None and staged.segments else None

    def plan(state: TableState, time_ms: int, base: ReadVersion) -> Sequence[Action]:
        if base.is_strict:
            base.require(state)
        deletions = tuple(
            deletion.with_updated(updated.rows, updated.files)
            for deletion in make_delete_actions(state, old.rows, base, old.files)
        )
        if added is None:
            return deletions
        if sum(deletion.num_rows for deletion in deletions) < old.num_rows:
            raise changed_since_read_error(state, "rows that the statement replaces were deleted concurrently")
        if has_dropped_partitions(state, base):
            raise changed_since_read_error(state, "a partition was dropped")
        return (*deletions, make_append_action(state, added, time_ms))

    return commit_with_conflict_check(table, old.rows, read, plan, staged=staged).state


def mark_as_rewrite(staged: StagedRows) -> StagedRows:
    """Mark staged rows as written by an operation that read the table."""
    pieces = (replace(piece, segment=replace(piece.segment, rewrites=True)) for piece in staged.segments)
    return replace(staged, segments=tuple(pieces))
