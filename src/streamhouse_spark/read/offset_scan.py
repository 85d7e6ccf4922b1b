"""Scans of offset ranges: from the hot log, and below its start from the change archive or the lake.

Rows that were deleted before a read are skipped. A stream of rows cannot retract a row that it returned, so it fails if
a row before its position is deleted later. Rows of partitions that were dropped before a read are skipped too. A later
drop does not fail the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.log.actions import Archive, pages_between
from streamhouse_spark.log.archive.pages import find_usable_archive
from streamhouse_spark.log.commit_reader import iter_deletions, iter_records_backwards
from streamhouse_spark.log.deletion_vectors import Deletion, Deletions, union_deleted_offsets
from streamhouse_spark.log.segments.scan import plan_range, require_not_truncated, without_rows
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.scan_tasks import (
    ArchiveScanTask,
    BinlogScanTask,
    LogScanTask,
    OffsetsScanTask,
    ScanPlan,
    ScanTask,
)
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table_handle import TableHandle

logger = logging.getLogger(__name__)
LAKE_RANGE_ROWS = 1 << 20
"""Offsets per scan task of the lake, because the size in bytes is unknown."""
_ROW_BYTES_UNKNOWN = 64


def limit_deletions(storage: Storage, state: TableState, commit: int) -> TableState:
    """Return the state with the deletions up to ``commit`` only, so that a read can be repeated.

    If the state has merged earlier and later deletions, the commit records distinguish them, while they are retained.
    """
    if not state.deletions or state.deletions[-1].commit <= commit:
        return state
    deletions = [deletion for deletion in state.deletions if deletion.first_commit <= commit]
    if deletions and deletions[-1].commit > commit:
        deletions[-1] = _deletion_up_to(storage, state, deletions[-1], commit)
    return replace(state, deletions=Deletions(deletions))


def _deletion_up_to(storage: Storage, state: TableState, deletion: Deletion, commit: int) -> Deletion:
    """Return the part of a merged deletion that was committed up to ``commit``."""
    later, reached = [], state.version + 1
    for record in iter_records_backwards(storage, state):
        if record.number <= commit:
            break
        reached = record.number
        if reached <= deletion.commit:
            later += [action for action in iter_deletions(record) if action.rows]
    if reached > commit + 1:
        return deletion
    left = {}
    for bucket, runs in deletion.rows.items():
        left[bucket] = runs.without(
            OffsetSet.merged([action.rows[bucket] for action in later if bucket in action.rows])
        )
    return replace(deletion, commit=commit, rows={bucket: runs for bucket, runs in left.items() if runs})


def has_lost_rows(state: TableState) -> bool:
    """Return whether rows of a log table were deleted or dropped, so that it has changes other than appends."""
    dropped = state.lake is not None and state.lake.dropped_rows > 0
    return not state.primary_key and (dropped or bool(state.deletions))


@dataclass(frozen=True, slots=True)
class ExcludedRows:
    """Rows that a reader of the log skips, in addition to the deletions in the state."""

    rows: Mapping[int, OffsetSet]
    """Bucket → rows of dropped partitions that the log still contains."""
    may_miss_in_lake: bool
    """Whether rows below the log start offset may be missing from the lake. Missing rows are skipped."""


def partition_drops_as_of(state: TableState, commit: int) -> ExcludedRows:
    """Return the rows of partitions dropped up to ``commit``, so that a read can be repeated.

    Rows may be missing from the lake unless rows were deleted or dropped after ``commit``, because a repeated read
    returns those.
    """
    named = union_deleted_offsets(deletion for deletion in state.dropped_rows.named if deletion.first_commit <= commit)
    latest = max(state.dropped_rows.newest, state.deletions[-1].commit if state.deletions else 0)
    return ExcludedRows(named, has_lost_rows(state) and latest <= commit)


def deletions_without_drops(state: TableState) -> ExcludedRows:
    """Return the rows that a batch read skips.

    It returns rows of dropped partitions while the log contains them, and fails afterwards. So rows may be missing from
    the lake only if no partition was dropped.
    """
    return ExcludedRows({}, bool(state.deletions) and not state.dropped_rows.newest)


def require_undeleted(state: TableState, positions: Mapping[int, int], commit: int, *, who: str, advice: str) -> None:
    """Require that no row before the ``positions`` was deleted after ``commit``. Raises `OffsetsTrimmedError`."""
    for deletion in state.deletions:
        if deletion.commit <= commit:
            continue
        if deletion.files:
            raise OffsetsTrimmedError(
                f"commit {deletion.commit} deleted rows of {state.name} that have lost their offsets, and {who} may "
                f"have read them before: results derived from them are stale; {advice}"
            )
        if deletion.is_in_lake:
            raise OffsetsTrimmedError(
                f"commit {deletion.commit} deleted rows of {state.name} that had been tiered and trimmed, and {who} "
                f"may have read them: results derived from them are stale; {advice}"
            )
        for bucket, runs in deletion.rows.items():
            read = runs.within(OffsetRange(0, positions.get(bucket, 0)))
            if read:
                raise OffsetsTrimmedError(
                    f"commit {deletion.commit} deleted rows of {state.name} that {who} has read, starting with offset "
                    f"{read.range.start} of bucket {bucket}: results derived from them are stale; {advice}"
                )


def plan_ranges(
    table: TableHandle,
    state: TableState,
    ranges: Mapping[int, OffsetRange],
    columns: Sequence[str],
    *,
    fail_on_data_loss: bool,
    dropped: ExcludedRows | None = None,
) -> ScanPlan:
    """Plan a scan of offset ranges of a state. Raises the errors of `plan_range_tasks`."""
    schema = state.schema.select(columns) if columns else TableSchema(state.schema.columns[:1])
    tasks = plan_range_tasks(state, ranges, fail_on_data_loss=fail_on_data_loss, dropped=dropped)
    return ScanPlan(table.name, table.uuid, schema, tasks)


def plan_range_tasks(
    state: TableState,
    ranges: Mapping[int, OffsetRange],
    *,
    fail_on_data_loss: bool,
    dropped: ExcludedRows | None = None,
) -> tuple[ScanTask, ...]:
    """Return the scan tasks of offset ranges, in offset order within each bucket.

    ``dropped`` are rows to skip in addition to the deletions in the state, by default the rows that a batch read skips.

    Raises `OffsetsTrimmedError` if offsets are in neither log nor lake, or a truncation removed them. Without
    ``fail_on_data_loss`` these offsets are skipped with a warning.
    """
    tasks: list[ScanTask] = []
    archive, excluded = find_usable_archive(state), deletions_without_drops(state) if dropped is None else dropped
    for bucket, requested in ranges.items():
        offsets = _skip_truncated(state, bucket, requested, fail_on_data_loss=fail_on_data_loss)
        start = state.buckets[bucket].start
        if offsets.start < start:
            trimmed = OffsetRange(offsets.start, min(offsets.end, start))
            archived = list(plan_archive_tasks(archive, bucket, trimmed))
            if archived:
                trimmed = OffsetRange(trimmed.start, archived[0].offsets.start)
            if trimmed:
                snapshot_id = state.lake.snapshot_id if excluded.may_miss_in_lake and state.lake is not None else None
                tasks.extend(
                    _plan_lake_tasks(
                        state, bucket, trimmed, fail_on_data_loss=fail_on_data_loss, snapshot_id=snapshot_id
                    )
                )
            tasks.extend(archived)
        if offsets.end > start:
            split = plan_range(state, bucket, OffsetRange(max(offsets.start, start), offsets.end))
            tasks.append(LogScanTask(without_rows(split, excluded.rows.get(bucket))))
    return tuple(tasks)


def plan_archive_tasks(archive: Archive, bucket: int, requested: OffsetRange) -> Iterator[ArchiveScanTask]:
    """Return the scan tasks of the archived part of a range, in offset order."""
    for page, first, end in pages_between(archive, bucket):
        in_page = OffsetRange(first, end).intersect(requested)
        row_bytes = max(1, page.memory_bytes // max(1, page.num_rows))
        for start in range(in_page.start, in_page.end, LAKE_RANGE_ROWS):
            part = OffsetRange(start, min(start + LAKE_RANGE_ROWS, in_page.end))
            yield ArchiveScanTask(bucket, part, page.uuid, len(part) * row_bytes)


def plan_archived_changes(state: TableState, archive: Archive, bucket: int) -> tuple[ArchiveScanTask, ...]:
    """Return the scan tasks of a bucket's changes that only the archive holds."""
    return tuple(plan_archive_tasks(archive, bucket, OffsetRange(0, state.buckets[bucket].start)))


def plan_binlog_tasks(state: TableState) -> tuple[BinlogScanTask, ...]:
    """Return the scan tasks of ``$binlog``, one per bucket with changes."""
    archive = find_usable_archive(state)
    tasks = (
        BinlogScanTask(
            plan_range(state, bucket, log.offsets), state.schema, plan_archived_changes(state, archive, bucket)
        )
        for bucket, log in state.buckets.items()
    )
    return tuple(task for task in tasks if task.split.offsets or task.archived)


def estimate_row_bytes(state: TableState, bucket: int) -> int:
    """Estimate the in-memory size of a row of the bucket in bytes."""
    segments = state.buckets[bucket].segments[-8:]
    rows = sum(s.num_rows for s in segments)
    return max(1, sum(s.memory_bytes for s in segments) // rows) if rows else _ROW_BYTES_UNKNOWN


def _skip_truncated(state: TableState, bucket: int, requested: OffsetRange, *, fail_on_data_loss: bool) -> OffsetRange:
    """Return the part of a range after the last truncation."""
    try:
        require_not_truncated(state, bucket, requested.start)
    except OffsetsTrimmedError as error:
        if fail_on_data_loss:
            raise
        logger.warning("%s: skipping them", error)
    first = state.first_offset(bucket)
    return OffsetRange(max(requested.start, first), max(requested.end, first))


def _plan_lake_tasks(
    state: TableState, bucket: int, requested: OffsetRange, *, fail_on_data_loss: bool, snapshot_id: int | None
) -> Iterator[ScanTask]:
    in_lake = state.has_lake and not state.primary_key  # the lake of a primary-key table has no changes
    tiered = state.lake_offset(bucket) if in_lake else 0
    in_lake_range = OffsetRange(requested.start, max(requested.start, min(requested.end, tiered)))
    if in_lake_range != requested:
        text = (
            f"{state.name}: offsets {OffsetRange(in_lake_range.end, requested.end)} of bucket {bucket} were trimmed "
            "from the hot log and are not in the lake"
        )
        if fail_on_data_loss:
            raise OffsetsTrimmedError(
                f"{text}; begin at startingOffsets=earliest, or skip them with failOnDataLoss=false"
            )
        logger.warning("%s: skipping them", text)
    if in_lake_range and state.deletions and snapshot_id is None:  # deleted rows may be missing from the lake
        text = (
            f"{state.name}: offsets {in_lake_range} of bucket {bucket} are in the lake only, and rows were "
            "deleted since"
        )
        if fail_on_data_loss:
            raise OffsetsTrimmedError(
                f"{text}; read the table itself, begin at startingOffsets=earliest, or skip them with "
                "failOnDataLoss=false"
            )
        logger.warning("%s: skipping them", text)
        return
    deleted = state.deleted.get(bucket)
    for start in range(in_lake_range.start, in_lake_range.end, LAKE_RANGE_ROWS):
        part = OffsetRange(start, min(start + LAKE_RANGE_ROWS, in_lake_range.end))
        deleted_in_part = None if deleted is None else deleted.within(part) or None
        yield OffsetsScanTask(bucket, part, len(part) * estimate_row_bytes(state, bucket), snapshot_id, deleted_in_part)
