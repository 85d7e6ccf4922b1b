"""Tiering: moves rows from the hot log into the lake table, in rounds of one lake snapshot each.

A round is planned from the offsets of the lake's latest snapshot. Tasks write its files, and a lake commit that is
fenced by these offsets adds them: of several concurrent services one wins, and the others plan again. The log then
records the tiered snapshot. After a crash between the two commits, the next round records it. After a truncation, the
next round drops all rows of the lake table, even if it adds none.

A process caches the log state and the lake's latest metadata object of a round without work. While both are unchanged,
and the object has no successor, later rounds end after this check. Every engine's change to the lake adds a successor
or removes the object. No write depends on this cache: a round with work reads everything again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import new_lock, parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidOptionError,
    LakeMismatchError,
    LakeRolledBackError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
    TableNotFoundError,
)
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.file_access import PrefetchedFiles, open_lake_files
from streamhouse_spark.lake.formats import file_spec_of, require_lake_library
from streamhouse_spark.lake.parquet.bucket_writer import write_files, write_rows
from streamhouse_spark.lake.parquet.file_writer import FileOutput
from streamhouse_spark.lake.parquet.reader import FilesAt
from streamhouse_spark.lake.snapshot_history import require_drops_applied, require_metadata, require_same_history
from streamhouse_spark.lake.tiering.plan import ROUND_BYTES_PER_BUCKET_MAX, TieringTask, require_progress, task_bytes
from streamhouse_spark.lake.tiering.record_snapshot import is_lake_ahead, record_applied_deletes, record_snapshot
from streamhouse_spark.lake.tiering.round import RunTasks, commit_round, plan_round, write_round
from streamhouse_spark.lake.types import LakeFile, LakeSnapshot, LakeVersion
from streamhouse_spark.lake.validation import warn_of_duplicates
from streamhouse_spark.log.actions import TieredSnapshot
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.deletion_vectors import unapplied_file_deletes
from streamhouse_spark.log.segments.reader import InlineRecords
from streamhouse_spark.log.segments.scan import check_dense, read_split
from streamhouse_spark.log.state import CHANGE_COLUMN, TableState
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import SupportsBatchReads, call_both

NO_OP_MS_MAX: Final = 10 * 60_000
"""Time after which a round reads everything again, because another engine may alter columns without a snapshot."""

_no_op_rounds: WeakKeyDictionary[CommitLog, _CachedNoOpRound] = WeakKeyDictionary()
_lock = new_lock()
logger = logging.getLogger(__name__)
CONFLICTS_MAX = 20
SMALL_TASK_BYTES_MAX = 8 << 20
SMALL_TASKS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class _CachedNoOpRound:
    version: int
    attempt: str | None
    location: str
    head: LakeVersion
    checked_ms: int

    def is_state(self, state: TableState | None) -> bool:
        identity = None if state is None else (state.version, state.attempt, state.lake_location)
        return identity == (self.version, self.attempt, self.location)


def cache_no_op(log: CommitLog, state: TableState, head: LakeVersion | None, checked_ms: int) -> None:
    """Cache that a round, which read the lake at ``checked_ms`` or later, found nothing to tier."""
    if head is None or log.cached_state is not state:
        return
    with _lock:
        _no_op_rounds[log] = _CachedNoOpRound(state.version, state.attempt, state.lake_location, head, checked_ms)


def forget_no_op(log: CommitLog) -> None:
    with _lock:
        _no_op_rounds.pop(log, None)


def find_unchanged_state(
    log: CommitLog, lake: LakeTable, now_ms: int, refreshed: Callable[[], TableState]
) -> TableState | None:
    """Return the latest state if nothing changed since a round without work.

    Returns None after a change, without such a round, or on a local store. Sends three concurrent requests.
    ``refreshed`` reads the log to its end.
    """
    storage = lake.binding.storage
    with _lock:
        last_round = _no_op_rounds.get(log)
    if last_round is None or not isinstance(storage, SupportsBatchReads):
        return None
    if not last_round.is_state(log.cached_state) or now_ms - last_round.checked_ms > NO_OP_MS_MAX:
        forget_no_op(log)
        return None
    keys = [last_round.head.key, last_round.head.successor]
    state, (head, successor) = call_both(storage, refreshed, lambda: list(storage.read_many(keys)))
    is_same = head is not None and successor is None and lake.digest_of(head) == last_round.head.digest
    if is_same and last_round.is_state(state):
        return state
    forget_no_op(log)
    return None


@dataclass(frozen=True, slots=True)
class TieringReport:
    """Result of `TieringJob.run`. ``snapshots`` has the ids of the snapshots that it committed."""

    table: str
    rows: int
    """Written rows. With a primary key, the number after merging changes."""
    files: int
    size_bytes: int
    snapshots: tuple[int, ...]
    conflicts: int
    duration_ms: int
    healed_rows: int = 0
    """Number of removed duplicates: additional rows of a primary key, which another engine added.

    A round removes the duplicates of a key only when the key changes.
    """


class TieringJob:
    """Tiers the rows of one table."""

    def __init__(
        self,
        log: CommitLog,
        lake: LakeTable,
        *,
        world: World | None = None,
        bytes_per_bucket_max: int = ROUND_BYTES_PER_BUCKET_MAX,
        is_before_drop: bool = False,
    ) -> None:
        """With ``is_before_drop``, the caller drops partitions next, which a rolled-back lake may have again."""
        self._log = log
        self._lake = lake
        self._world = world or World()
        self._bytes_per_bucket_max = bytes_per_bucket_max
        self._is_before_drop = is_before_drop

    def run(self, run_tasks: RunTasks) -> TieringReport:
        """Tier every row committed before the call, in as many rounds as needed.

        Concurrent and repeated calls are safe. Raises `CommitConflictError` after too many conflicts,
        `LakeRolledBackError`, `LakeMismatchError`, `WarehouseMovedError`, `CommitStateUnknownError`, errors of
        ``run_tasks``.
        """
        started_ms = self._world.clock.boot_ms()
        unchanged = find_unchanged_state(self._log, self._lake, started_ms, self._refresh_state)
        require_home = partial(self._lake.require_home, "tiering")
        state = unchanged or call_both(self._lake.binding.storage, require_home, self._refresh_state)[1]
        targets = state.ends if unchanged is None else {}
        done: list[tuple[LakeSnapshot, list[LakeFile]]] = []
        conflicts = 0
        while any(targets.values()) or (targets and state.deletions):  # adopted rows have no offsets but can be deleted
            try:
                finished = self._run_round(state, targets, run_tasks, done)
            except (CommitConflictError, OffsetsTrimmedError, SnapshotExpiredError):
                # Another service tiered these rows and perhaps trimmed them, or expired files of older rows: plan again
                # from the latest lake snapshot.
                conflicts += 1
                if conflicts > CONFLICTS_MAX:
                    raise
                finished = False
            except LakeRolledBackError:
                conflicts += 1
                if conflicts > CONFLICTS_MAX or not self._was_replaced(self._log.state):
                    raise
                finished = False
            if finished:
                break
            state = self._refresh_state()
            if not done and not self._is_before_drop:
                targets = state.ends  # later deletes must be tiered too, which requires all rows before them
        files = [file for _, written in done for file in written]
        return TieringReport(
            table=state.name,
            rows=sum(file.num_left for file in files),
            files=len(files),
            size_bytes=sum(file.size_bytes for file in files),
            snapshots=tuple(snapshot.id for snapshot, _ in done),
            conflicts=conflicts,
            duration_ms=self._world.clock.boot_ms() - started_ms,
            healed_rows=_count_removed_duplicates(files),
        )

    def _run_round(
        self,
        state: TableState,
        targets: Mapping[int, int],
        run_tasks: RunTasks,
        done: list[tuple[LakeSnapshot, list[LakeFile]]],
    ) -> bool:
        """Commit one snapshot. Returns whether no work is left."""
        self._lake = self._lake.with_state(state)
        applied_through = state.lake.applied_through if state.lake is not None else 0
        is_due = any(state.lake_offset(bucket) < end for bucket, end in targets.items())
        is_due = is_due or bool(unapplied_file_deletes(state.deletions, applied_through))
        started_ms = self._world.clock.boot_ms()
        with self._lake.cache_metadata_for_round():
            newest = self._fit_lake_to_state(state)
            context = self._lake.write_context() if is_due else None
            head = self._lake.latest_version() if not is_due else None
        if newest is not None and not is_lake_ahead(newest, self._log.state):
            self._record(newest)
        plan = plan_round(state, newest, targets, bytes_per_bucket_max=self._bytes_per_bucket_max)
        if not plan.is_due:
            if not self._is_before_drop:  # a round before a drop skips a check
                cache_no_op(self._log, state, head, started_ms)
            return True
        context = context or self._lake.write_context()
        files = write_round(self._lake, context, plan, run_tasks)
        if plan.has_deletes and not files and newest is not None:
            # A partition drop or another engine already removed the deleted rows.
            record_applied_deletes(self._log, self._lake, newest, max(deletion.commit for deletion in state.deletions))
        self._require_same_lake(state)
        snapshot = commit_round(self._lake, context, plan, files)
        if snapshot is not None:
            self._record(snapshot)
            done.append((snapshot, files))
            warn_of_duplicates(state.name, _count_removed_duplicates(files))
        return (snapshot is not None or not plan.num_tasks) and plan.reaches_all(targets)

    def _fit_lake_to_state(self, state: TableState) -> LakeSnapshot | None:
        """Create or migrate the lake table for this state. Returns its latest snapshot, validated against the log."""
        if state.lake is not None:  # a lake table that held rows is never recreated
            self._require_progress(state, state.lake)
        self._fit_lake(state)
        newest = self._lake.newest()
        require_same_history(self._log, newest)
        if newest is not None and is_lake_ahead(newest, state) and not is_lake_ahead(newest, self._refresh_state()):
            raise CommitConflictError(
                f"table {state.name}: another service tiered rows that were committed after this round started; retry"
            )
        return newest

    def _was_replaced(self, state: TableState) -> bool:
        replaceable = self._lake.capabilities.snapshot_replacement
        return replaceable is not None and state.lake is not None and replaceable.is_replaced(state.lake.snapshot_id)

    def _require_progress(self, state: TableState, recorded: TieredSnapshot) -> None:
        newest = self._lake.newest()
        require_metadata(state, self._lake, newest)
        if not self._is_before_drop:
            require_drops_applied(state, newest)
        try:
            require_progress(recorded.offsets, newest.offsets if newest else {}, table=state.name)
        except LakeRolledBackError:
            if not self._was_replaced(state):
                raise
            logger.warning(
                "table %s: another engine's commit replaced lake snapshot %d; its rows are tiered again",
                state.name,
                recorded.snapshot_id,
            )

    def _fit_lake(self, state: TableState) -> None:
        """Create the lake table, or migrate it to the columns of the state."""
        try:
            self._lake.create_or_evolve()
        except LakeMismatchError:
            if self._refresh_state().schema_id == state.schema_id:
                raise
            raise CommitConflictError(
                f"the columns of table {state.name} were altered after this round started; retry"
            ) from None

    def _require_same_lake(self, state: TableState) -> None:
        """Require that the table still has this lake and was not truncated. Raises `CommitConflictError`.

        The fence does not detect this. The commit could add rows that the next round removes, or that no reader finds.
        """
        current = self._refresh_state()
        if current.truncation != state.truncation or current.lake_location != state.lake_location:
            raise CommitConflictError(
                f"table {state.name} was truncated, or its lake was rebuilt, after this round started; retry"
            )

    def _record(self, snapshot: LakeSnapshot) -> None:
        record_snapshot(self._log, self._lake, snapshot)

    def _refresh_state(self) -> TableState:
        state = self._log.refresh()
        if state.dropped:
            raise TableNotFoundError(f"cannot tier table {state.name}: it was dropped")
        if not state.parsed.datalake_enabled:
            raise InvalidOptionError(f"cannot tier table {state.name}: table.datalake.enabled is false; set it to true")
        return state


def _count_removed_duplicates(files: Sequence[LakeFile]) -> int:
    return sum(file.deletes.num_duplicates for file in files if file.deletes is not None)


def run_task(
    storage: Storage, settings: Mapping[str, str], world: World, task: TieringTask, records: InlineRecords | None = None
) -> list[LakeFile]:
    """Write the files of one task, on an executor. On return they are durable, but not visible.

    Tasks of one round in a process share ``records``, because one record may hold rows of all buckets. Raises
    `MissingExtraError` if the executor does not have the library of the lake format.
    """
    with require_lake_library(task.context.lake["format"], "the table to be tiered"):
        if task.context.primary_key:
            return _run_keyed_task(storage, settings, world, task, records)
        file_spec = file_spec_of(task.context)
        output = FileOutput(
            task.context, file_spec, open_lake_files(storage, settings, file_spec.data_location), world.ids
        )
        return write_files(output, task.bucket, task.offsets, _read_rows(storage, task, records), task.split.deleted)


def _run_keyed_task(
    storage: Storage, settings: Mapping[str, str], world: World, task: TieringTask, records: InlineRecords | None
) -> list[LakeFile]:
    files_at = partial(open_lake_files, storage, settings)
    if task.base is not None:
        return _run_base_task(storage, files_at, world, task, task.base)
    written = TableSchema((CHANGE_COLUMN, *task.context.schema.columns))
    parts = check_dense(read_split(storage, task.split, written, records=records), task.offsets)
    changes = (part.batch for part in parts)
    if task.context.lake["format"] == "paimon":
        from streamhouse_spark.lake.paimon import merge_tree as paimon_keyed

        return paimon_keyed.write_changes(task.context, files_at, world.ids, task.bucket, task.offsets, changes)
    from streamhouse_spark.lake.iceberg import position_deletes as iceberg_keyed

    ahead = partial(PrefetchedFiles, storage, settings)
    return iceberg_keyed.write_changes(
        task.context, files_at, world.ids, task.bucket, task.offsets, changes, task.live, ahead
    )


def _run_base_task(
    storage: Storage, files_at: FilesAt, world: World, task: TieringTask, base: OffsetRange
) -> list[LakeFile]:
    """Write the rows of a KV snapshot into a bucket without lake rows. Each row counts as an insert."""
    context = task.context
    batches = (part.batch for part in check_dense(read_split(storage, task.split, context.schema), task.split.offsets))
    if context.lake["format"] == "paimon":
        from streamhouse_spark.lake.paimon import merge_tree as paimon_keyed

        written = pa.schema([pa.field(CHANGE_COLUMN.name, pa.int8()), *context.schema.arrow])
        kind = int(ChangeType.INSERT)
        columns = ([pa.array(np.full(batch.num_rows, kind, np.int8)), *batch.columns] for batch in batches)
        inserts = (pa.RecordBatch.from_arrays(arrays, schema=written) for arrays in columns)
        return paimon_keyed.write_changes(context, files_at, world.ids, task.bucket, base, inserts)
    file_spec = file_spec_of(context)
    output = FileOutput(context, file_spec, files_at(file_spec.data_location), world.ids)
    return write_rows(output, task.bucket, base, batches)


def make_record_cache(storage: Storage, tasks: Sequence[TieringTask]) -> InlineRecords | None:
    """Return the shared record cache of the tasks of one round, or None without tasks."""
    if not tasks:
        return None
    records = InlineRecords(storage, tasks[0].split.table_uuid)
    records.expect(segment for task in tasks for segment in task.split.segments)
    return records


def run_tasks_locally(storage: Storage, settings: Mapping[str, str], world: World) -> RunTasks:
    """Return a function that runs the tasks of a round sequentially in this process."""

    def run(tasks: Sequence[TieringTask]) -> list[list[LakeFile]]:
        records = make_record_cache(storage, tasks)
        return [run_task(storage, settings, world, task, records) for task in tasks]

    return run


def run_tasks_in_threads(storage: Storage, settings: Mapping[str, str], world: World) -> RunTasks:
    """Return a function that runs tasks in threads: one per core, or more for small tasks on a remote store."""

    def run(tasks: Sequence[TieringTask]) -> list[list[LakeFile]]:
        records = make_record_cache(storage, tasks)
        are_small = all(task_bytes(task) <= SMALL_TASK_BYTES_MAX for task in tasks)
        waits = isinstance(storage, SupportsBatchReads) and are_small
        threads_max = SMALL_TASKS_AT_ONCE if waits else os.cpu_count() or 1
        return list(
            parallel_map(lambda t: run_task(storage, settings, world, t, records), tasks, threads_max=threads_max)
        )

    return run


def _read_rows(
    storage: Storage, task: TieringTask, records: InlineRecords | None
) -> Iterable[tuple[int, pa.RecordBatch]]:
    for part in read_split(storage, replace(task.split, deleted=None), task.context.schema, records=records):
        yield part.base_offset, part.batch
