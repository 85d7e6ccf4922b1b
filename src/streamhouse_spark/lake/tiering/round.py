"""One tiering round: its plan from the latest lake snapshot, and its files. Also for virtual lake tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.snapshot_history import require_same_history
from streamhouse_spark.lake.tiering.plan import (
    KEYED_ROUND_BYTES_PER_BUCKET_MAX,
    ROUND_BYTES_PER_BUCKET_MAX,
    TieringTask,
    find_base_snapshots,
    find_round_starts,
    plan_tiering,
    rows_to_delete,
)
from streamhouse_spark.lake.types import NEVER_TRUNCATED, LakeFile, LakeSnapshot, PendingDeletes, WriteContext
from streamhouse_spark.lake.validation import NOTHING_ABSENT
from streamhouse_spark.log.actions import KvSnapshot
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.deletion_vectors import Deletion, unapplied_file_deletes
from streamhouse_spark.log.segments.scan import plan_range, plan_snapshot, plan_whole_range, read_split
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage

RunTasks = Callable[[Sequence[TieringTask]], Sequence[Sequence[LakeFile]]]
"""Runs tasks anywhere, in any order, and returns their files in the order of the tasks."""

CONFLICTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class TieringPlan:
    """The rows and deletes of one round."""

    state: TableState
    offsets: Mapping[int, int]
    """The lake's offsets before the round."""
    starts: Mapping[int, int]
    new: Mapping[int, int]
    """The lake's offsets after the round."""
    ranges: Mapping[int, OffsetRange]
    bases: Mapping[int, KvSnapshot]
    deleted: Mapping[int, OffsetSet]
    file_deletes: tuple[Deletion, ...] = ()
    """Deletes of rows without offsets that the lake has not applied."""
    applied_through: int = 0
    """The latest record whose deletes the lake had applied before the round."""

    @property
    def keeps_rows(self) -> bool:
        """Whether the lake keeps its rows, because the table was not truncated."""
        return self.state.begins_at(self.starts)

    @property
    def num_tasks(self) -> int:
        return len(self.ranges) + len(self.bases)

    @property
    def is_due(self) -> bool:
        """Whether the round has work."""
        return bool(self.num_tasks) or self.has_deletes or not self.keeps_rows

    @property
    def has_deletes(self) -> bool:
        """Whether the lake may hold deleted rows."""
        return bool(self.deleted or self.file_deletes)

    def absent_from(self, lake: LakeTable) -> Mapping[int, int]:
        """Return bucket → number of rows of the round that are not in its files. See `LakeTable.omits_deleted_rows`."""
        if not lake.omits_deleted_rows:
            return NOTHING_ABSENT
        return {
            bucket: runs.within(self.ranges[bucket]).num_rows for bucket, runs in self._deleted_rows_of_round.items()
        }

    def deleted_rows_of(self, lake: LakeTable) -> Mapping[int, OffsetSet]:
        """Return the deleted rows to remove from files of the lake, and of the round unless those omit them."""
        if not lake.omits_deleted_rows:
            return self.deleted
        older = {
            b: runs.within(OffsetRange(0, self.ranges[b].start)) for b, runs in self._deleted_rows_of_round.items()
        }
        return {bucket: runs for bucket, runs in {**self.deleted, **older}.items() if runs}

    @property
    def _deleted_rows_of_round(self) -> Mapping[int, OffsetSet]:
        """The deleted rows of the buckets that the round writes."""
        return {bucket: runs for bucket, runs in self.deleted.items() if bucket in self.ranges}

    def reaches_all(self, targets: Mapping[int, int]) -> bool:
        return all(self.new.get(bucket, 0) >= end for bucket, end in targets.items())


def plan_round(
    state: TableState,
    newest: LakeSnapshot | None,
    targets: Mapping[int, int],
    *,
    bytes_per_bucket_max: int = ROUND_BYTES_PER_BUCKET_MAX,
) -> TieringPlan:
    """Return the plan of the round after a snapshot. Raises the errors of `plan_tiering` and `find_round_starts`."""
    offsets, starts = (newest.offsets, newest.starts) if newest is not None else ({}, NEVER_TRUNCATED)
    begin = find_round_starts(state, newest)
    bases = find_base_snapshots(state, begin)
    is_keyed, bytes_max = bool(state.primary_key), bytes_per_bucket_max
    if is_keyed:
        bytes_max = min(bytes_max, KEYED_ROUND_BYTES_PER_BUCKET_MAX)
    buckets = {bucket: log for bucket, log in state.buckets.items() if bucket not in bases}
    ranges = plan_tiering(buckets, begin, targets, table=state.name, bytes_max=bytes_max, cuts_segments=is_keyed)
    new = {**begin, **{bucket: of_bucket.end for bucket, of_bucket in ranges.items()}}
    new |= {bucket: base.offset for bucket, base in bases.items()}
    applied_through = newest.applied_through if newest is not None else 0
    deleted, of_files = rows_to_delete(state, newest, new), unapplied_file_deletes(state.deletions, applied_through)
    return TieringPlan(state, offsets, starts, new, ranges, bases, deleted, of_files, applied_through)


def write_round(lake: LakeTable, context: WriteContext, plan: TieringPlan, run_tasks: RunTasks) -> list[LakeFile]:
    """Write the files of the round, including its deletes. On return they are durable, but not visible."""
    state = plan.state
    split_of = plan_range if lake.omits_deleted_rows else plan_whole_range
    # A round that drops all rows of the lake needs no older rows.
    has_live_files = bool(state.primary_key) and plan.keeps_rows
    live = lake.live_files(context, list(plan.ranges)) if has_live_files else {}
    tasks = [
        TieringTask(split_of(state, bucket, of_bucket), context, live.get(bucket, ()))
        for bucket, of_bucket in plan.ranges.items()
    ]
    tasks += [
        TieringTask(plan_snapshot(state, base), context, base=OffsetRange(base.begins, base.offset))
        for base in plan.bases.values()
    ]
    files = [file for written in run_tasks(tasks) for file in written]
    deleted = plan.deleted_rows_of(lake)
    if deleted or plan.file_deletes:
        recorded = state.lake.snapshot_id if state.lake is not None else None
        rows = HotLogRowReader(lake.binding.storage, state, lake.binding.spec.schema)
        pending = PendingDeletes(plan.file_deletes, recorded, plan.applied_through, rows)
        files += lake.delete_rows(context, deleted, files, with_older=plan.keeps_rows, pending=pending)
    return files


def commit_round(
    lake: LakeTable, context: WriteContext, plan: TieringPlan, files: Sequence[LakeFile]
) -> LakeSnapshot | None:
    """Commit the files of the round. Raises the errors of `LakeTable.commit`."""
    return lake.commit(
        files,
        expected=plan.offsets,
        new=plan.new,
        context=context,
        expected_starts=plan.starts,
        starts=plan.state.first_offsets,
        absent=plan.absent_from(lake),
    )


@dataclass(frozen=True, slots=True)
class HotLogRowReader:
    """Reads rows from the log. Implements `LogRowReader`."""

    storage: Storage
    state: TableState
    schema: TableSchema

    def read(self, rows: Mapping[int, OffsetSet]) -> tuple[pa.Table, Mapping[int, OffsetSet]]:
        dropped = self.state.dropped_rows.named.rows
        parts, remaining = [self.schema.arrow.empty_table()], {}
        for bucket, every in rows.items():
            runs = every.without(dropped[bucket]) if bucket in dropped else every
            log = self.state.buckets[bucket]
            if hot_runs := runs.within(OffsetRange(log.start, log.end)):
                parts += self._read_bucket(bucket, hot_runs)
            if older := runs.without(hot_runs):
                remaining[bucket] = older
        return pa.concat_tables(parts), remaining

    def _read_bucket(self, bucket: int, runs: OffsetSet) -> list[pa.Table]:
        offsets_to_find, parts = runs.offsets(), []
        for part in read_split(self.storage, plan_whole_range(self.state, bucket, runs.range), self.schema):
            offsets = np.arange(part.base_offset, part.base_offset + part.batch.num_rows)
            chosen = part.batch.filter(pa.array(np.isin(offsets, offsets_to_find, assume_unique=True)))
            parts.append(pa.Table.from_batches([chosen]))
        return parts


def tier_to_virtual_table(
    log: CommitLog, lake: LakeTable, run_tasks: RunTasks, check: Callable[[TableState], object]
) -> TableState:
    """Tier all rows of the latest state of the log into an unrecorded lake, and return that state.

    Reads the lake before the log, so that the log state is never older. **Commit point:** the lake's snapshot, which is
    fenced by its offsets. A process that loses the race plans again, and finds most of the work done. ``check`` rejects
    a state. Raises `CommitConflictError` after too many conflicts, and `OffsetsTrimmedError` or `LakeRolledBackError`
    if the log no longer has the next rows of the lake.
    """
    conflicts = 0
    while True:
        try:
            with lake.cache_metadata_for_round():
                newest = lake.newest()
                state = log.refresh()
                check(state)
                lake = lake.with_state(state)
                lake.create_or_evolve()
                require_same_history(log, newest)
                plan = plan_round(state, newest, state.ends)
                if not plan.is_due:
                    return state
                context = lake.write_context()
            files = write_round(lake, context, plan, run_tasks)
            snapshot = commit_round(lake, context, plan, files)
        except (CommitConflictError, SnapshotExpiredError, OffsetsTrimmedError):
            conflicts += 1
            if conflicts > CONFLICTS_MAX:
                raise
            continue
        if snapshot is None or plan.reaches_all(state.ends):
            return state
