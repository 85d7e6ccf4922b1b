"""Rollback: one record that restores the rows of an older version and keeps all history.

**Commit point:** the one record that deletes rows and adds others. Before it nothing has changed. Offsets are never
reused. In a log table the rows after the version's ends are deleted by offset, and rows deleted since are added with
new offsets. If a commit since truncated the table, the record does so too, and adds all rows of the version. In a
primary-key table the record has the net change of each key. Union reads, changes and the next tiering round handle it
like any other statement.

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
from streamhouse_spark.dml.delete import commit_with_conflict_check, make_delete_actions, mark_as_rewrite
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
from streamhouse_spark.log.commit_reader import (
    Deleted,
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
from streamhouse_spark.log.history import require_kept, state_at
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.segments.metadata_columns import BUCKET, LOG_OFFSET
from streamhouse_spark.log.staging import StagedRows, commit_staged, make_append_action
from streamhouse_spark.log.state import NO_DROPPED_ROWS, TableState
from streamhouse_spark.read.change_feed.commit_diff import find_dropped_rows
from streamhouse_spark.read.lake_row_ids import lake_has_offsets, read_lake_file
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_planning import ScanRequest, plan_scan
from streamhouse_spark.read.snapshot_reader import read_snapshot_rows
from streamhouse_spark.schema.variant import cast_rows
from streamhouse_spark.table.versioning.tags import list_pinned_segments, resolve_version
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.log_writer import LogTableWriter
from streamhouse_spark.write.upsert import PrimaryKeyTable, require_rewritable

_UNLOGGED_DROP: Final = "rows left the lake since that no record names (a dropped partition, or another engine)"


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """Changes that a rollback made, or with ``dry_run`` would make."""

    table: str
    version: int
    """The commit whose rows are restored."""
    seen_version: int
    """The latest commit when the rollback began."""
    rows_deleted: int
    """Deleted rows; in a primary-key table deleted keys."""
    rows_added: int
    """Restored rows; in a primary-key table restored keys. Keys with changed values count in neither."""
    dry_run: bool = False


def rollback_to_version(table: TableHandle, version: int | str, *, dry_run: bool = False) -> RollbackReport:
    """Restore the rows of a commit; see `Table.rollback_to_version`."""
    now = table.refresh()
    target = state_at(table.log, table.storage, resolve_version(now, version))
    _require_same_form(now, target)
    if now.primary_key:
        return _rollback_primary_key_table(table, now, target, dry_run=dry_run)
    return _rollback_log_table(table, now, target, dry_run=dry_run)


def rollback_to_timestamp(table: TableHandle, timestamp_ms: int, *, dry_run: bool = False) -> RollbackReport:
    """Roll back to the latest commit at or before a time; see `Table.rollback_to_timestamp`."""
    now = table.refresh()
    for record in iter_records_backwards(table.storage, now):
        if record.time_ms <= timestamp_ms:
            return rollback_to_version(table, record.number, dry_run=dry_run)
    raise SnapshotExpiredError(
        f"{table.name} as of {timestamp_ms} ms: no commit of that time or before is retained; choose a later time, "
        f"see {table.name}$history"
    )


def pin_version(table: TableHandle, version: int | str) -> ReadSnapshot:
    """Return the read snapshot of a commit or a tag. Raises as `Table.read_version`."""
    pin = take_latest_snapshot(state_at(table.log, table.storage, resolve_version(table.refresh(), version)))
    _require_log_kept(table, pin)
    return pin


def _require_same_form(now: TableState, target: TableState) -> None:
    if now.former_partitionings != target.former_partitionings:
        raise InvalidOptionError(
            f"table {now.name} cannot be rolled back to commit {target.version}: its partitioning was changed since, "
            "and the lake's files with it; set it back (set_partitioning) if you want it, and overwrite the table with "
            f"the rows of that version (VERSION AS OF {target.version})"
        )
    if now.schema.plain_columns != target.schema.plain_columns:
        raise InvalidOptionError(
            f"table {now.name} cannot be rolled back to commit {target.version}: its columns changed since, from "
            f"schema {target.schema_id} to {now.schema_id}; read that version (VERSION AS OF {target.version}) and "
            "write its rows by the columns of today"
        )


# -- log tables --------------------------------------------------------------------------------------------------------


def _rollback_log_table(table: TableHandle, now: TableState, target: TableState, *, dry_run: bool) -> RollbackReport:
    require_deletable(now)
    if now.first_offsets != target.first_offsets:
        return _rollback_past_truncation(table, now, target, dry_run=dry_run)
    deleted, of_files = _find_deleted_since(table, now, target)
    _require_files(table, now, target, of_files)
    removed, lost = {}, {}
    for bucket, log in now.buckets.items():
        end, runs = target.buckets[bucket].end, deleted.get(bucket, OffsetSet.dense(0, 0))
        removed[bucket] = OffsetSet.dense(end, log.end - end).without(runs)
        lost[bucket] = runs.within(OffsetRange(0, end))
    removed, lost = ({b: runs for b, runs in runs_by_bucket.items() if runs} for runs_by_bucket in (removed, lost))
    num_added = _count_rows(lost) + sum(count_rows(action.files) for _, action in of_files)
    num_counted = num_added - _count_other_drops(now) + _count_other_drops(target)
    if ADOPTED not in now.properties and now.num_rows - _count_rows(removed) + num_counted != target.num_rows:
        raise _unsupported_error(
            now, target, "rows left it that no record names (a dropped partition, or another engine)"
        )
    if not lake_has_offsets(table, now, removed):  # another engine may have rewritten the files
        raise _unsupported_error(
            now, target, "rows that were appended since lost their offsets, as another engine wrote them again"
        )
    report = RollbackReport(table.name, target.version, now.version, _count_rows(removed), num_added, dry_run)
    if not dry_run and (removed or num_added):
        added = [_read_deleted_rows(table, now, target, lost)] if lost else []
        added += [_read_files(table, now, action) for _, action in of_files]
        _commit_rollback(
            table,
            now,
            target,
            removed,
            _stage_returning_rows(table, now, pa.concat_tables(added)) if num_added else None,
        )
    return report


def _rollback_past_truncation(
    table: TableHandle, now: TableState, target: TableState, *, dry_run: bool
) -> RollbackReport:
    """Roll back to a version before a truncation: the record truncates again and adds the rows of the version."""
    pin = take_latest_snapshot(target)
    _require_log_kept(table, pin)
    rows = read_snapshot_rows(table, pin, Projection.of(target.schema, None, None))
    report = RollbackReport(table.name, target.version, now.version, now.num_rows, rows.num_rows, dry_run)
    if not dry_run:

        def require(state: TableState) -> None:
            ReadVersion.of(now).require_same_table(state)
            _require_unchanged(state, now)

        staged, transaction = _stage_returning_rows(table, now, rows), _transaction(now, target)
        commit_staged(table.log, staged, transaction=transaction, overwrite=True, require=require)
    return report


def _count_other_drops(state: TableState) -> int:
    """Return the rows dropped with lake partitions that are not counted in the state's rows."""
    return state.lake.dropped_without_offsets if state.lake is not None else 0


def _unsupported_error(now: TableState, target: TableState, why: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"table {now.name} cannot be rolled back to commit {target.version}: {why}; read that version (VERSION AS OF "
        f"{target.version}) and overwrite the table with its rows"
    )


def _find_deleted_since(
    table: TableHandle, now: TableState, target: TableState
) -> tuple[dict[int, OffsetSet], list[tuple[int, DeleteRows]]]:
    """Return bucket → offsets deleted after ``target``, and the deletions of lake file rows with their record numbers.

    States forget deletions once the lake has applied them, so the records are read. Rows of partitions that were
    dropped while the log had them are included. Raises `InvalidOptionError` if the lake lost rows that no record names,
    `SnapshotExpiredError` if the records are no longer retained.
    """
    parts: dict[int, list[OffsetSet]] = {}
    named = [
        Deleted(bucket_runs.commit, bucket_runs.rows, count_rows(bucket_runs.files)) for bucket_runs in target.deletions
    ]
    of_files: list[tuple[int, DeleteRows]] = []
    pairs: list[tuple[TieredSnapshot, bool]] = []
    expected = now.version
    for record in iter_records_backwards(table.storage, now):
        if record.number <= target.version:
            break
        expected = record.number - 1
        dropped = find_partition_drop(record.actions)
        if dropped is not None and not dropped.names_all_rows(is_adopted=ADOPTED in now.properties):
            for bucket, runs in _find_lost_rows(table, now, target, record, dropped).items():
                parts.setdefault(bucket, []).append(runs)
        for deletion in iter_deletions(record):
            named.append(Deleted(record.number, deletion.rows, count_rows(deletion.files)))
            if deletion.files:
                of_files.append((record.number, deletion))
            for bucket, runs in deletion.rows.items():
                parts.setdefault(bucket, []).append(runs)
        for action in (action for part in record.attempts for action in part.actions):
            if isinstance(action, TieredSnapshot):
                pairs.append((action, dropped is not None))
            elif isinstance(action, ResetLake):
                raise _unsupported_error(now, target, "its lake was rebuilt since")
    if expected != target.version:
        raise SnapshotExpiredError(
            f"{now.name}: commits {target.version + 1} to {expected} are no longer retained, and a rollback to "
            f"commit {target.version} needs them; choose a later commit of {now.name}$history"
        )
    since = {bucket: OffsetSet.union(bucket_runs) for bucket, bucket_runs in parts.items()}
    ever = {
        b: OffsetSet.merged([bucket_runs[b] for bucket_runs in (since, target.deleted) if b in bucket_runs])
        for b in now.buckets
    }
    _require_named(now, target, pairs, ever, named)
    return since, of_files


def _find_lost_rows(
    table: TableHandle, now: TableState, target: TableState, record: Record, dropped: PartitionDropRows
) -> Mapping[int, OffsetSet]:
    """Return the rows of a dropped partition that its record does not name.

    Raises `InvalidOptionError` if the lake can no longer tell them.
    """
    actions = (action for part in record.attempts for action in part.actions)
    pair = next((action for action in actions if isinstance(action, TieredSnapshot)), None)
    lost = None if pair is None else find_dropped_rows(table, record.number, pair, dropped)
    if lost is None:
        raise _unsupported_error(now, target, _UNLOGGED_DROP)
    return lost


def _require_named(
    now: TableState,
    target: TableState,
    pairs: Sequence[tuple[TieredSnapshot, bool]],
    deleted: Mapping[int, OffsetSet],
    named: Sequence[Deleted],
) -> None:
    """Raise unless records name the rows that the lake lost since.

    ``pairs`` are tiered snapshots, latest first, each with whether its record names the rows.
    """
    before = target.lake
    for pair, is_named in reversed(pairs):
        if ADOPTED in now.properties:
            has_drop = has_dropped_adopted_rows(before, pair, deleted, named)
        else:
            has_drop = has_dropped_rows(before, pair, deleted)
        if has_drop and not is_named:
            raise _unsupported_error(now, target, _UNLOGGED_DROP)
        before = pair


def _require_files(
    table: TableHandle, now: TableState, target: TableState, of_files: Sequence[tuple[int, DeleteRows]]
) -> None:
    """Raise unless deleted rows of lake files were in the table at ``target``.

    Their file must be in the target's lake snapshot, or be written by a round from rows of that time. Rows in another
    file may have been appended since and lost their offsets.
    """
    if not of_files:
        return
    names, lake = StorageFiles(table.storage), table.open_lake().with_state(target)
    before = target.lake.snapshot_id if target.lake is not None else None
    target_files = set(map(names.name_of, lake.list_named_files(before))) if before is not None else set()

    def existed(action: DeleteRows) -> bool:
        if action.files.keys() <= target_files:
            return True
        later, replaceable = action.snapshot_id, lake.capabilities.replaceable
        if before is None or later is None or replaceable is None:
            return False
        return replaceable.adds_no_foreign_rows(before, later)

    if number := next((number for number, action in of_files if not existed(action)), None):
        raise _unsupported_error(
            now, target, f"commit {number} deleted rows that have no offsets, of files that the lake did not have then"
        )


def _read_files(table: TableHandle, now: TableState, action: DeleteRows) -> pa.Table:
    """Read rows of lake files from the snapshot in which they were deleted.

    Raises `SnapshotExpiredError`, `CorruptDataError`.
    """
    assert action.snapshot_id is not None
    tables = [now.schema.arrow.empty_table()]
    for name, runs in action.files.items():
        for positions, batch in read_lake_file(table, now.schema, action.snapshot_id, name):
            tables.append(pa.Table.from_batches([batch.filter(pa.array(runs.holds(positions)))]))
    rows = pa.concat_tables(tables)
    if rows.num_rows != count_rows(action.files):
        raise CorruptDataError(
            f"{now.name}: lake snapshot {action.snapshot_id} has {rows.num_rows} of {count_rows(action.files)} rows "
            "that were deleted in it; run streamhouse verify"
        )
    return rows


def _stage_returning_rows(table: TableHandle, now: TableState, rows: pa.Table) -> StagedRows:
    """Stage the restored rows, marked as written by an operation that read the table."""
    log_writer = LogTableWriter(table)
    state, fitted, missing = log_writer.fit_rows(rows)
    if state.schema_id != now.schema_id:
        raise _changed_error(state, now, "its columns changed")
    return mark_as_rewrite(log_writer.restoring_stager(state).stage(fitted, missing))


def _read_deleted_rows(
    table: TableHandle, now: TableState, target: TableState, lost: Mapping[int, OffsetSet]
) -> pa.Table:
    """Read deleted rows from the log if it still holds all of them, else as the older state read them."""
    if all(runs.range.start >= now.buckets[bucket].start for bucket, runs in lost.items()):
        pin = ReadSnapshot(
            replace(now, deletions=NO_DELETIONS, dropped_rows=NO_DROPPED_ROWS),
            None,
            {bucket: runs.range for bucket, runs in lost.items()},
        )
    else:
        pin = take_latest_snapshot(target)
        _require_log_kept(table, pin)
    plan = plan_scan(table, pin, ScanRequest(None)).plan(table)
    names, tables = list(now.schema.names), [now.schema.arrow.empty_table()]
    for batch in read_batches(table, plan, (BUCKET, LOG_OFFSET)):
        runs = lost.get(batch.column(BUCKET.name)[0].as_py()) if batch.num_rows else None
        if runs is not None:
            offsets = pc.fill_null(batch.column(LOG_OFFSET.name), -1).to_numpy(zero_copy_only=False)
            chosen = batch.filter(pa.array(runs.holds(offsets)))
            tables.append(cast_rows(pa.Table.from_batches([chosen]).select(names), tables[0].schema))
    rows = pa.concat_tables(tables)
    if rows.num_rows != _count_rows(lost):
        raise OffsetsTrimmedError(
            f"{now.name}: {_count_rows(lost)} rows were deleted since commit {target.version}, and {rows.num_rows} of "
            f"them are still found by their offsets; choose a later commit of {now.name}$history"
        )
    return rows


def _transaction(now: TableState, target: TableState) -> Transaction:
    """Return the transaction by which the history recognizes a rollback."""
    return Transaction(f"{ROLLBACKS}{now.version}", target.version)


def _commit_rollback(
    table: TableHandle,
    now: TableState,
    target: TableState,
    removed: Mapping[int, OffsetSet],
    staged: StagedRows | None,
) -> None:
    def plan(state: TableState, time_ms: int, read: ReadVersion) -> Sequence[Action]:
        read.require_same_table(state)
        _require_unchanged(state, now)
        deletions = make_delete_actions(state, removed, read)
        if sum(_count_rows(deletion.rows) for deletion in deletions) < _count_rows(removed):
            raise _changed_error(state, now, "rows that go were trimmed")
        return deletions if staged is None else (*deletions, make_append_action(state, staged, time_ms))

    transaction = _transaction(now, target)
    commit_with_conflict_check(table, removed, ReadVersion.of(now), plan, transaction=transaction, staged=staged)


def _require_unchanged(state: TableState, now: TableState) -> None:
    """Raise `CommitConflictError` unless both states have the same rows and columns."""
    if state.schema_id != now.schema_id:
        raise _changed_error(state, now, "its columns changed")
    if state.ends != now.ends:
        raise _changed_error(state, now, "rows were added")
    if any(deletion.commit > now.version for deletion in state.deletions):
        raise _changed_error(state, now, "rows were deleted")
    pairs = {pair.snapshot_id for pair in now.lake_history}
    newer = (pair for pair in state.lake_history if pair.snapshot_id not in pairs)
    for before, pair in pairwise((now.lake, *newer)):
        if pair is None:
            continue
        if ADOPTED in now.properties:  # adopted rows are not counted, so that any such row is too many
            has_drop = pair.dropped_rows > (before.dropped_rows if before is not None else 0)
        else:
            has_drop = has_dropped_rows(before, pair, state.deleted)
        if has_drop:
            raise _changed_error(state, now, "a partition was dropped")
    if state.num_rows != now.num_rows:
        raise _changed_error(state, now, "rows left the lake")


def _changed_error(state: TableState, now: TableState, change: str) -> CommitConflictError:
    return CommitConflictError(
        f"{state.name} changed while a rollback that had read commit {now.version} was running: {change}; nothing "
        "was written, run it again if these changes may be rolled back too"
    )


def _count_rows(rows: Mapping[int, OffsetSet]) -> int:
    return sum(runs.num_rows for runs in rows.values())


def _require_log_kept(table: TableHandle, pin: ReadSnapshot) -> None:
    """Raise unless the log files and key-value snapshots of a read snapshot of an older state are retained."""
    require_kept(table.log, pin.state, list_pinned_segments(pin))


# -- primary-key tables ------------------------------------------------------------------------------------------------


def _rollback_primary_key_table(
    table: TableHandle, now: TableState, target: TableState, *, dry_run: bool
) -> RollbackReport:
    keyed = PrimaryKeyTable(table)
    shape = keyed.shape(now)
    require_rewritable(table.name, shape.properties, deletes=True)
    pin = take_latest_snapshot(target)
    _require_log_kept(table, pin)
    older = read_snapshot_rows(table, pin, Projection.of(target.schema, None, None))
    newer = read_snapshot_rows(table, take_latest_snapshot(now), Projection.of(now.schema, None, None))
    target_keys, current_keys = shape.layout.keys(older.columns), shape.layout.keys(newer.columns)
    removed = newer.filter(pc.invert(pc.is_in(current_keys, value_set=target_keys)))
    num_added = older.num_rows - (newer.num_rows - removed.num_rows)
    report = RollbackReport(table.name, target.version, now.version, removed.num_rows, num_added, dry_run)
    if not dry_run:
        deleted = np.arange(removed.num_rows + older.num_rows) < removed.num_rows
        batches = shape.batches(pa.concat_tables([removed, older]), deleted)
        engine = engine_of(
            replace(shape.properties, identity=None), shape.schema, None
        )  # rows keep their old identity values
        read = replace(ReadVersion.of(now), is_strict=True)
        transaction = None if older.equals(newer) else _transaction(now, target)
        keyed.commit(shape, batches, engine, transaction=transaction, read=read)
    return report
