"""Overlay of a primary-key table's latest changes: merge each bucket's changelog, drop older rows of its keys."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field

import pyarrow as pa

from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.keys.changelog_merge import MergedChangelog
from streamhouse_spark.log.commits.state import CHANGE_COLUMN
from streamhouse_spark.log.segments.reader import InlineRecords
from streamhouse_spark.log.segments.scan import LogSplit, read_split
from streamhouse_spark.query import row_selection
from streamhouse_spark.read.scan_tasks import MergeColumns
from streamhouse_spark.schema.table_schema import TableSchema

CACHE_BYTES_MAX = 128 << 20
"""Memory that the cache of a process may use. A larger changelog is kept only while its task runs."""


@dataclass(slots=True)
class _Entry:
    lock: threading.RLock = field(default_factory=new_lock)
    tail: MergedChangelog | None = None


class ChangelogCache:
    """LRU cache of merged changelogs. Safe for use by several threads: one computes an entry, others wait for it.

    Entries never become stale, since an offset range holds the same changes forever within one history of a table. Keys
    include the history, because a restored table may hold other changes at the same offsets. After a failed computation
    the next caller retries.
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
    """Merged changes per bucket, computed on demand and held until another bucket is requested."""

    def __init__(self, table: TableHandle, keyed: MergeColumns) -> None:
        self._table = table
        self._keyed = keyed
        self._places = tuple(keyed.schema.names.index(name) for name in keyed.key)
        self._splits = {split.bucket: split for split in keyed.tails}
        self._changelogs_by_bucket: Mapping[int, MergedChangelog] = {}

    def read_all(self) -> None:
        """Merge and hold the changes of all buckets in parallel. After that, several threads may read them."""
        records = InlineRecords(self._table.storage, self._table.uuid)
        records.expect(segment for split in self._splits.values() for segment in split.segments)
        records.fetch_first()
        merged = parallel_map(lambda split: self._read(split, records), list(self._splits.values()))
        self._changelogs_by_bucket = dict(zip(self._splits, merged, strict=True))

    def rows(self, bucket: int) -> pa.Table:
        """Return the rows that result from the changes of the bucket."""
        return self._changelogs(bucket)[0].rows

    def without_changed(self, batch: pa.RecordBatch, bucket: int | None) -> pa.RecordBatch:
        """Drop older rows whose keys the bucket changed. None stands for any bucket."""
        for tail in self._changelogs(bucket):
            if len(tail.keys) and batch.num_rows:
                changed = tail.keys.holds_keys_of([batch.column(place) for place in self._places])
                batch = row_selection.drop_rows(batch, changed)
        return batch

    def _changelogs(self, bucket: int | None) -> Sequence[MergedChangelog]:
        buckets = [b for b in self._splits if bucket is None or b == bucket]
        if not self._changelogs_by_bucket.keys() >= set(buckets):
            self._changelogs_by_bucket = {
                b: self._changelogs_by_bucket[b]
                if b in self._changelogs_by_bucket
                else self._get_cached(self._splits[b])
                for b in buckets
            }
        return [self._changelogs_by_bucket[b] for b in buckets]

    def _get_cached(self, split: LogSplit) -> MergedChangelog:
        """Merge the changes of a split, once for all tasks of the process if the history is known."""
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
