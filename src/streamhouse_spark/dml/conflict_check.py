"""Conflict detection of operations that delete rows of a log table, and the actions that delete them.

Deletes, rewrites, overwrites, rollback and the publication of a branch share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange, Transaction
from streamhouse_spark.dml.validation import require_deletable
from streamhouse_spark.log.actions import Action
from streamhouse_spark.log.commit_reader import has_dropped_rows
from streamhouse_spark.log.commit_validation import require_not_dropped
from streamhouse_spark.log.deletion_vectors import NO_FILE_ROWS, DeleteRows, FileRows
from streamhouse_spark.log.group_commit import CommitResult
from streamhouse_spark.log.read_version import ReadVersion, changed_since_read_error
from streamhouse_spark.log.staging import StagedRows
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.lake_row_ids import require_located, require_same_files, retry_with_relocated_rows
from streamhouse_spark.table_handle import TableHandle


def commit_with_conflict_check(
    table: TableHandle,
    rows: Mapping[int, OffsetSet],
    read: ReadVersion,
    plan: Callable[[TableState, int, ReadVersion], Sequence[Action]],
    *,
    transaction: Transaction | None = None,
    staged: StagedRows | None = None,
) -> CommitResult:
    """Commit a plan that deletes ``rows`` with `make_delete_actions`, and may add ``staged`` rows, in one record.

    The plan receives the base for conflict detection: ``read``, with the lake snapshots that were checked since. See
    `read.lake_row_ids.retry_with_relocated_rows`.
    """
    staged_ms = staged.staged_ms if staged is not None else None

    def commit(base: ReadVersion) -> CommitResult:
        return table.log.commit(
            lambda state, time_ms: plan(state, time_ms, base), transaction=transaction, staged_ms=staged_ms
        )

    return retry_with_relocated_rows(table, lambda: rows, read, commit)


def make_delete_actions(
    state: TableState, rows: Mapping[int, OffsetSet], read: ReadVersion, files: FileRows = NO_FILE_ROWS
) -> tuple[DeleteRows, ...]:
    """Return the action that deletes rows of a state, or no action if all rows were trimmed. Does no I/O.

    Raises the errors of `commit_deletion`, and `LakeSnapshotChangedError`, which `retry_with_relocated_rows` handles.
    """
    require_not_dropped(state)
    read.require_same_table(state)
    require_deletable(state)
    require_located(state, read, rows)
    applied_through = read.history.number if read.history is not None else 0
    newer = any(deletion.is_in_lake and deletion.commit > applied_through for deletion in state.deletions)
    live_rows = {}
    for bucket, runs in rows.items():
        start = state.first_offset(bucket) if state.recorded_lake is not None else state.buckets[bucket].start
        already_deleted = state.deleted[bucket].common(runs) if bucket in state.deleted else None
        if already_deleted:
            raise changed_since_read_error(
                state, f"the row at offset {already_deleted.range.start} of bucket {bucket} was deleted concurrently"
            )
        if newer and runs.within(OffsetRange(0, state.buckets[bucket].start)):
            raise changed_since_read_error(
                state, f"rows of bucket {bucket} were deleted concurrently, and their positions are no longer recorded"
            )
        if held := runs.within(OffsetRange(start, state.buckets[bucket].end)):
            live_rows[bucket] = held
    if files:
        require_same_files(state, read, files)
        if newer:
            raise changed_since_read_error(
                state, "rows of lake files were deleted concurrently, and their positions are no longer recorded"
            )
        return (DeleteRows(live_rows, files, read.lake_snapshot_id),)
    return (DeleteRows(live_rows),) if live_rows else ()


def has_dropped_partitions(state: TableState, read: ReadVersion) -> bool:
    """Return whether a partition was dropped since a version was read. The rows of a partition keep their offsets.

    After a drop, more rows are missing from lake snapshots than records deleted. Snapshots from before the last
    truncation are ignored, because a version that was read after the truncation does not include them.
    """
    pairs = [pair for pair in state.lake_history if state.begins_at(pair.starts)]
    ids = [pair.snapshot_id for pair in pairs]
    first = ids.index(read.lake_snapshot_id) if read.lake_snapshot_id in ids else 0
    return any(has_dropped_rows(before, after, state.deleted) for before, after in pairwise(pairs[first:]))
