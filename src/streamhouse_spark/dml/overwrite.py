"""Overwrites of a part of a table: the rows that match a condition, or the rows of partitions, in one record.

**Commit point:** the one record that deletes the old rows and adds the new rows. It deletes all rows of the part that
were committed before it, tiered or not, and keeps later rows. So an overwrite never conflicts with other writers, and
all writes are serializable.

Rows of a log table are deleted by offset. They are located before the commit attempt, and the attempt locates only rows
that were appended since. In a primary-key table, deletes and new rows become at most one change per key, see
`streamhouse_spark.kv.partition_overwrite`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.arrow_rows import distinct_rows
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import BucketOffsets, OffsetRange, Transaction, check_transaction
from streamhouse_spark.dml.conflict_check import make_delete_actions
from streamhouse_spark.dml.delete import locate_latest_rows, locate_rows
from streamhouse_spark.dml.validation import (
    condition_filter,
    limit_to_partitions,
    require_deletable,
    require_matching_rows,
    require_partitioned,
    require_partitioned_by,
)
from streamhouse_spark.expressions.partition_filter import (
    OverwriteFilterFactory,
    PartitionMatches,
    PartitionOverwriteFilter,
    partitions_of,
)
from streamhouse_spark.log.actions import Action
from streamhouse_spark.log.commit_validation import find_stored_transaction
from streamhouse_spark.log.deletion_vectors import NO_FILE_ROWS, FileRows, union_deleted_file_rows
from streamhouse_spark.log.read_version import ReadVersion, changed_since_read_error
from streamhouse_spark.log.staging import StagedRows, merge_staged_rows
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.lake_row_ids import OffsetsUnavailableError, retry_with_relocated_rows
from streamhouse_spark.read.read_snapshot import ReadSnapshot
from streamhouse_spark.read.snapshot_fallback import InitialSchema
from streamhouse_spark.schema.partitioning import PartitionField
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.log_writer import LogTableWriter, retry_schema_changes
from streamhouse_spark.write.upsert import PrimaryKeyTable

_LOCATE_TRIES_MAX: Final = 3
"""Number of times that rows are located before the commit attempt. After that, the attempt itself locates all rows."""


class _RelocateError(Exception):
    """Raised by a commit attempt that would have to locate all rows again, while other threads wait for the attempt."""


def overwrite(
    table: TableHandle, log_writer: LogTableWriter, rows: Any, where: Any, transaction: Transaction | None
) -> BucketOffsets:
    """Replace all rows, or the rows that match a filter; see `Table.overwrite`."""
    check_transaction(transaction)
    if where is not None:
        condition = condition_filter(where)
        if table.state.primary_key:
            choose = limit_to_partitions(condition, table.state)

            def choosing(fitted: pa.Table) -> OverwriteFilterFactory:
                require_matching_rows(choose(table.state.schema), fitted, table.name)
                return choose

            return PrimaryKeyTable(table).upsert(rows, transaction=transaction, choosing=choosing)
        return _overwrite_rows(table, log_writer, rows, transaction, condition)
    if table.state.primary_key:
        return PrimaryKeyTable(table).upsert(rows, transaction=transaction, overwrite=True)
    return log_writer.append(rows, transaction, overwrite=True)


def overwrite_partitions(
    table: TableHandle, log_writer: LogTableWriter, rows: Any, transaction: Transaction | None
) -> BucketOffsets:
    """Replace the partitions of the new rows; see `Table.overwrite_partitions`."""
    fields = require_partitioned(table.state)
    if table.state.primary_key:
        keyed = PrimaryKeyTable(table)
        return keyed.upsert(
            rows,
            transaction=transaction,
            choosing=lambda fitted: _choose_partitions(PartitionOverwriteFilter.of(fitted, fields)),
        )
    return _overwrite_rows(table, log_writer, rows, transaction, None)


def _choose_partitions(partitions: PartitionOverwriteFilter) -> OverwriteFilterFactory:
    return lambda _schema: partitions


def truncate_partitions(table: TableHandle, chosen: PartitionMatches) -> None:
    """Delete the rows of partitions of a log table. **Commit point:** one record."""
    state, choice = table.refresh(), partition_filter(chosen)
    staged = StagedRows(table.uuid, state.schema_id, (), table.storage.now_ms())
    commit_replacement(table, staged, lambda _: choice, None)


def partition_filter(chosen: PartitionMatches) -> PartitionOverwriteFilter:
    """Return a filter for partitions. All matches must name the same columns."""
    partitions = pa.concat_tables(
        pa.table({name: pa.array([value.as_py()], value.type) for name, value in match}) for match in chosen.matches
    )
    return PartitionOverwriteFilter(partitions, tuple(PartitionField(name) for name in partitions.column_names))


def _overwrite_rows(
    table: TableHandle,
    log_writer: LogTableWriter,
    rows: Any,
    transaction: Transaction | None,
    condition: OverwriteFilterFactory | None,
) -> BucketOffsets:
    """Stage and commit; retry if columns or partitioning changed. Without a condition, replace the rows' partitions."""
    check_transaction(transaction)

    def attempt() -> BucketOffsets:
        state, missing, pieces = log_writer.fit_pieces(rows)
        require_deletable(state)
        stager, fields = log_writer.stager(state), None if condition else require_partitioned(state)
        staged: list[StagedRows] = []
        partitions: list[pa.Table] = []
        for piece in map(stager.fill_generated, pieces):  # partition columns may be generated
            if fields is not None:
                partitions.append(partitions_of(piece, fields))
            elif condition is not None:
                require_matching_rows(condition(state.schema), piece, table.name)
            staged.append(stager.stage(piece, missing))
        distinct = distinct_rows(pa.concat_tables(partitions)) if partitions else pa.table({})
        choose = condition or _choose_partitions(PartitionOverwriteFilter(distinct, fields or ()))
        return commit_replacement(table, merge_staged_rows(staged), choose, transaction, fields=fields)

    return retry_schema_changes(table, rows, attempt)


def commit_replacement(
    table: TableHandle,
    staged: StagedRows,
    choose: OverwriteFilterFactory,
    transaction: Transaction | None,
    read: ReadVersion | None = None,
    fields: Sequence[PartitionField] | None = None,
) -> BucketOffsets:
    """Replace the selected rows by staged rows in one record, its **commit point**. Returns the offsets of the new
    rows.

    With ``fields``, whole partitions by these fields are replaced; raises `CommitConflictError` if the partitioning
    changed. ``read`` is the version from which the new rows were computed; raises `CommitConflictError` if a selected
    row was added or deleted since. Also raises the errors of `Table.append`.
    """
    for attempt in range(_LOCATE_TRIES_MAX + 1):
        chosen = OverwriteTarget(table, choose, read, fields=fields, may_locate=attempt == _LOCATE_TRIES_MAX)
        if find_stored_transaction(table.refresh(), transaction) is None:
            chosen.locate()
        try:
            return chosen.commit_with_relocated_rows(
                lambda chosen: LogTableWriter(table).commit(staged, transaction=transaction, removing=chosen)
            )
        except _RelocateError:
            continue
        except OffsetsUnavailableError:
            if attempt == _LOCATE_TRIES_MAX:
                raise
    raise AssertionError


class OverwriteTarget:
    """The selected rows of a log table by offset, which each commit attempt updates to its state.

    Use an instance for one commit. Not thread-safe.
    """

    def __init__(
        self,
        table: TableHandle,
        choose: OverwriteFilterFactory,
        read: ReadVersion | None = None,
        *,
        fields: Sequence[PartitionField] | None = None,
        may_locate: bool,
    ) -> None:
        """Target the rows that ``choose`` selects. With ``fields``, the rows are whole partitions by these fields.

        With ``may_locate``, a commit attempt may locate all rows, even if that takes long.
        """
        self._fields = None if fields is None else tuple(fields)
        self._table = table
        self._choose = choose
        self._read = read
        self._may_locate = may_locate
        self._state: TableState | None = None
        self._base: ReadVersion | None = None
        """The version in which all rows were located, with the lake snapshots that were checked since."""
        self._rows: dict[int, OffsetSet] = {}
        self._files: FileRows = NO_FILE_ROWS
        """The selected rows without offsets, by file and position in the state's lake snapshot."""

    def locate(self) -> None:
        """Locate the rows in the latest state."""
        self._locate(self._table.refresh())

    def commit_with_relocated_rows(self, commit: Callable[[OverwriteTarget], BucketOffsets]) -> BucketOffsets:
        """Commit these rows, and return the result. See `read.lake_row_ids.retry_with_relocated_rows`."""

        def committed(base: ReadVersion) -> BucketOffsets:
            self._base = base
            return commit(self)

        base = self._base or ReadVersion.of(self._table.state)
        return retry_with_relocated_rows(self._table, lambda: self._rows, base, committed)

    def __call__(self, state: TableState) -> Sequence[Action]:
        """Return the actions that delete the rows of a state. Raises the errors of `make_delete_actions`."""
        if self._fields is not None:
            require_partitioned_by(state, self._fields)
        if self._state is None or not _can_advance(self._state, state, has_files=bool(self._files)):
            if not self._may_locate:
                raise _RelocateError
            self._locate(state)
        else:
            self._advance(self._state, state)
        self._require_unchanged(state)
        assert self._base is not None
        base_read = self._base
        base = replace(
            ReadVersion.of(state),
            lake_snapshot_id=base_read.lake_snapshot_id,
            checked_snapshots=base_read.checked_snapshots,
        )
        return make_delete_actions(state, self._rows, base, self._files)

    def _locate(self, state: TableState) -> None:
        initial = InitialSchema(None, reader="a replacement of rows of {name}", advice="run it again")
        snapshot, located = locate_latest_rows(self._table, state, self._choose, initial)
        self._state, self._base = snapshot.state, ReadVersion.of(snapshot.state)
        self._rows, self._files = dict(located.rows), located.files

    def _advance(self, followed_state: TableState, state: TableState) -> None:
        """Update the rows to a later state: remove rows that were deleted since, and add rows appended since."""
        ends = {
            bucket: OffsetRange(followed_state.buckets[bucket].end, log.end) for bucket, log in state.buckets.items()
        }
        appended = ReadSnapshot(state, None, {bucket: offsets for bucket, offsets in ends.items() if offsets})
        added = locate_rows(self._table, appended, self._choose(state.schema)).rows
        for bucket in {*self._rows, *added}:
            parts = [runs[bucket] for runs in (self._rows, added) if bucket in runs]
            runs = OffsetSet.union(parts)
            if bucket in state.deleted:
                runs = runs.without(state.deleted[bucket])
            self._rows[bucket] = runs
        if self._files:
            deleted_files = union_deleted_file_rows(state.deletions)
            left = {
                name: runs.without(deleted_files[name]) if name in deleted_files else runs
                for name, runs in self._files.items()
            }
            self._files = {name: runs for name, runs in left.items() if runs}
        self._state = state

    def _require_unchanged(self, state: TableState) -> None:
        """Raise `CommitConflictError` if a selected row was added, or any row deleted, since the read version."""
        if (read := self._read) is None:
            return
        read.require_same_table(state)
        for bucket, runs in self._rows.items():
            if added := runs.within(OffsetRange(read.buckets[bucket][1], state.buckets[bucket].end)):
                raise changed_since_read_error(
                    state, f"the row at offset {added.range.start} of bucket {bucket} was added to the part"
                )
        applied_through = read.history.number if read.history is not None else 0
        if deletion := next((d for d in state.deletions if d.commit > applied_through), None):
            raise changed_since_read_error(state, f"commit {deletion.commit} deleted rows")


def _can_advance(followed_state: TableState, state: TableState, *, has_files: bool) -> bool:
    """Return whether located rows can be updated to a later state by adding appended and removing deleted rows."""
    if followed_state is state or followed_state.version == state.version:
        return True
    if has_files and state.recorded_lake is not followed_state.recorded_lake:
        return False
    if state.schema_id != followed_state.schema_id or state.first_offsets != followed_state.first_offsets:
        return False
    if (lake := state.recorded_lake) is not followed_state.recorded_lake:
        before = followed_state.recorded_lake.dropped_rows if followed_state.recorded_lake is not None else 0
        if lake is None or lake.dropped_rows != before:
            return False
    if any(deletion.is_in_lake and deletion.commit > followed_state.version for deletion in state.deletions):
        return False
    return all(state.buckets[b].start <= log.end <= state.buckets[b].end for b, log in followed_state.buckets.items())
