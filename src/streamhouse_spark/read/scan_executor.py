"""Scan execution: read the scan tasks of a plan, as whole tables or batch by batch. Every reader uses it.

A read of a primary-key table merges the latest changes of each bucket. It returns the resulting rows, and the older
rows whose keys have no change. Merged changes are cached per process.
"""

# ruff: noqa: A002 - pyarrow names this parameter `filter`, and so does every reader of this package

from __future__ import annotations

import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import (
    NO_PLACES,
    Places,
    copy_live_rows,
    drop_rows,
    select_matching_rows,
    slice_live_rows,
)
from streamhouse_spark.core.concurrency import THREADS_MAX, new_lock, parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import LakeMismatchError, OffsetsTrimmedError
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.expressions.row_masks import mask_rows_to_keep
from streamhouse_spark.keys.changelog_merge import MergedChangelog
from streamhouse_spark.lake.file_access import WINDOW_FILES, PrefetchedFiles
from streamhouse_spark.lake.parquet.merge_on_read import read_split as read_lake_split
from streamhouse_spark.lake.parquet.reader import NO_POSITIONS, FileWithOffsets, deleted_rows_within, read_file_offsets
from streamhouse_spark.lake.parquet.row_positions import read_numbered
from streamhouse_spark.lake.types import LakeProjection, LakeSplit
from streamhouse_spark.log.segments.metadata_columns import (
    CHANGELOG_FIELDS,
    add_log_positions,
    file_row_ids,
    with_metadata,
)
from streamhouse_spark.log.segments.reader import InlineRecords, LogBatch
from streamhouse_spark.log.segments.scan import LogSplit, read_split, require_not_truncated
from streamhouse_spark.log.state import CHANGE_COLUMN
from streamhouse_spark.read.archive_scan import ArchiveReader
from streamhouse_spark.read.change_rows import binlog_batches, change_batches
from streamhouse_spark.read.commit_ranges import Int64Array
from streamhouse_spark.read.lake_row_ids import read_lake_file
from streamhouse_spark.read.scan_tasks import (
    ArchiveScanTask,
    BinlogScanTask,
    BootstrapScanTask,
    ChangesScanTask,
    FileRowsScanTask,
    KeyedScanTask,
    LakeScanTask,
    LogScanTask,
    MergeColumns,
    OffsetsScanTask,
    ScanPlan,
    ScanTask,
    VersionRowsScanTask,
    ViewScanTask,
)
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.prefetch import SupportsBatchReads, map_with_store_concurrency
from streamhouse_spark.table_handle import TableHandle

CACHE_BYTES_MAX = 128 << 20
"""Upper bound of the cache's memory. A larger changelog is held only while its task runs."""
logger = logging.getLogger(__name__)
_FILES_FIRST: Final = 4
"""Lake files that a reader of batches prefetches first, because it may stop after a few rows."""
_WITH_LAKE_SPLIT = (LakeScanTask, KeyedScanTask)


@dataclass(slots=True)
class _Entry:
    lock: threading.RLock = field(default_factory=new_lock)
    tail: MergedChangelog | None = None


class ChangelogCache:
    """LRU cache of merged changelogs. Thread-safe: concurrent requests for an entry compute it once.

    Entries never become stale, because the changes of an offset range are immutable within one history of a table.
    Keys include the history, because a restored table may have other changes at the same offsets. A failed computation
    is not cached.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = new_lock()

    def get(self, key: Hashable, make: Callable[[], MergedChangelog]) -> MergedChangelog:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.tail is None:
                entry.tail = make()
                self._drop_old()
            return entry.tail

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def _drop_old(self) -> None:
        with self._lock:
            size_bytes = sum(entry.tail.size_bytes for entry in self._entries.values() if entry.tail is not None)
            for key, entry in list(self._entries.items()):
                if size_bytes <= CACHE_BYTES_MAX:
                    return
                if entry.tail is not None:
                    size_bytes -= entry.tail.size_bytes
                    del self._entries[key]


changelog_cache = ChangelogCache()
"""The cache of this process."""


class ChangelogOverlay:
    """The merged changes of each bucket, computed on demand and held until another bucket is requested."""

    def __init__(self, table: TableHandle, keyed: MergeColumns) -> None:
        self._table = table
        self._keyed = keyed
        self._places = tuple(keyed.schema.names.index(name) for name in keyed.key)
        self._splits = {split.bucket: split for split in keyed.tails}
        self._changelogs_by_bucket: Mapping[int, MergedChangelog] = {}

    def read_all(self) -> None:
        """Merge and hold the changes of all buckets in parallel. Several threads may read them afterwards."""
        records = InlineRecords(self._table.storage, self._table.uuid)
        records.expect(segment for split in self._splits.values() for segment in split.segments)
        records.fetch_first()
        merged = parallel_map(lambda split: self._read(split, records), list(self._splits.values()))
        self._changelogs_by_bucket = dict(zip(self._splits, merged, strict=True))

    def rows(self, bucket: int) -> pa.Table:
        """Return the rows that result from the changes of the bucket."""
        return self._changelogs(bucket)[0].rows

    def without_changed(self, batch: pa.RecordBatch, bucket: int | None) -> pa.RecordBatch:
        """Drop the rows whose keys have a change in the bucket, or for None in any bucket."""
        for tail in self._changelogs(bucket):
            if len(tail.keys) and batch.num_rows:
                changed = tail.keys.holds_keys_of([batch.column(place) for place in self._places])
                batch = drop_rows(batch, changed)
        return batch

    def _changelogs(self, bucket: int | None) -> Sequence[MergedChangelog]:
        buckets = [b for b in self._splits if bucket is None or b == bucket]
        if not self._changelogs_by_bucket.keys() >= set(buckets):
            held = self._changelogs_by_bucket
            self._changelogs_by_bucket = {b: held.get(b) or self._get_cached(self._splits[b]) for b in buckets}
        return [self._changelogs_by_bucket[b] for b in buckets]

    def _get_cached(self, split: LogSplit) -> MergedChangelog:
        """Merge the changes of a split, or return them from the cache of the process if the history is known."""
        if self._keyed.history is None:
            return self._read_alone(split)
        ranges = (split.table_uuid, split.bucket, split.offsets)
        columns = tuple((c.id, c.name, str(c.type), c.inner_ids) for c in self._keyed.schema.columns)
        key = (self._table.storage.url, self._keyed.history, ranges, columns, self._places)
        return changelog_cache.get(key, lambda: self._read_alone(split))

    def _read_alone(self, split: LogSplit) -> MergedChangelog:
        records = InlineRecords(self._table.storage, self._table.uuid)
        records.expect(split.segments)
        return self._read(split, records)

    def _read(self, split: LogSplit, records: InlineRecords) -> MergedChangelog:
        schema = self._keyed.schema
        written = TableSchema((CHANGE_COLUMN, *schema.columns))
        batches = (batches.batch for batches in read_split(self._table.storage, split, written, records=records))
        return MergedChangelog.of(batches, schema.arrow, self._places)


def read_batches(
    table: TableHandle,
    plan: ScanPlan,
    metadata: Sequence[pa.Field] = (),
    *,
    filter: pc.Expression | None = None,
    node: Node = ALWAYS_TRUE,
    fail_on_data_loss: bool = True,
    threads: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Read all tasks in order. Batches have the metadata columns, then the columns of the plan.

    Only rows that match ``filter`` are returned. ``node`` is a condition that all matching rows satisfy. It saves
    reads; without ``filter``, rows that do not satisfy it may still be returned. With ``threads``, all of Arrow's
    threads decode lake files.

    Raises `SnapshotExpiredError`, `OffsetsTrimmedError`, `CorruptDataError`.
    """
    fields = CHANGELOG_FIELDS if plan.binlog_start is not None else metadata
    reader = ScanTaskReader(
        table, plan, fields, filter=filter, node=node, fail_on_data_loss=fail_on_data_loss, threads=threads
    )
    batches = (batch for task in plan.tasks for batch in reader.batches(task))
    if plan.binlog_start is None:
        yield from batches
    else:
        yield from binlog_batches(_skip_before(batches, plan.binlog_start), plan.schema.arrow)


def read_tables(
    table: TableHandle, plan: ScanPlan, *, filter: pc.Expression | None = None, node: Node = ALWAYS_TRUE
) -> Iterator[pa.Table]:
    """Read all tasks into tables of the plan's columns, lake files in parallel. Raises the errors of `read_batches`."""
    reader = ScanTaskReader(table, plan, filter=filter, node=node, files_first=WINDOW_FILES)
    if isinstance(table.storage, SupportsBatchReads):  # reads of the log wait for the store as well
        reader.fetch_first()
        yield from parallel_map(reader.table, plan.tasks, threads_max=THREADS_MAX)
        return
    reader.read_changes()
    of_lake = [task for task in plan.tasks if _is_lake_task(task)]
    yield from parallel_map(reader.table, of_lake)
    yield from (reader.table(task) for task in plan.tasks if not _is_lake_task(task))


def _skip_before(changes: Iterator[pa.RecordBatch], start: int) -> Iterator[pa.RecordBatch]:
    """Skip rows below ``start``, except the pre-image of an update whose post-image is not below."""
    for batch in changes:
        is_earlier = batch.num_rows and batch.column("_log_offset")[0].as_py() < start
        drop = is_earlier and batch.column("_change_type")[0].as_py() != "update_before"
        yield batch.slice(1) if drop else batch


def _number_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Int64Array, pa.RecordBatch]]:
    place = 0
    for batch in batches:
        yield np.arange(place, place + batch.num_rows), batch
        place += batch.num_rows


def _drop_mismatches(batches: Iterator[LogBatch], node: Node) -> Iterator[LogBatch]:
    """Drop rows that cannot match the filter, if there are many."""
    for batch in batches:
        matches = mask_rows_to_keep(node, batch.batch)
        if matches is None:
            yield batch
        elif matches.any():
            yield batch.only(matches)


def _is_lake_task(task: ScanTask) -> bool:
    """Return whether the task reads a lake file, which is filtered while it is read."""
    return isinstance(task, LakeScanTask) or (isinstance(task, KeyedScanTask) and task.lake is not None)


class ScanTaskReader:
    """Reads the scan tasks of one plan, in any order."""

    def __init__(
        self,
        table: TableHandle,
        plan: ScanPlan,
        metadata: Sequence[pa.Field] = (),
        *,
        filter: pc.Expression | None = None,
        node: Node = ALWAYS_TRUE,
        fail_on_data_loss: bool = True,
        files_first: int = _FILES_FIRST,
        threads: bool = False,
    ) -> None:
        """Create a reader. It prefetches small lake files in growing windows; the first has ``files_first`` files."""
        self._table = table
        self._plan = plan
        self._metadata = metadata
        self._filter = filter
        self._node = node
        self._fail_on_data_loss = fail_on_data_loss
        self._threads = threads
        self._changes = ChangelogOverlay(table, plan.keyed) if plan.keyed is not None else None
        self._archive = ArchiveReader(table)
        self._records = InlineRecords(table.storage, plan.table_uuid, table.log.recent_rows)
        self._records.expect(s for task in plan.tasks if isinstance(task, LogScanTask) for s in task.split.segments)
        splits = (
            p.split if isinstance(p, LakeScanTask) else p.lake for p in plan.tasks if isinstance(p, _WITH_LAKE_SPLIT)
        )
        self._lake = PrefetchedFiles(
            table.storage, table.settings, (s for s in splits if s is not None), first=files_first
        )

    def fetch_first(self) -> None:
        """Read the changes, and start to prefetch inline rows and lake files concurrently."""
        reads = [self.read_changes, self._records.fetch_first, self._lake.fetch_first]
        for _ in map_with_store_concurrency(self._table.storage, lambda begin: begin(), reads):
            pass

    def read_changes(self) -> None:
        """Read the changes of all buckets. Required before several threads read tasks."""
        if self._changes is not None:
            self._changes.read_all()

    def batches(self, task: ScanTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task that match the filter."""
        if self._filter is not None and isinstance(task, LogScanTask) and not self._adds_columns(task.split):
            for batch, deleted_places in self._read_with_deleted(task.split):
                yield from select_matching_rows(
                    pa.Table.from_batches([batch]), self._filter, deleted_places
                ).to_batches()
            return
        for batch in self._read_task(task):
            if self._filter is None or self._is_filtered(task):
                yield batch
            else:
                yield from select_matching_rows(pa.Table.from_batches([batch]), self._filter).to_batches()

    def table(self, task: ScanTask) -> pa.Table:
        """Return the matching rows of a task as one table. Arrow reads a lake file with all threads."""
        if isinstance(task, LakeScanTask) and self._plan.keyed is None and not self._needs_positions(task):
            batches = self._read_lake(task.split, self._excluded_positions(task), threads=True)
            return pa.Table.from_batches(batches, schema=self._projection.schema.arrow)
        if self._filter is not None and isinstance(task, LogScanTask) and not self._adds_columns(task.split):
            return self._select_matching(task.split, self._filter)
        rows = pa.Table.from_batches(list(self._read_task(task)), self._plan.schema.arrow)
        return rows if self._filter is None or self._is_filtered(task) else select_matching_rows(rows, self._filter)

    def _is_filtered(self, task: ScanTask) -> bool:
        """Return whether `_read_task` already filters the rows of the task."""
        return _is_lake_task(task) and not self._needs_positions(task)

    def _needs_positions(self, task: ScanTask) -> bool:
        """Return whether the task reads a lake file whose rows need log positions."""
        return isinstance(task, LakeScanTask) and bool(self._metadata)

    def _read_task(self, task: ScanTask) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task, unfiltered unless `_is_filtered`."""
        match task:
            case LogScanTask(split):
                return self._read_log(split)
            case LakeScanTask(split):
                if self._needs_positions(task):
                    return self._read_lake_positions(task)
                return self._select_columns(self._read_lake(split, self._excluded_positions(task)))
            case KeyedScanTask():
                return self._select_columns(self._read_keyed(task))
            case OffsetsScanTask():
                return self._read_offsets(task)
            case ArchiveScanTask():
                return self._add_metadata(self._archive.batches(task, self._plan.schema))
            case BootstrapScanTask(split, offset):
                return self._read_start(split, offset)
            case BinlogScanTask(split, schema, archived):
                return self._read_binlog(archived, split, schema)
            case ChangesScanTask():
                return change_batches(task, self._read_with_offsets(task), self._metadata)
            case FileRowsScanTask() | VersionRowsScanTask():
                raise ValueError(f"{task} is only valid in a ChangesScanTask")
            case ViewScanTask(suffix):
                raise ValueError(f"${suffix} is read as a whole, without scan tasks")

    @property
    def _projection(self) -> LakeProjection:
        assert self._plan.projection is not None
        return self._plan.projection

    def _select_columns(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Select the plan's columns. A scan of a primary-key table also reads the key columns."""
        if self._plan.keyed is None:
            return batches
        names = list(self._plan.schema.names)
        return (batch.select(names) for batch in batches)

    # -- the log --------------------------------------------------------------------------------------------------

    def _read_log(self, split: LogSplit) -> Iterator[pa.RecordBatch]:
        if not self._adds_columns(split):
            return self._read_live(split)
        schema, has_changes = self._plan.schema, split.has_changes
        read_schema = TableSchema((CHANGE_COLUMN, *schema.columns)) if has_changes else schema
        batches = read_split(self._table.storage, split, read_schema, records=self._records)
        return self._add_metadata(
            batches if has_changes or self._node is ALWAYS_TRUE else _drop_mismatches(batches, self._node)
        )

    def _adds_columns(self, split: LogSplit) -> bool:
        return bool(self._metadata) or split.has_changes

    def _read_live(self, split: LogSplit) -> Iterator[pa.RecordBatch]:
        for batch, deleted_places in self._read_with_deleted(split):
            parts = slice_live_rows(batch, deleted_places)
            if parts is None:
                yield copy_live_rows(batch, deleted_places)
            else:
                yield from parts

    def _read_with_deleted(self, split: LogSplit) -> Iterator[tuple[pa.RecordBatch, Places]]:
        """Yield all rows of a split in batches, each with the places of its deleted rows."""
        with_deleted = replace(split, deleted=None)
        deleted = NO_PLACES if split.deleted is None else split.deleted.offsets()
        for log_batch in read_split(self._table.storage, with_deleted, self._plan.schema, records=self._records):
            yield log_batch.batch, deleted_rows_within(deleted, log_batch.base_offset, log_batch.batch.num_rows)

    def _select_matching(self, split: LogSplit, filter_: pc.Expression) -> pa.Table:
        """Return the live rows that match the filter. One step drops deleted and other rows, which saves a copy."""
        batches, places, begin = [], [NO_PLACES], 0
        for batch, deleted_places in self._read_with_deleted(split):
            batches.append(batch)
            places.append(deleted_places + begin)
            begin += batch.num_rows
        return select_matching_rows(
            pa.Table.from_batches(batches, self._plan.schema.arrow), filter_, np.concatenate(places)
        )

    def _add_metadata(self, batches: Iterator[LogBatch]) -> Iterator[pa.RecordBatch]:
        return (with_metadata(log_batch, self._metadata) for log_batch in batches)

    def _read_with_offsets(self, task: ChangesScanTask) -> Iterator[tuple[Int64Array, pa.RecordBatch]]:
        """Yield rows with their offsets. Rows of a lake file or a version have positions instead."""
        schema = self._plan.schema
        if isinstance(task.rows, OffsetsScanTask):
            bucket, snapshot_id = task.rows.bucket, task.rows.snapshot_id
            if snapshot_id is None:
                yield from self._read_trimmed(bucket, task.rows.offsets)
            else:
                lake = self._table.open_lake().with_schema(schema)
                yield from lake.read_stored_rows(snapshot_id, bucket, task.commits.offsets)
            return
        if isinstance(task.rows, FileRowsScanTask):
            yield from read_lake_file(self._table, schema, task.rows.snapshot_id, task.rows.name)
            return
        if isinstance(task.rows, VersionRowsScanTask):
            yield from _number_rows(read_batches(self._table, task.rows.plan.of_columns(schema)))
            return
        if isinstance(task.rows, ArchiveScanTask):
            batches = self._archive.batches(task.rows, schema)
        else:
            split = task.rows.split
            read_schema = TableSchema((CHANGE_COLUMN, *schema.columns)) if split.has_changes else schema
            batches = read_split(self._table.storage, split, read_schema)
        for log_batch in batches:
            yield np.arange(log_batch.base_offset, log_batch.offsets.end), log_batch.batch

    def _read_start(self, split: LogSplit, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a key-value snapshot, all with the offset before the snapshot's end offset."""
        for log_batch in read_split(self._table.storage, split, self._plan.schema):
            last = pa.repeat(pa.scalar(offset - 1, pa.int64()), log_batch.batch.num_rows)
            yield (
                add_log_positions(log_batch.batch, self._metadata, split.bucket, last)
                if self._metadata
                else log_batch.batch
            )

    def _read_binlog(
        self, archived: Sequence[ArchiveScanTask], split: LogSplit, schema: TableSchema
    ) -> Iterator[pa.RecordBatch]:
        written = TableSchema((CHANGE_COLUMN, *schema.columns))
        older = (self._archive.batches(task, schema) for task in archived)
        newer = read_split(self._table.storage, split, written)
        log_batches = itertools.chain(itertools.chain.from_iterable(older), newer)
        changes = (with_metadata(log_batch, CHANGELOG_FIELDS) for log_batch in log_batches)
        return binlog_batches(changes, schema.arrow)

    # -- the lake -------------------------------------------------------------------------------------------------

    def _read_lake(
        self, split: LakeSplit, deleted: Int64Array = NO_POSITIONS, *, threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        filter_, node = self._filter, self._node
        return read_lake_split(
            self._lake,
            split,
            self._projection,
            filter=filter_,
            node=node,
            deleted=deleted,
            threads=threads or self._threads,
        )

    def _excluded_positions(self, task: LakeScanTask, source: FileWithOffsets | None = None) -> Int64Array:
        """Return the positions of deleted rows that the lake file still contains.

        If the task has only their offsets, the footer of the file maps offsets to positions. ``source`` is the content
        of the footer, if it was read already.
        """
        positions = [] if task.deleted_positions is None else [task.deleted_positions]
        if task.deleted and task.split.merge is None:
            source = source or self._require_offset_file(task)
            shared = source.runs.common(task.deleted.get(source.bucket, OffsetSet.merged([])))
            positions.append(OffsetSet.of(source.runs.rows_at(shared)))
        return OffsetSet.merged(positions).offsets() if positions else NO_POSITIONS

    def _offset_file(self, task: LakeScanTask) -> FileWithOffsets | None:
        writers = (self._table.uuid, *self._table.state.former_uuids)
        return read_file_offsets(self._lake, task.split.location, writers)

    def _require_offset_file(self, task: LakeScanTask) -> FileWithOffsets:
        source = self._offset_file(task)
        if source is None:
            raise LakeMismatchError(
                f"{self._table.name}: deleted rows may be in {task.split.location}, but another engine wrote this "
                "file without offsets; delete the rows in the lake with that engine"
            )
        return source

    def _read_lake_positions(self, task: LakeScanTask) -> Iterator[pa.RecordBatch]:
        """Yield lake rows with their log positions, which are null for files of other engines and for merged files.

        If the task has the place of the file, rows without offsets get row ids by place and position.
        """
        files, split = self._lake, task.split
        if split.merge is not None:
            for batch in read_lake_split(files, split, self._projection):
                yield add_log_positions(batch, self._metadata, split.bucket, None)
            return
        source = self._require_offset_file(task) if task.deleted else self._offset_file(task)
        deleted_positions = self._excluded_positions(task, source)
        for numbers, batch in read_numbered(files, split, self._projection, node=self._node, deleted=deleted_positions):
            if source is not None:
                offsets = pa.array(source.runs.offsets_of(numbers))
                yield add_log_positions(batch, self._metadata, source.bucket, offsets)
            else:
                ids = None if task.place is None else pa.array(file_row_ids(task.place, numbers))
                yield add_log_positions(batch, self._metadata, task.bucket, None, ids=ids)

    def _read_offsets(self, task: OffsetsScanTask) -> Iterator[pa.RecordBatch]:
        for offsets, batch in self._read_live_trimmed(task):
            yield add_log_positions(batch, self._metadata, task.bucket, pa.array(offsets)) if self._metadata else batch

    def _read_live_trimmed(self, task: OffsetsScanTask) -> Iterator[tuple[Int64Array, pa.RecordBatch]]:
        """Yield the live rows of a trimmed range."""
        for offsets, batch in self._read_trimmed(task.bucket, task.offsets, self._node, snapshot_id=task.snapshot_id):
            is_deleted = None if task.deleted is None else task.deleted.holds(offsets)
            if is_deleted is None or not is_deleted.any():
                yield offsets, batch
            elif not is_deleted.all():
                yield offsets[~is_deleted], drop_rows(batch, is_deleted)

    def _read_trimmed(
        self, bucket: int, offsets: OffsetRange, node: Node = ALWAYS_TRUE, *, snapshot_id: int | None = None
    ) -> Iterator[tuple[Int64Array, pa.RecordBatch]]:
        """Yield the rows of a trimmed range from the lake.

        Lost rows raise `OffsetsTrimmedError`. If data loss is tolerated, bisection locates the lost rows and skips
        them.
        """
        table = self._table
        try:
            lake = table.open_lake().with_schema(self._plan.schema)  # this process may have cached an older schema
            yield from lake.read_with_offsets(bucket, offsets, node, snapshot_id=snapshot_id)
        except OffsetsTrimmedError:  # raised before the first row is yielded
            state = table.refresh()
            if self._fail_on_data_loss:
                require_not_truncated(state, bucket, offsets.start)  # raises a more specific error
                raise
            if len(offsets) == 1 or offsets.end <= state.first_offset(bucket):
                logger.warning("%s: offsets %s of bucket %d are lost, skipping them", table.name, offsets, bucket)
                return
            middle = (offsets.start + offsets.end) // 2
            yield from self._read_trimmed(bucket, OffsetRange(offsets.start, middle), node, snapshot_id=snapshot_id)
            yield from self._read_trimmed(bucket, OffsetRange(middle, offsets.end), node, snapshot_id=snapshot_id)

    # -- primary-key tables ---------------------------------------------------------------------------------------

    def _read_keyed(self, task: KeyedScanTask) -> Iterator[pa.RecordBatch]:
        keyed, changes = self._plan.keyed, self._changes
        if keyed is None or changes is None:
            raise ValueError("a KeyedScanTask needs a plan with 'keyed'")
        if task.is_of_changes:
            assert task.bucket is not None
            yield from changes.rows(task.bucket).to_batches()
            return
        for batch in self._read_older(task, keyed.schema):
            yield changes.without_changed(batch, task.bucket)

    def _read_older(self, task: KeyedScanTask, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        """Return the rows that the changes are merged into."""
        if task.base is not None:
            return (log_batch.batch for log_batch in read_split(self._table.storage, task.base, schema))
        assert task.lake is not None
        return self._read_lake(task.lake)
