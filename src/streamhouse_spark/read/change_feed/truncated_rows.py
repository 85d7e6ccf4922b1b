"""All rows that a table had before a commit truncated it, as deletions of that commit.

For a log table they are located in lake files and log. The log of a primary-key table has no change for them; they are
the rows of the version before, read as any read of that version would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.lake.parquet.live_rows import LiveRows, group_by_bucket, read_live_rows
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.log.commit_reader import Commit
from streamhouse_spark.log.commits.delete_vectors import FileRows, count_rows, without_rows
from streamhouse_spark.log.commits.history import require_kept
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.scan import plan_whole_range
from streamhouse_spark.read.change_feed.change_scan_tasks import plan_lake_tasks
from streamhouse_spark.read.change_feed.commit_diff import Rows
from streamhouse_spark.read.change_feed.feed_validation import not_row_level_error
from streamhouse_spark.read.change_feed.lake_only_rows import LakeOnlyRows
from streamhouse_spark.read.commit_ranges import CommitRange, CommitRanges
from streamhouse_spark.read.offset_range_scan import estimate_row_bytes
from streamhouse_spark.read.planner import Pruning, ScanRequest, deleted_file_rows, plan_scan
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.scan_tasks import (
    ChangesScanTask,
    FileRowsScanTask,
    KeyedScanTask,
    LakeScanTask,
    LogScanTask,
    ScanPlan,
    VersionRowsScanTask,
    log_splits,
)
from streamhouse_spark.schema.table_schema import TableSchema

_NO_OFFSETS: Final = OffsetSet.dense(0, 0)


@dataclass(frozen=True, slots=True)
class TruncatedRows:
    """The rows of a state, each exactly once."""

    cold: Rows
    """Rows in lake files that store offsets."""
    hot: Rows
    """Rows after the lake snapshot, which the log has."""
    files: FileRows
    """Positions of rows in lake files without offsets."""
    is_sure: bool
    """Whether the file of each deleted row is known, if the lake snapshot has it."""

    def without(self, added: Rows) -> TruncatedRows:
        """Return the rows except those at some offsets."""
        return TruncatedRows(without_rows(self.cold, added), without_rows(self.hot, added), self.files, self.is_sure)


def find_truncated_rows(table: TableHandle, state: TableState) -> TruncatedRows:
    """Return the rows of a state. Reads file footers, but no rows. Raises `SnapshotExpiredError`."""
    tiered, deleted, names = state.lake, state.deleted, StorageFiles(table.storage)
    starts = {b: log.start for b, log in state.buckets.items()}
    if tiered is not None:
        starts = {b: tiered.offsets.get(b, state.first_offset(b)) for b in state.buckets}
    live_files = _read_live_rows(table, state, tiered.snapshot_id) if tiered is not None else []
    cold = group_by_bucket(live_files)
    hot = {b: OffsetSet.dense(start, max(0, state.ends[b] - start)) for b, start in starts.items()}
    of_files = {names.name_of(file.location): file.rows for file in live_files if file.bucket is None}
    located_counts = (
        rows.get(b, _NO_OFFSETS).common(runs).num_rows for rows in (cold, hot) for b, runs in deleted.items()
    )
    is_sure = not of_files or sum(located_counts) == count_rows(deleted)
    masked = deleted_file_rows(take_latest_snapshot(state))
    return TruncatedRows(
        without_rows(cold, deleted), without_rows(hot, deleted), without_rows(of_files, masked), is_sure
    )


def truncation_scan_tasks(
    source: TableState, rows: TruncatedRows, commit: Commit, snapshot_id: int | None
) -> Iterator[ChangesScanTask]:
    """Yield the rows as deletions of the commit that truncated the table. ``source`` is the state before it."""

    def make_ranges(runs: OffsetSet) -> CommitRanges:
        return CommitRanges.of([CommitRange(runs, commit.record.number, commit.time_us)])

    for bucket, runs in sorted(rows.cold.items()):
        cold = LakeOnlyRows(snapshot_id, bucket, runs)
        yield from plan_lake_tasks(source, cold, make_ranges(runs), is_deleted=True)
    for bucket, runs in sorted(rows.hot.items()):
        yield ChangesScanTask(LogScanTask(plan_whole_range(source, bucket, runs.range)), make_ranges(runs), True)
    for name, runs in sorted(rows.files.items()):
        assert snapshot_id is not None
        task = FileRowsScanTask(name, snapshot_id, runs.num_rows * estimate_row_bytes(source, 0))
        yield ChangesScanTask(task, make_ranges(runs), True)


def _read_live_rows(table: TableHandle, state: TableState, snapshot_id: int) -> Sequence[LiveRows]:
    lake = table.open_lake().with_state(state)
    plan = lake.plan_read(snapshot_id=snapshot_id, schema=state.schema)
    return read_live_rows(lake.place.files_at, plan.splits, lake.place.spec.writers)


def plan_version_tasks(
    table: TableHandle, before: TableState, schema: TableSchema, commit: Commit, pruning: Pruning
) -> Iterator[ChangesScanTask]:
    """Yield the rows of the state before a commit, with the columns of ``schema``, as deletions of the commit.

    Raises `SnapshotExpiredError` if they are no longer retained, and `ChangesUnavailableError` if key columns were
    renamed.
    """
    if not {*before.primary_key, *before.parsed.bucket_key} <= {*schema.names}:
        raise not_row_level_error(
            before, commit.record, "removed all rows at once, whose key had a column of another name"
        )
    newest = 1 + max(before.schemas)
    with_columns = replace(before, schema_id=newest, schemas={**before.schemas, newest: schema})
    plan = plan_scan(table, take_latest_snapshot(with_columns), ScanRequest(None)).plan(table)
    require_kept(table.log, before, [segment for split in log_splits(plan) for segment in split.segments])
    allowed = pruning.buckets(before)
    parts: dict[int | None, list[KeyedScanTask | LakeScanTask]] = {}
    for task in plan.pieces:
        assert isinstance(task, KeyedScanTask | LakeScanTask)
        parts.setdefault(task.bucket, []).append(task)
    for bucket, tasks in parts.items():
        if allowed is None or bucket is None or bucket in allowed:
            rows = VersionRowsScanTask(bucket, plan.with_tasks(tasks), sum(_num_rows(task, plan) for task in tasks))
            version = CommitRange(OffsetSet.dense(0, rows.num_rows), commit.record.number, commit.time_us)
            yield ChangesScanTask(rows, CommitRanges.of([version]), is_deleted=True)


def _num_rows(task: KeyedScanTask | LakeScanTask, plan: ScanPlan) -> int:
    """Return an upper bound of the task's number of rows."""
    if isinstance(task, LakeScanTask):
        return task.split.num_rows
    if task.lake is not None:
        return task.lake.num_rows
    if task.base is not None:
        return sum(segment.num_rows for segment in task.base.segments)
    tails = plan.keyed.tails if plan.keyed is not None else ()
    return sum(len(tail.offsets) for tail in tails if tail.bucket == task.bucket)
