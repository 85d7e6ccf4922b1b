"""Scan tasks of the change feed: the rows that commits added or deleted, and where these rows are stored.

A commit that truncated the table deleted all earlier rows. The rows of a log table are located in lake files and log.
The log of a primary-key table has no changes for them, so the version before the commit is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import NO_RUNS, OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.reader import LiveRows, group_by_bucket, read_live_rows
from streamhouse_spark.log.commit_reader import Commit, iter_deletions
from streamhouse_spark.log.deletion_vectors import DeleteRows, FileRows, count_rows, without_rows
from streamhouse_spark.log.history import require_retained_segments
from streamhouse_spark.log.segments.scan import LogSplit, filter_segments, plan_whole_range
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.change_feed.commit_diff import (
    LakeOnlyRows,
    Parts,
    Rows,
    find_added,
    find_removed,
    make_commit_ranges,
)
from streamhouse_spark.read.change_feed.feed_validation import ChangesUnavailableError, not_row_level_error
from streamhouse_spark.read.commit_ranges import CommitRange, CommitRanges
from streamhouse_spark.read.offset_scan import LAKE_RANGE_ROWS, estimate_row_bytes
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.scan_planning import Pruning, ScanRequest, deleted_file_rows, plan_scan
from streamhouse_spark.read.scan_tasks import (
    ChangesScanTask,
    FileRowsScanTask,
    KeyedScanTask,
    LakeScanTask,
    LogScanTask,
    OffsetsScanTask,
    ScanPlan,
    VersionRowsScanTask,
    log_splits,
)
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table_handle import TableHandle

_NO_OFFSETS: Final = OffsetSet.dense(0, 0)


@dataclass(frozen=True, slots=True)
class CommitDiff:
    """The rows of a bucket that commits appended or, with `is_deleted`, the rows that they deleted."""

    commits: CommitRanges
    bucket: int
    is_deleted: bool = False
    cold: tuple[LakeOnlyRows, ...] = ()
    """The trimmed rows, located in the lake."""


def list_commit_diffs(added: Parts, removed: Parts) -> list[CommitDiff]:
    """Return the appended rows of each bucket, then the deleted rows of each bucket."""
    of_added = [CommitDiff(CommitRanges.of(parts), bucket) for bucket, parts in sorted(added.items())]
    of_removed = [
        CommitDiff(CommitRanges.of(parts), bucket, is_deleted=True) for bucket, parts in sorted(removed.items())
    ]
    return [*of_added, *of_removed]


def plan_file_tasks(
    table: TableHandle, source: TableState, commits: Sequence[Commit], first: int
) -> Iterator[ChangesScanTask]:
    """Yield one scan task per lake file with deleted rows that have no offsets.

    Raises `ChangesUnavailableError` if the lake snapshot with the file has expired.
    """
    ranges_of_file: dict[tuple[int, str], list[CommitRange]] = {}
    for commit in commits:
        for action in iter_deletions(commit.record):
            if not action.files:
                continue
            assert action.snapshot_id is not None
            _require_files(table, source, action, commit.record.number, first)
            for name, runs in action.files.items():
                updated = action.updated_files.get(name, NO_RUNS)
                parts = make_commit_ranges(runs.without(updated), updated, commit.record.number, commit.time_us)
                ranges_of_file.setdefault((action.snapshot_id, name), []).extend(parts)
    for (snapshot_id, name), parts in sorted(ranges_of_file.items()):
        rows = CommitRanges.of(parts)
        yield ChangesScanTask(
            FileRowsScanTask(name, snapshot_id, rows.num_rows * estimate_row_bytes(source, 0)), rows, True
        )


def _require_files(table: TableHandle, source: TableState, action: DeleteRows, number: int, first: int) -> None:
    """Require that the lake still has the files in which a commit deleted rows. Raises `ChangesUnavailableError`."""
    assert action.snapshot_id is not None
    try:
        names = StorageFiles(table.storage)
        files = table.open_lake().with_state(source).list_named_files(action.snapshot_id)
        if action.files.keys() <= set(map(names.name_of, files)):
            return
    except SnapshotExpiredError:
        pass
    error = OffsetsTrimmedError(
        f"CHANGES of {source.name} from version {first}: commit {number} deleted rows without offsets, and lake "
        f"snapshot {action.snapshot_id} with these rows has expired; the first available version is {number + 1}"
    )
    raise ChangesUnavailableError(error, number + 1)


def locate_trimmed_rows(
    table: TableHandle, source: TableState, changes: Sequence[CommitDiff], *, was_truncated: bool
) -> list[CommitDiff]:
    """Locate trimmed rows in the lake. The lake of a primary-key table has no changes.

    ``was_truncated`` means that the table was truncated after ``source``.
    """
    if source.primary_key:
        return list(changes)
    trimmed = [
        (change, change.commits.within(OffsetRange(0, source.buckets[change.bucket].start))) for change in changes
    ]
    added = {change.bucket: rows.offsets for change, rows in trimmed if rows and not change.is_deleted}
    removed = [
        (number, {change.bucket: rows.of_commit(number)})
        for change, rows in trimmed
        if change.is_deleted
        for number in np.unique(rows.versions).tolist()
    ]
    in_lake = {
        False: tuple(find_added(table, source, added, was_truncated=was_truncated)) if added else (),
        True: tuple(find_removed(table, source, removed)) if removed else (),
    }
    return [
        replace(change, cold=tuple(rows for rows in in_lake[change.is_deleted] if rows.bucket == change.bucket))
        for change in changes
    ]


def require_available_rows(source: TableState, changes: Sequence[CommitDiff], first: int) -> None:
    """Require that the rows of all commits are in the log or located in the lake. Raises `ChangesUnavailableError`."""
    last_lost_version = 0
    for change in changes:
        trimmed = change.commits.within(OffsetRange(0, source.buckets[change.bucket].start))
        lost_offsets = trimmed.offsets.without(OffsetSet.merged([cold.rows for cold in change.cold]))
        last_lost_version = max(last_lost_version, int(trimmed.at_offsets(lost_offsets).versions.max(initial=0)))
    if not last_lost_version:
        return
    advice = f"the first available version is {last_lost_version + 1}"
    if last_lost_version >= source.version:
        advice = f"no version is available until the next commit, version {last_lost_version + 1}"
    error = OffsetsTrimmedError(
        f"CHANGES of {source.name} from version {first}: the rows of commit {last_lost_version} were trimmed from the "
        f"log; {advice}"
    )
    raise ChangesUnavailableError(error, last_lost_version + 1)


def plan_change_tasks(source: TableState, changes: Sequence[CommitDiff], pruning: Pruning) -> Iterator[ChangesScanTask]:
    allowed = pruning.buckets(source)
    for change in changes:
        if allowed is None or change.bucket in allowed:
            yield from _plan_bucket(source, change, pruning)


def _plan_bucket(source: TableState, of_bucket: CommitDiff, pruning: Pruning) -> Iterator[ChangesScanTask]:
    bucket, commits, is_deleted = of_bucket.bucket, of_bucket.commits, of_bucket.is_deleted
    start = source.buckets[bucket].start
    for cold in of_bucket.cold:
        yield from plan_lake_tasks(source, cold, commits.at_offsets(cold.rows), is_deleted=is_deleted)
    if not (in_log := commits.within(OffsetRange(start, max(start, commits.range.end)))):
        return
    is_grouped = bool(in_log.is_grouped.any())
    split = _prune_split(
        source, plan_whole_range(source, bucket, in_log.range), in_log, Pruning() if is_grouped else pruning
    )
    if split.segments:
        yield ChangesScanTask(LogScanTask(split), in_log, is_deleted, source.primary_key if is_grouped else ())


def plan_lake_tasks(
    source: TableState, cold: LakeOnlyRows, commits: CommitRanges, *, is_deleted: bool
) -> Iterator[ChangesScanTask]:
    """Split rows that only the lake has into scan tasks. Each task starts and ends with such a row."""
    while commits:
        begin = commits.range.start
        part = commits.within(OffsetRange(begin, begin + LAKE_RANGE_ROWS))
        size_bytes = part.num_rows * estimate_row_bytes(source, cold.bucket)
        yield ChangesScanTask(OffsetsScanTask(cold.bucket, part.range, size_bytes, cold.snapshot_id), part, is_deleted)
        commits = commits.within(OffsetRange(part.range.end, max(part.range.end, commits.range.end)))


def _prune_split(source: TableState, split: LogSplit, commits: CommitRanges, pruning: Pruning) -> LogSplit:
    """Skip segments without rows of the commits, and segments that surely do not match the filter."""
    return filter_segments(
        split, lambda s: commits.overlaps(s.offsets) and pruning.keeps_segment(source, s, split.offsets)
    )


@dataclass(frozen=True, slots=True)
class TruncatedRows:
    """All rows of a state, each exactly once."""

    cold: Rows
    """Rows in lake files that store offsets."""
    hot: Rows
    """Rows that are not in the lake snapshot."""
    files: FileRows
    """Positions of rows in lake files without offsets."""
    is_sure: bool
    """Whether all rows that were deleted before are excluded."""

    def without(self, added: Rows) -> TruncatedRows:
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
    """Yield the rows as deletions of the commit that truncated the table. ``source`` is the state before the commit."""

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
    return read_live_rows(lake.binding.files_at, plan.splits, lake.binding.spec.writers)


def plan_version_tasks(
    table: TableHandle, before: TableState, schema: TableSchema, commit: Commit, pruning: Pruning
) -> Iterator[ChangesScanTask]:
    """Yield the rows of the state before a commit, with the columns of ``schema``, as deletions of the commit.

    Raises `SnapshotExpiredError` if they are no longer retained, and `ChangesUnavailableError` if key columns were
    renamed.
    """
    if not {*before.primary_key, *before.parsed.bucket_key} <= {*schema.names}:
        raise not_row_level_error(
            before, commit.record, "removed all rows at once, and a key column has been renamed since"
        )
    newest = 1 + max(before.schemas)
    with_columns = replace(before, schema_id=newest, schemas={**before.schemas, newest: schema})
    plan = plan_scan(table, take_latest_snapshot(with_columns), ScanRequest(None)).plan(table)
    require_retained_segments(table.log, before, [segment for split in log_splits(plan) for segment in split.segments])
    allowed = pruning.buckets(before)
    parts: dict[int | None, list[KeyedScanTask | LakeScanTask]] = {}
    for task in plan.tasks:
        assert isinstance(task, KeyedScanTask | LakeScanTask)
        parts.setdefault(task.bucket, []).append(task)
    for bucket, tasks in parts.items():
        if allowed is None or bucket is None or bucket in allowed:
            rows = VersionRowsScanTask(bucket, plan.with_tasks(tasks), sum(_num_rows(task, plan) for task in tasks))
            version = CommitRange(OffsetSet.dense(0, rows.num_rows), commit.record.number, commit.time_us)
            yield ChangesScanTask(rows, CommitRanges.of([version]), is_deleted=True)


def _num_rows(task: KeyedScanTask | LakeScanTask, plan: ScanPlan) -> int:
    """Return an upper bound of the number of rows."""
    if isinstance(task, LakeScanTask):
        return task.split.num_rows
    if task.lake is not None:
        return task.lake.num_rows
    if task.base is not None:
        return sum(segment.num_rows for segment in task.base.segments)
    tails = plan.keyed.tails if plan.keyed is not None else ()
    return sum(len(tail.offsets) for tail in tails if tail.bucket == task.bucket)
