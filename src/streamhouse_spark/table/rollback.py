"""Rolling a table back: one record after which it has the rows of an older version, and nothing of history is lost.

**Commit point:** the one record that deletes rows and adds others. Before it nothing has changed. Offsets are never
used again: of a table without a primary key the rows above the version's ends are deleted by their offsets, and rows
deleted since are added again, with new offsets. Where a commit since removed all rows at once, the record does so
again, and adds all rows of the version. With a primary key the record has the net change of each key. So union reads,
changes and the next tiering round follow as they follow any other statement.

The record names what it saw: an append, a deletion or a change of columns that others commit meanwhile is a conflict,
and is never undone in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.config.properties import ADOPTED
from streamhouse_spark.core import arrow_chunking
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetRuns
from streamhouse_spark.core.types import ROLLBACKS, OffsetRange, Transaction
from streamhouse_spark.errors import (
    CommitConflictError,
    CorruptDataError,
    InvalidOptionError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
)
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.kv.log_replay import KeyedLayout
from streamhouse_spark.kv.read_version import ReadVersion
from streamhouse_spark.kv.table_config import engine_of
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.log.commit_reader import (
    Deleted,
    deletions_in,
    drops_adopted,
    drops_rows,
    find_partition_drop,
    newest_first,
)
from streamhouse_spark.log.commits.actions import Action, ResetLake, TieredSnapshot
from streamhouse_spark.log.commits.delete_vectors import (
    NO_DELETIONS,
    NO_DROPPED_ROWS,
    DeleteRows,
    PartitionDropRows,
    num_rows_of,
)
from streamhouse_spark.log.commits.history import require_kept, state_at
from streamhouse_spark.log.commits.record import Record
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.metadata_columns import BUCKET, LOG_OFFSET
from streamhouse_spark.log.staging import StagedRows, commit_staged, make_append_action
from streamhouse_spark.query.projection import Projection, parse_filter
from streamhouse_spark.read.change_feed.lake_only_rows import find_rows_lost_by_record
from streamhouse_spark.read.lake_row_ids import have_offsets, read_file
from streamhouse_spark.read.planner import ScanRequest, plan_pin
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.union_read import read_pin
from streamhouse_spark.schema.variant import cast_rows
from streamhouse_spark.table.rewrite_validation import require_deletable
from streamhouse_spark.table.row_deletion import commit_behind_looks, make_delete_actions
from streamhouse_spark.table.tags import list_pinned_segments, version_of
from streamhouse_spark.write.log_writer import LogTableWriter
from streamhouse_spark.write.upsert import PrimaryKeyTable, require_rewritable

_UNNAMED: Final = "rows left the lake since that no record names (a dropped partition, or another engine)"


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """Changes that a rollback made, or with ``dry_run`` would make."""

    table: str
    version: int
    """The commit whose rows the table has."""
    seen_version: int
    """The newest commit when the rollback began."""
    rows_deleted: int
    """Rows that go; with a primary key, keys that go."""
    rows_added: int
    """Rows that come back; with a primary key, keys that come back. Keys that are there with other values are counted
    in neither."""
    dry_run: bool = False


def rollback_to_version(table: TableHandle, version: int | str, *, dry_run: bool = False) -> RollbackReport:
    """Give the table the rows that it had after a commit; see `Table.rollback_to_version`."""
    now = table.refresh()
    then = state_at(table.log, table.storage, version_of(now, version))
    _require_same_form(now, then)
    if now.primary_key:
        return _rollback_primary_key_table(table, now, then, dry_run=dry_run)
    return _rollback_log_table(table, now, then, dry_run=dry_run)


def rollback_to_timestamp(table: TableHandle, timestamp_ms: int, *, dry_run: bool = False) -> RollbackReport:
    """Roll back to the newest commit of a time or before; see `Table.rollback_to_timestamp`."""
    now = table.refresh()
    for record in newest_first(table.storage, now):
        if record.time_ms <= timestamp_ms:
            return rollback_to_version(table, record.number, dry_run=dry_run)
    raise SnapshotExpiredError(
        f"{table.name} as of {timestamp_ms} ms: no commit of that time or before is kept; choose a later time, see "
        f"{table.name}$history"
    )


def read_version(table: TableHandle, version: int | str, columns: Sequence[str] | None, filter_: Any) -> pa.Table:
    """Read an older version; see `Table.read_version`."""
    pin = pin_version(table, version)
    return read_pin(table, pin, Projection.of(pin.state.schema, columns, parse_filter(filter_)))


def pin_version(table: TableHandle, version: int | str) -> ReadSnapshot:
    """Pin the rows as of a commit or a tag. Raises as `read_version`."""
    pin = take_latest_snapshot(state_at(table.log, table.storage, version_of(table.refresh(), version)))
    _require_log_kept(table, pin)
    return pin


def _require_same_form(now: TableState, then: TableState) -> None:
    if now.former_partitionings != then.former_partitionings:
        raise InvalidOptionError(
            f"table {now.name} cannot be rolled back to commit {then.version}: its partitioning was changed since, and "
            "the lake's files with it; set it back (set_partitioning) if you want it, and overwrite the table with the "
            f"rows of that version (VERSION AS OF {then.version})"
        )
    if now.schema.plain_columns != then.schema.plain_columns:
        raise InvalidOptionError(
            f"table {now.name} cannot be rolled back to commit {then.version}: its columns changed since, from schema "
            f"{then.schema_id} to {now.schema_id}; read that version (VERSION AS OF {then.version}) and write its rows "
            "by the columns of today"
        )


# -- tables without a primary key -----------------------------------------------------------------------------------


def _rollback_log_table(table: TableHandle, now: TableState, then: TableState, *, dry_run: bool) -> RollbackReport:
    require_deletable(now)
    if now.first_offsets != then.first_offsets:
        return _beyond_emptying(table, now, then, dry_run=dry_run)
    deleted, of_files = _find_deleted_since(table, now, then)
    _require_files(table, now, then, of_files)
    gone, lost = {}, {}
    for bucket, log in now.buckets.items():
        end, runs = then.buckets[bucket].end, deleted.get(bucket, OffsetRuns.dense(0, 0))
        gone[bucket] = OffsetRuns.dense(end, log.end - end).without(runs)
        lost[bucket] = runs.within(OffsetRange(0, end))
    gone, lost = ({b: runs for b, runs in found.items() if runs} for found in (gone, lost))
    num_added = _num_rows(lost) + sum(num_rows_of(action.files) for _, action in of_files)
    num_counted = num_added - _num_dropped_others(now) + _num_dropped_others(then)
    if ADOPTED not in now.properties and now.num_rows - _num_rows(gone) + num_counted != then.num_rows:
        raise _not_told(now, then, "rows left it that no record names (a dropped partition, or another engine)")
    _require_offsets(table, now, then, gone)
    report = RollbackReport(table.name, then.version, now.version, _num_rows(gone), num_added, dry_run)
    if not dry_run and (gone or num_added):
        added = [_read(table, now, then, lost)] if lost else []
        added += [_read_files(table, now, action) for _, action in of_files]
        _commit(
            table, now, then, gone, _stage_returning_rows(table, now, pa.concat_tables(added)) if num_added else None
        )
    return report


def _beyond_emptying(table: TableHandle, now: TableState, then: TableState, *, dry_run: bool) -> RollbackReport:
    """Roll back beyond a commit that removed all rows at once: the record does so again, and adds the rows of then."""
    pin = take_latest_snapshot(then)
    _require_log_kept(table, pin)
    rows = read_pin(table, pin, Projection.of(then.schema, None, None))
    report = RollbackReport(table.name, then.version, now.version, now.num_rows, rows.num_rows, dry_run)
    if not dry_run:

        def require(state: TableState) -> None:
            ReadVersion.of(now).require_there(state)
            _require_unchanged(state, now)

        staged, transaction = _stage_returning_rows(table, now, rows), _transaction(now, then)
        commit_staged(table.log, staged, transaction=transaction, overwrite=True, require=require)
    return report


def _require_offsets(table: TableHandle, now: TableState, then: TableState, gone: Mapping[int, OffsetRuns]) -> None:
    """Require that rows that go have offsets in the lake, too: another engine may have written their files again."""
    if not have_offsets(table, now, gone):
        raise _not_told(
            now, then, "rows that were appended since lost their offsets, as another engine wrote them again"
        )


def _num_dropped_others(state: TableState) -> int:
    """Return how many rows went with partitions of the lake that are not counted among those of the state."""
    return state.lake.dropped_others if state.lake is not None else 0


def _not_told(now: TableState, then: TableState, why: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"table {now.name} cannot be rolled back to commit {then.version}: {why}; read that version (VERSION AS OF "
        f"{then.version}) and overwrite the table with its rows"
    )


def _find_deleted_since(
    table: TableHandle, now: TableState, then: TableState
) -> tuple[dict[int, OffsetRuns], list[tuple[int, DeleteRows]]]:
    """Return bucket → the offsets that records behind ``then`` deleted, and the deletions of rows of lake files with
    the numbers of their records. States forget them once the lake has told them.

    Rows of partitions that were dropped while the log had them are among them. Raises `InvalidOptionError` where the
    lake lost rows that no record names, `SnapshotExpiredError` where the records are no longer kept.
    """
    parts: dict[int, list[OffsetRuns]] = {}
    named = [Deleted(found.commit, found.rows, num_rows_of(found.files)) for found in then.deletions]
    of_files: list[tuple[int, DeleteRows]] = []
    pairs: list[tuple[TieredSnapshot, bool]] = []
    expected = now.version
    for record in newest_first(table.storage, now):
        if record.number <= then.version:
            break
        expected = record.number - 1
        dropped = find_partition_drop(record.actions)
        if dropped is not None and not dropped.tells_all(is_adopted=ADOPTED in now.properties):
            for bucket, runs in _find_lost_rows(table, now, then, record, dropped).items():
                parts.setdefault(bucket, []).append(runs)
        for deletion in deletions_in(record):
            named.append(Deleted(record.number, deletion.rows, num_rows_of(deletion.files)))
            if deletion.files:
                of_files.append((record.number, deletion))
            for bucket, runs in deletion.rows.items():
                parts.setdefault(bucket, []).append(runs)
        for action in (action for part in record.attempts for action in part.actions):
            if isinstance(action, TieredSnapshot):
                pairs.append((action, dropped is not None))
            elif isinstance(action, ResetLake):
                raise _not_told(now, then, "its lake was built anew since")
    if expected != then.version:
        raise SnapshotExpiredError(
            f"{now.name}: commits {then.version + 1} to {expected} are no longer kept, and a rollback to commit "
            f"{then.version} needs them; choose a later commit of {now.name}$history"
        )
    since = {bucket: OffsetRuns.union(found) for bucket, found in parts.items()}
    ever = {b: OffsetRuns.merged([found[b] for found in (since, then.deleted) if b in found]) for b in now.buckets}
    _require_named(now, then, pairs, lambda before, pair: _drops_of(now, before, pair, ever, named))
    return since, of_files


def _find_lost_rows(
    table: TableHandle, now: TableState, then: TableState, record: Record, dropped: PartitionDropRows
) -> Mapping[int, OffsetRuns]:
    """Return the rows of a dropped partition that its record does not name. Raises `InvalidOptionError` where the lake
    no longer tells them.
    """
    actions = (action for part in record.attempts for action in part.actions)
    pair = next((action for action in actions if isinstance(action, TieredSnapshot)), None)
    lost = None if pair is None else find_rows_lost_by_record(table, record.number, pair, dropped)
    if lost is None:
        raise _not_told(now, then, _UNNAMED)
    return lost


def _require_named(
    now: TableState,
    then: TableState,
    pairs: Sequence[tuple[TieredSnapshot, bool]],
    drops: Callable[[TieredSnapshot | None, TieredSnapshot], bool],
) -> None:
    """Require that records name the rows that the lake lost since: ``pairs``, the newest first, with whether theirs
    does.
    """
    before = then.lake
    for pair, is_named in reversed(pairs):
        if not is_named and drops(before, pair):
            raise _not_told(now, then, _UNNAMED)
        before = pair


def _drops_of(
    now: TableState,
    before: TieredSnapshot | None,
    pair: TieredSnapshot,
    deleted: Mapping[int, OffsetRuns],
    named: Sequence[Deleted],
) -> bool:
    is_adopted = ADOPTED in now.properties
    return drops_adopted(before, pair, deleted, named) if is_adopted else drops_rows(before, pair, deleted)


def _require_files(
    table: TableHandle, now: TableState, then: TableState, of_files: Sequence[tuple[int, DeleteRows]]
) -> None:
    """Require that rows of lake files which were deleted since were the table's ``then``: their file is of the lake
    snapshot of then, or was written by a round of rows that were there. In another file they may be rows that were
    appended since, and lost their offsets.
    """
    if not of_files:
        return
    names, lake = StorageFiles(table.storage), table.open_lake().with_state(then)
    before = then.lake.snapshot_id if then.lake is not None else None
    known = set(map(names.name_of, lake.named_files(before))) if before is not None else set()

    def were_there(action: DeleteRows) -> bool:
        if action.files.keys() <= known:
            return True
        later = action.snapshot_id
        return before is not None and later is not None and lake.adds_no_others(before, later)

    if number := next((number for number, action in of_files if not were_there(action)), None):
        raise _not_told(
            now, then, f"commit {number} deleted rows that have no offsets, of files that the lake did not have then"
        )


def _read_files(table: TableHandle, now: TableState, action: DeleteRows) -> pa.Table:
    """Read rows of lake files as the snapshot had them in which they were deleted.

    Raises `SnapshotExpiredError`, `CorruptDataError`.
    """
    assert action.snapshot_id is not None
    found = [now.schema.arrow.empty_table()]
    for name, runs in action.files.items():
        for positions, batch in read_file(table, now.schema, action.snapshot_id, name):
            found.append(pa.Table.from_batches([batch.filter(pa.array(runs.holds(positions)))]))
    rows = pa.concat_tables(found)
    if rows.num_rows != num_rows_of(action.files):
        raise CorruptDataError(
            f"{now.name}: lake snapshot {action.snapshot_id} has {rows.num_rows} of {num_rows_of(action.files)} rows "
            "that were deleted in it; run streamhouse verify"
        )
    return rows


def _stage_returning_rows(table: TableHandle, now: TableState, rows: pa.Table) -> StagedRows:
    """Stage the rows that come back, marked as those of an operation that read the table."""
    appends = LogTableWriter(table)
    state, fitted, missing = appends.fitted(rows)
    if state.schema_id != now.schema_id:
        raise _changed_error(state, now, "its columns changed")
    staged = appends.restoring_stager(state).stage(fitted, missing)
    pieces = (replace(piece, segment=replace(piece.segment, rewrites=True)) for piece in staged.segments)
    return replace(staged, segments=tuple(pieces))


def _read(table: TableHandle, now: TableState, then: TableState, lost: Mapping[int, OffsetRuns]) -> pa.Table:
    """Read deleted rows: from the log where it still holds all of them, else as the older state read them."""
    if all(runs.range.start >= now.buckets[bucket].start for bucket, runs in lost.items()):
        pin = ReadSnapshot(
            replace(now, deletions=NO_DELETIONS, dropped_rows=NO_DROPPED_ROWS),
            None,
            {bucket: runs.range for bucket, runs in lost.items()},
        )
    else:
        pin = take_latest_snapshot(then)
        _require_log_kept(table, pin)
    plan = plan_pin(table, pin, ScanRequest(None)).plan(table)
    names, found = list(now.schema.names), [now.schema.arrow.empty_table()]
    for batch in read_batches(table, plan, (BUCKET, LOG_OFFSET)):
        runs = lost.get(batch.column(BUCKET.name)[0].as_py()) if batch.num_rows else None
        if runs is not None:
            offsets = pc.fill_null(batch.column(LOG_OFFSET.name), -1).to_numpy(zero_copy_only=False)
            chosen = batch.filter(pa.array(runs.holds(offsets)))
            found.append(cast_rows(pa.Table.from_batches([chosen]).select(names), found[0].schema))
    rows = pa.concat_tables(found)
    if rows.num_rows != _num_rows(lost):
        raise OffsetsTrimmedError(
            f"{now.name}: {_num_rows(lost)} rows were deleted since commit {then.version}, and {rows.num_rows} of them "
            f"are still found by their offsets; choose a later commit of {now.name}$history"
        )
    return rows


def _transaction(now: TableState, then: TableState) -> Transaction:
    """Return the transaction by which the history tells a rollback from other changes of rows."""
    return Transaction(f"{ROLLBACKS}{now.version}", then.version)


def _commit(
    table: TableHandle, now: TableState, then: TableState, gone: Mapping[int, OffsetRuns], staged: StagedRows | None
) -> None:
    def plan(state: TableState, time_ms: int, read: ReadVersion) -> Sequence[Action]:
        read.require_there(state)
        _require_unchanged(state, now)
        deletions = make_delete_actions(state, gone, read)
        if sum(_num_rows(deletion.rows) for deletion in deletions) < _num_rows(gone):
            raise _changed_error(state, now, "rows that go were trimmed")
        return deletions if staged is None else (*deletions, make_append_action(state, staged, time_ms))

    staged_ms = staged.staged_ms if staged is not None else None
    transaction = _transaction(now, then)
    commit_behind_looks(table, gone, ReadVersion.of(now), plan, transaction=transaction, staged_ms=staged_ms)


def _require_unchanged(state: TableState, now: TableState) -> None:
    """Raise `CommitConflictError` unless both have the same rows and columns. Tiering, merging and trimming are none of
    a rollback's business.
    """
    if state.schema_id != now.schema_id:
        raise _changed_error(state, now, "its columns changed")
    if state.ends != now.ends:
        raise _changed_error(state, now, "rows were added")
    if any(deletion.commit > now.version for deletion in state.deletions):
        raise _changed_error(state, now, "rows were deleted")
    pairs = {pair.snapshot_id for pair in now.lake_history}
    newer = (pair for pair in state.lake_history if pair.snapshot_id not in pairs)
    for before, pair in pairwise((now.lake, *newer)):
        if pair is not None and _drops(now, before, pair, state.deleted):
            raise _changed_error(state, now, "a partition was dropped")
    if state.num_rows != now.num_rows:
        raise _changed_error(state, now, "rows left the lake")


def _drops(
    state: TableState, before: TieredSnapshot | None, pair: TieredSnapshot, deleted: Mapping[int, OffsetRuns]
) -> bool:
    """Tell whether a lake snapshot lacks more rows than the one before, and not for deletions that records name. Rows
    that were adopted are not counted, so of their table any more are too many.
    """
    if ADOPTED in state.properties:
        return pair.dropped_rows > (before.dropped_rows if before is not None else 0)
    return drops_rows(before, pair, deleted)


def _changed_error(state: TableState, now: TableState, what: str) -> CommitConflictError:
    return CommitConflictError(
        f"{state.name} changed while a rollback that had seen commit {now.version} was running: {what}; nothing was "
        "written, run it again if these changes may go too"
    )


def _num_rows(rows: Mapping[int, OffsetRuns]) -> int:
    return sum(runs.num_rows for runs in rows.values())


def _require_log_kept(table: TableHandle, pin: ReadSnapshot) -> None:
    """Require the files of the log, and of snapshots by key, that a pin of an older state reads."""
    require_kept(table.log, pin.state, list_pinned_segments(pin))


# -- tables with a primary key --------------------------------------------------------------------------------------


def _rollback_primary_key_table(
    table: TableHandle, now: TableState, then: TableState, *, dry_run: bool
) -> RollbackReport:
    keyed = PrimaryKeyTable(table)
    shape = keyed.shape(now)
    require_rewritable(table.name, shape.properties, deletes=True)
    pin = take_latest_snapshot(then)
    _require_log_kept(table, pin)
    older = read_pin(table, pin, Projection.of(then.schema, None, None))
    newer = read_pin(table, take_latest_snapshot(now), Projection.of(now.schema, None, None))
    kept, known = _keys(shape.layout, older), _keys(shape.layout, newer)
    gone = newer.filter(pc.invert(pc.is_in(known, value_set=kept)))
    num_added = older.num_rows - (newer.num_rows - gone.num_rows)
    report = RollbackReport(table.name, then.version, now.version, gone.num_rows, num_added, dry_run)
    if not dry_run:
        deleted = np.arange(gone.num_rows + older.num_rows) < gone.num_rows
        batches = shape.batches(pa.concat_tables([gone, older]), deleted)
        engine = engine_of(replace(shape.properties, identity=None), shape.schema, None)  # rows have their old numbers
        read = replace(ReadVersion.of(now), is_strict=True)
        transaction = None if older.equals(newer) else _transaction(now, then)
        keyed.commit(shape, batches, engine, transaction=transaction, read=read)
    return report


def _keys(layout: KeyedLayout, rows: pa.Table) -> pa.BinaryArray:
    columns = [arrow_chunking.small_array(column) for column in rows.columns]
    of_key = layout.key_indexes
    return layout.keys([arrow_chunking.one_array(c) if place in of_key else c for place, c in enumerate(columns)])
