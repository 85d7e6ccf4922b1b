"""Reads of the change archive: changes by offset, and offsets by commit time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.errors import CorruptDataError, SnapshotExpiredError
from streamhouse_spark.log.actions import pages_between
from streamhouse_spark.log.archive.pages import PageContent, find_usable_archive, read_page, read_pages
from streamhouse_spark.log.segments.reader import LogBatch
from streamhouse_spark.log.segments.scan import LogSplit, read_split
from streamhouse_spark.log.state import CHANGE_COLUMN, BucketLog, TableState
from streamhouse_spark.read.read_snapshot import offset_at
from streamhouse_spark.read.scan_tasks import ArchiveScanTask
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table_handle import TableHandle

_TRIES: Final = 3


class ArchiveReader:
    """Reads the `ArchiveScanTask`s of one scan, and each page once. Thread-safe."""

    def __init__(self, table: TableHandle) -> None:
        self._table = table
        self._pages: dict[str, PageContent] = {}
        self._lock = new_lock()

    def batches(self, task: ArchiveScanTask, schema: TableSchema) -> Iterator[LogBatch]:
        """Read the changes of a scan task: the change type, then the columns of the schema.

        Raises `CorruptDataError` and `SnapshotExpiredError`.
        """
        read_schema = TableSchema((CHANGE_COLUMN, *schema.columns))
        try:
            yield from read_split(self._table.storage, self._split(task), read_schema)
        except SnapshotExpiredError as error:
            state = self._table.refresh()
            if any(page.uuid == task.page for page in state.archive.pages):
                raise CorruptDataError(
                    f"a file of the change archive of {state.name} is missing; restore it ({error})"
                ) from error
            raise

    def _split(self, task: ArchiveScanTask) -> LogSplit:
        with self._lock:
            content = self._pages.get(task.page)
            if content is None:
                content = self._pages[task.page] = read_page(self._table.storage, self._table.state, task.page)
        return content.split(self._table.uuid, task.bucket, task.offsets)


def count_archived_bytes(table: TableHandle, state: TableState) -> int:
    """Return the bytes of the archived changes that the log no longer contains. Reads every page.

    If the pages of the state were compacted since, the pages of the latest state are counted. Raises
    `CorruptDataError`, `SnapshotExpiredError`.
    """
    for attempt in range(_TRIES):
        uuids = [page.uuid for page in state.archive.pages]
        try:
            pages = list(read_pages(table.storage, state, uuids))
        except SnapshotExpiredError:
            if attempt == _TRIES - 1:
                raise
            state = table.refresh()
            continue
        hot = {segment.uuid for segment in state.kept_segments()}
        return sum(s.size_bytes for content in pages for s in content.segments if s.uuid not in hot)
    raise AssertionError


class ArchiveTimeIndex:
    """Finds offsets by commit time, also of archived changes. Reads each page of the archive once."""

    def __init__(self, storage: Storage, state: TableState) -> None:
        self._storage = storage
        self._state = state
        self._archive = find_usable_archive(state)
        self._pages: dict[str, PageContent] = {}

    def offset_at(self, bucket: int, timestamp_ms: int) -> int | None:
        """Return the bucket's first offset committed at or after ``timestamp_ms``, at most the log start offset.

        None if unknown, because earlier changes may have been dropped from the archive.
        """
        log = self._state.buckets[bucket]
        first = self._archive.starts.get(bucket, log.start)
        reaches_first = first == self._state.first_offset(bucket)
        for page, start, end in pages_between(self._archive, bucket):
            if start >= log.start or page.last_ms < timestamp_ms:
                continue
            segments = [s for s in self._content(page.uuid).segments if s.bucket == bucket]
            offset = offset_at(BucketLog(start, end, tuple(segments)), timestamp_ms)
            if offset < min(end, log.start):
                return offset if offset > first or reaches_first else None
        return log.start if first < log.start or reaches_first else None

    def offset_or_start(self, bucket: int, timestamp_ms: int) -> int:
        """Return the bucket's first retained offset committed at or after ``timestamp_ms``, or the bucket's end."""
        log = self._state.buckets[bucket]
        offset = offset_at(log, timestamp_ms)
        if offset > log.start or not self._archive:
            return offset
        if (archived_offset := self.offset_at(bucket, timestamp_ms)) is not None:
            return archived_offset
        return min(self._archive.starts.get(bucket, log.start), log.start)

    def _content(self, uuid: str) -> PageContent:
        if uuid not in self._pages:
            self._pages[uuid] = read_page(self._storage, self._state, uuid)
        return self._pages[uuid]
