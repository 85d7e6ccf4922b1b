"""Rollback: one record that restores the rows of an older version and keeps all history.

**Commit point:** the record that deletes and adds rows. In a log table, rows that were added since are deleted by
offset, and rows that were deleted since are added with new offsets. If the table was truncated since, the record
truncates it again and adds all rows of the version. In a primary-key table the record has the net change of each key.
Union reads, changes and the next tiering round handle the record like that of any other statement.

A concurrent append, deletion or schema change conflicts with the rollback, and is never undone silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.config.table_properties import ADOPTED
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import ROLLBACKS, OffsetRange, Transaction
from streamhouse_spark.dml.conflict_check import commit_with_conflict_check, make_delete_actions
from streamhouse_spark.dml.rewrite import mark_as_rewrite
from streamhouse_spark.dml.validation import require_deletable
from streamhouse_spark.errors import (
    CommitConflictError,
    CorruptDataError,
    InvalidOptionError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
)
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.kv.primary_key_properties import engine_of
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.log.actions import Action, ResetLake, TieredSnapshot
from streamhouse_spark.log.append_commit import commit_append, make_append_action
from streamhouse_spark.log.commit_reader import (
    RecordDeletion,
    find_partition_drop,
    has_dropped_adopted_rows,
    has_dropped_rows,
    iter_deletions,
    iter_records_backwards,
)
from streamhouse_spark.log.deletion_vectors import (
    NO_DELETIONS,
    DeleteRows,
    PartitionDropRows,
    count_rows,
)
from streamhouse_spark.log.history import require_retained_segments, state_at
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.segments.metadata_columns import BUCKET, LOG_OFFSET
from streamhouse_spark.log.staging import StagedRows
from streamhouse_spark.log.state import NO_DROPPED_ROWS, TableState
from streamhouse_spark.read.change_feed.commit_diff import find_dropped_rows
from streamhouse_spark.read.lake_row_ids import lake_has_offsets, read_lake_file
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_planning import ScanRequest, plan_scan
from streamhouse_spark.read.snapshot_reader import read_snapshot_rows
from streamhouse_spark.schema.variant import cast_rows
from streamhouse_spark.table.versioning.tags import list_segments, resolve_version
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.log_writer import LogTableWriter
from streamhouse_spark.write.upsert import PrimaryKeyTable, require_rewritable

_UNLOGGED_DROP: Final = "rows that no record names were removed from the lake (a dropped partition, or another engine)"


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """The changes of a rollback, or with ``dry_run`` the changes that it would make."""

    table: str
    version: int
    """The commit whose rows are restored."""
    seen_version: int
    """The latest commit when the rollback began."""
    rows_deleted: int
    """Deleted rows, or deleted keys of a primary-key table."""
    rows_added: int
    """Restored rows, or restored keys of a primary-key table. Neither number includes keys with changed values."""
    dry_run: bool = False


def rollback_to_version(table: TableHandle, version: int | str, *, dry_run: bool = False) -> RollbackReport:
    """Restore the rows of a commit; see `Table.rollback_to_version`."""
    current = table.refresh()
    target = state_at(table.log, table.storage, resolve_version(current, version))
    _require_same_form(current, target)
    if current.primary_key:
        return _rollback_primary_key_table(table, current, target, dry_run=dry_run)
    return _rollback_log_table(table, current, target, dry_run=dry_run)


def rollback_to_timestamp(table: TableHandle, timestamp_ms: int, *, dry_run: bool = False) -> RollbackReport:
    """Roll back to the latest commit at or before a time; see `Table.rollback_to_timestamp`."""
    current = table.refresh()
    for record in iter_records_backwards(table.storage, current):
        if record.time_ms <= timestamp_ms:
            return rollback_to_version(table, record.number, dry_run=dry_run)
    raise SnapshotExpiredError(
        f"{table.name} as of {timestamp_ms} ms: no commit at or before that time is retained; choose a later time from "
        f"{table.name}$history"
    )


def snapshot_of_version(table: TableHandle, version: int | str) -> ReadSnapshot:
    """Return the read snapshot of a commit or a tag. Raises the errors of `Table.read_version`."""
    snapshot = take_latest_snapshot(state_at(table.log, table.storage, resolve_version(table.refresh(), version)))
    _require_log_kept(table, snapshot)
    return snapshot


def _require_same_form(current: TableState, target: TableState) -> None:
    if current.former_partitionings != target.former_partitionings:
        raise InvalidOptionError(
            f"table {current.name} cannot be rolled back to commit {target.version}: its partitioning was changed "
            "since; restore the partitioning with set_partitioning if you need it, and overwrite the table with the "
            f"rows of that version (VERSION AS OF {target.version})"
        )
    if current.schema.storage_columns != target.schema.storage_columns:
        raise InvalidOptionError(
            f"table {current.name} cannot be rolled back to commit {target.version}: its columns changed since, from "
            f"schema {target.schema_id} to {current.schema_id}; read that version (VERSION AS OF {target.version}) and "
            "write its rows with the current columns"
        )


# -- log tables --------------------------------------------------------------------------------------------------------


def _rollback_log_table(
    table: TableHandle, current: TableState, target: TableState, *, dry_run: bool
) -> RollbackReport:
    require_deletable(current)
    if current.first_offsets != target.first_offsets:
        return _rollback_past_truncation(table, current, target, dry_run=dry_run)
    deleted, file_deletions = _find_deleted_since(table, current, target)
    _require_files(table, current, target, file_deletions)
    removed, lost = {}, {}
    for bucket, log in current.buckets.items():
        end, runs = target.buckets[bucket].end, deleted.get(bucket, OffsetSet.dense(0, 0))
        removed[bucket] = OffsetSet.dense(end, log.end - end).without(runs)
        lost[bucket] = runs.within(OffsetRange(0, end))
    removed, lost = ({b: runs for b, runs in runs_by_bucket.items() if runs} for runs_by_bucket in (removed, lost))
    num_added = _count_rows(lost) + sum(count_rows(action.files) for _, action in file_deletions)
    num_counted = num_added - _count_other_drops(current) + _count_other_drops(target)
    if ADOPTED not in current.properties and current.num_rows - _count_rows(removed) + num_counted != target.num_rows:
        raise _unsupported_error(current, target, _UNLOGGED_DROP)
    if not lake_has_offsets(table, current, removed):
        raise _unsupported_error(
            current,
            target,
            "rows that were appended since lost their offsets, because another engine rewrote their files",
        )
    report = RollbackReport(table.name, target.version, current.version, _count_rows(removed), num_added, dry_run)
    if not dry_run and (removed or num_added):
        added = [_read_deleted_rows(table, current, target, lost)] if lost else []
        added += [_read_files(table, current, action) for _, action in file_deletions]
        _commit_rollback(
            table,
            current,
            target,
            removed,
            _stage_returning_rows(table, current, pa.concat_tables(added)) if num_added else None,
        )
    return report


def _rollback_past_truncation(
    table: TableHandle, current: TableState, target: TableState, *, dry_run: bool
) -> RollbackReport:
    """Roll back to a version before a truncation: truncate the table and add the rows of the version."""
    snapshot = take_latest_snapshot(target)
    _require_log_kept(table, snapshot)
    rows = read_snapshot_rows(table, snapshot, Projection.of(target.schema, None, None))
    report = RollbackReport(table.name, target.version, current.version, current.num_rows, rows.num_rows, dry_run)
    if not dry_run:

        def require(state: TableState) -> None:
            ReadVersion.of(current).require_same_table(state)
            _require_unchanged(state, current)

        staged, transaction = _stage_returning_rows(table, current, rows), _transaction(current, target)
        commit_append(table.log, staged, transaction=transaction, overwrite=True, require=require)
    return report


def _count_other_drops(state: TableState) -> int:
    """Return the number of rows without offsets in dropped partitions, which ``num_rows`` of the state includes."""
    return state.lake.dropped_without_offsets if state.lake is not None else 0


def _unsupported_error(current: TableState, target: TableState, why: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"table {current.name} cannot be rolled back to commit {target.version}: {why}; read that version (VERSION AS "
        f"OF {target.version}) and overwrite the table with its rows"
    )


def _find_deleted_since(
    table: TableHandle, current: TableState, target: TableState
) -> tuple[dict[int, OffsetSet], list[tuple[int, DeleteRows]]]:
    """Return bucket → offsets deleted after ``target``, and the deletions of lake file rows with their record numbers.

    Reads the records, because a state omits deletions that the lake has applied. Offsets of dropped partitions are
    included. Raises `InvalidOptionError` if rows that no record names were removed from the lake, and
    `SnapshotExpiredError` if the records are no longer retained.
    """
    parts: dict[int, list[OffsetSet]] = {}
    named = [
        RecordDeletion(deletion.commit, deletion.rows, count_rows(deletion.files)) for deletion in target.deletions
    ]
    file_deletions: list[tuple[int, DeleteRows]] = []
    tiered_snapshots: list[tuple[TieredSnapshot, bool]] = []
    expected = current.version
    for record in iter_records_backwards(table.storage, current):
        if record.number <= target.version:
            break
        expected = record.number - 1
        dropped = find_partition_drop(record.actions)
        if dropped is not None and not dropped.names_all_rows(is_adopted=ADOPTED in current.properties):
            for bucket, runs in _find_lost_rows(table, current, target, record, dropped).items():
                parts.setdefault(bucket, []).append(runs)
        for deletion in iter_deletions(record):
            named.append(RecordDeletion(record.number, deletion.rows, count_rows(deletion.files)))
            if deletion.files:
                file_deletions.append((record.number, deletion))
            for bucket, runs in deletion.rows.items():
                parts.setdefault(bucket, []).append(runs)
        for action in (action for part in record.attempts for action in part.actions):
            if isinstance(action, TieredSnapshot):
                tiered_snapshots.append((action, dropped is not None))
            elif isinstance(action, ResetLake):
                raise _unsupported_error(current, target, "its lake was rebuilt since")
    if expected != target.version:
        raise SnapshotExpiredError(
            f"{current.name}: a rollback to commit {target.version} needs commits {target.version + 1} to {expected}, "
            f"which are no longer retained; choose a later commit of {current.name}$history"
        )
    since = {bucket: OffsetSet.union(bucket_runs) for bucket, bucket_runs in parts.items()}
    ever = {
        b: OffsetSet.merged([bucket_runs[b] for bucket_runs in (since, target.deleted) if b in bucket_runs])
        for b in current.buckets
    }
    _require_named(current, target, tiered_snapshots, ever, named)
    return since, file_deletions


def _find_lost_rows(
    table: TableHandle, current: TableState, target: TableState, record: Record, dropped: PartitionDropRows
) -> Mapping[int, OffsetSet]:
    """Return the rows of a dropped partition that the record does not name.

    Raises `InvalidOptionError` if the lake snapshots with these rows have expired.
    """
    actions = (action for part in record.attempts for action in part.actions)
    tiered = next((action for action in actions if isinstance(action, TieredSnapshot)), None)
    lost = None if tiered is None else find_dropped_rows(table, record.number, tiered, dropped)
    if lost is None:
        raise _unsupported_error(current, target, _UNLOGGED_DROP)
    return lost


def _require_named(
    current: TableState,
    target: TableState,
    tiered_snapshots: Sequence[tuple[TieredSnapshot, bool]],
    deleted: Mapping[int, OffsetSet],
    named: Sequence[RecordDeletion],
) -> None:
    """Raise unless records name all rows that were removed from the lake since.

    ``tiered_snapshots`` are the tiered snapshots, latest first, and whether their records name the rows.
    """
    before = target.lake
    for tiered, is_named in reversed(tiered_snapshots):
        if ADOPTED in current.properties:
            has_drop = has_dropped_adopted_rows(before, tiered, deleted, named)
        else:
            has_drop = has_dropped_rows(before, tiered, deleted)
        if has_drop and not is_named:
            raise _unsupported_error(current, target, _UNLOGGED_DROP)
        before = tiered


def _require_files(
    table: TableHandle, current: TableState, target: TableState, file_deletions: Sequence[tuple[int, DeleteRows]]
) -> None:
    """Raise unless the deleted rows of lake files were in the table at ``target``.

    Their files must be in the lake snapshot of ``target``, or written by a later round from rows that existed. Rows in
    other files may have been appended since and lost their offsets.
    """
    if not file_deletions:
        return
    names, lake = StorageFiles(table.storage), table.open_lake().with_state(target)
    before = target.lake.snapshot_id if target.lake is not None else None
    target_files = set(map(names.name_of, lake.list_named_files(before))) if before is not None else set()

    def existed(action: DeleteRows) -> bool:
        if action.files.keys() <= target_files:
            return True
        later, replaceable = action.snapshot_id, lake.capabilities.snapshot_replacement
        if before is None or later is None or replaceable is None:
            return False
        return replaceable.adds_no_foreign_rows(before, later)

    if number := next((number for number, action in file_deletions if not existed(action)), None):
        raise _unsupported_error(
            current, target, f"commit {number} deleted rows without offsets in files that are newer than that version"
        )


def _read_files(table: TableHandle, current: TableState, action: DeleteRows) -> pa.Table:
    """Read deleted rows of lake files from the snapshot in which they were deleted.

    Raises `SnapshotExpiredError`, `CorruptDataError`.
    """
    assert action.snapshot_id is not None
    tables = [current.schema.arrow.empty_table()]
    for name, runs in action.files.items():
        for positions, batch in read_lake_file(table, current.schema, action.snapshot_id, name):
            tables.append(pa.Table.from_batches([batch.filter(pa.array(runs.holds(positions)))]))
    rows = pa.concat_tables(tables)
    if rows.num_rows != count_rows(action.files):
        raise CorruptDataError(
            f"{current.name}: lake snapshot {action.snapshot_id} has {rows.num_rows} deleted rows, expected "
            f"{count_rows(action.files)}; run streamhouse verify"
        )
    return rows


def _stage_returning_rows(table: TableHandle, current: TableState, rows: pa.Table) -> StagedRows:
    """Stage the restored rows, marked as written by an operation that read the table."""
    log_writer = LogTableWriter(table)
    state, fitted, missing = log_writer.fit_rows(rows)
    if state.schema_id != current.schema_id:
        raise _changed_error(state, current, "its columns changed")
    return mark_as_rewrite(log_writer.restoring_stager(state).stage(fitted, missing))


def _read_deleted_rows(
    table: TableHandle, current: TableState, target: TableState, lost: Mapping[int, OffsetSet]
) -> pa.Table:
    """Read deleted rows from the log if it retains all of them, else from the snapshot of ``target``."""
    if all(runs.range.start >= current.buckets[bucket].start for bucket, runs in lost.items()):
        snapshot = ReadSnapshot(
            replace(current, deletions=NO_DELETIONS, dropped_rows=NO_DROPPED_ROWS),
            None,
            {bucket: runs.range for bucket, runs in lost.items()},
        )
    else:
        snapshot = take_latest_snapshot(target)
        _require_log_kept(table, snapshot)
    plan = plan_scan(table, snapshot, ScanRequest(None)).plan(table)
    names, tables = list(current.schema.names), [current.schema.arrow.empty_table()]
    for batch in read_batches(table, plan, (BUCKET, LOG_OFFSET)):
        runs = lost.get(batch.column(BUCKET.name)[0].as_py()) if batch.num_rows else None
        if runs is not None:
            offsets = pc.fill_null(batch.column(LOG_OFFSET.name), -1).to_numpy(zero_copy_only=False)
            chosen = batch.filter(pa.array(runs.holds(offsets)))
            tables.append(cast_rows(pa.Table.from_batches([chosen]).select(names), tables[0].schema))
    rows = pa.concat_tables(tables)
    if rows.num_rows != _count_rows(lost):
        raise OffsetsTrimmedError(
            f"{current.name}: found {rows.num_rows} of the {_count_rows(lost)} rows that were deleted since commit "
            f"{target.version}; choose a later commit of {current.name}$history"
        )
    return rows


def _transaction(current: TableState, target: TableState) -> Transaction:
    """Return the transaction that marks the commit as a rollback in the history."""
    return Transaction(f"{ROLLBACKS}{current.version}", target.version)


def _commit_rollback(
    table: TableHandle,
    current: TableState,
    target: TableState,
    removed: Mapping[int, OffsetSet],
    staged: StagedRows | None,
) -> None:
    def plan(state: TableState, time_ms: int, read: ReadVersion) -> Sequence[Action]:
        read.require_same_table(state)
        _require_unchanged(state, current)
        deletions = make_delete_actions(state, removed, read)
        if sum(_count_rows(deletion.rows) for deletion in deletions) < _count_rows(removed):
            raise _changed_error(state, current, "rows to delete were trimmed")
        return deletions if staged is None else (*deletions, make_append_action(state, staged, time_ms))

    transaction = _transaction(current, target)
    commit_with_conflict_check(table, removed, ReadVersion.of(current), plan, transaction=transaction, staged=staged)


def _require_unchanged(state: TableState, current: TableState) -> None:
    """Raise `CommitConflictError` unless both states have the same rows and columns."""
    if state.schema_id != current.schema_id:
        raise _changed_error(state, current, "its columns changed")
    if state.ends != current.ends:
        raise _changed_error(state, current, "rows were added")
    if any(deletion.commit > current.version for deletion in state.deletions):
        raise _changed_error(state, current, "rows were deleted")
    tiered_snapshots = {tiered.snapshot_id for tiered in current.lake_history}
    newer = (tiered for tiered in state.lake_history if tiered.snapshot_id not in tiered_snapshots)
    for before, tiered in pairwise((current.lake, *newer)):
        if tiered is None:
            continue
        if ADOPTED in current.properties:  # deleted adopted rows cannot be distinguished from dropped rows
            has_drop = tiered.dropped_rows > (before.dropped_rows if before is not None else 0)
        else:
            has_drop = has_dropped_rows(before, tiered, state.deleted)
        if has_drop:
            raise _changed_error(state, current, "a partition was dropped")
    if state.num_rows != current.num_rows:
        raise _changed_error(state, current, "rows were removed from the lake")


def _changed_error(state: TableState, current: TableState, change: str) -> CommitConflictError:
    return CommitConflictError(
        f"{state.name} changed during a rollback that started at commit {current.version}: {change}; nothing was "
        "written, run it again if these changes may be rolled back too"
    )


def _count_rows(rows: Mapping[int, OffsetSet]) -> int:
    return sum(runs.num_rows for runs in rows.values())


def _require_log_kept(table: TableHandle, snapshot: ReadSnapshot) -> None:
    """Raise unless the log files and key-value snapshots of the read snapshot are retained."""
    require_retained_segments(table.log, snapshot.state, list_segments(snapshot))


# -- primary-key tables ------------------------------------------------------------------------------------------------


def _rollback_primary_key_table(
    table: TableHandle, current: TableState, target: TableState, *, dry_run: bool
) -> RollbackReport:
    keyed = PrimaryKeyTable(table)
    keyed_schema = keyed.keyed_schema(current)
    require_rewritable(table.name, keyed_schema.properties, deletes=True)
    snapshot = take_latest_snapshot(target)
    _require_log_kept(table, snapshot)
    older = read_snapshot_rows(table, snapshot, Projection.of(target.schema, None, None))
    newer = read_snapshot_rows(table, take_latest_snapshot(current), Projection.of(current.schema, None, None))
    target_keys, current_keys = keyed_schema.layout.keys(older.columns), keyed_schema.layout.keys(newer.columns)
    removed = newer.filter(pc.invert(pc.is_in(current_keys, value_set=target_keys)))
    num_added = older.num_rows - (newer.num_rows - removed.num_rows)
    report = RollbackReport(table.name, target.version, current.version, removed.num_rows, num_added, dry_run)
    if not dry_run:
        deleted = np.arange(removed.num_rows + older.num_rows) < removed.num_rows
        batches = keyed_schema.batches(pa.concat_tables([removed, older]), deleted)
        engine = engine_of(
            replace(keyed_schema.properties, identity=None), keyed_schema.schema, None
        )  # rows keep their old identity values
        read = replace(ReadVersion.of(current), is_strict=True)
        transaction = None if older.equals(newer) else _transaction(current, target)
        keyed.commit(keyed_schema, batches, engine, transaction=transaction, read=read)
    return report
