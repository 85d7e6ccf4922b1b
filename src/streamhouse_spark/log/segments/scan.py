"""Log scans: plans the splits of bucket offset ranges, which can be sent to other processes, and reads their rows."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CorruptDataError, OffsetsTrimmedError
from streamhouse_spark.log.actions import KvSnapshot
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.reader import InlineRecords, LogBatch, read_segment
from streamhouse_spark.log.state import CHANGE_COLUMN, BucketLog, TableState
from streamhouse_spark.schema.evolution import cast_of_column, has_same_storage
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage


@dataclass(frozen=True, slots=True)
class LogSplit:
    """A range of offsets of one bucket, with all metadata that a reader in another process needs.

    Segments that were pruned by statistics are missing. The rows of a split are then not dense; each batch has its
    offset.
    """

    table_uuid: str
    bucket: int
    offsets: OffsetRange
    segments: tuple[Segment, ...]
    schemas: Mapping[int, TableSchema]
    """The schemas that wrote the segments."""
    deleted: OffsetSet | None = None
    """Deleted offsets, whose rows are skipped."""

    @property
    def has_changes(self) -> bool:
        """Whether the rows are changes of a primary-key table, whose first column is the change type."""
        return any(schema.columns[:1] == (CHANGE_COLUMN,) for schema in self.schemas.values())

    @property
    def size_bytes(self) -> int:
        """Estimated bytes of the split's rows in memory."""
        return sum(_bytes_of_range(s, self.offsets) for s in self.segments)

    @property
    def num_rows(self) -> int:
        return sum(self.num_live(s.offsets.intersect(self.offsets)) for s in self.segments)

    def num_live(self, offsets: OffsetRange) -> int:
        """Return the number of rows at these offsets that are not deleted."""
        return len(offsets) - (self.deleted.within(offsets).num_rows if self.deleted is not None else 0)

    def to_json(self) -> dict[str, Any]:
        deleted = {"deleted": self.deleted.to_text()} if self.deleted is not None else {}
        return {
            "table": self.table_uuid,
            "bucket": self.bucket,
            "offsets": [self.offsets.start, self.offsets.end],
            "segments": [[s.to_json(), base64.b64encode(s.index_bytes).decode()] for s in self.segments],
            "schemas": {str(i): schema.to_json() for i, schema in self.schemas.items()},
            **deleted,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LogSplit:
        return cls(
            data["table"],
            data["bucket"],
            OffsetRange(*data["offsets"]),
            tuple(Segment.from_json(s, base64.b64decode(index)) for s, index in data["segments"]),
            {int(i): TableSchema.from_json(schema) for i, schema in data["schemas"].items()},
            OffsetSet.from_text(data["deleted"], where="a split") if "deleted" in data else None,
        )


def plan_range(state: TableState, bucket: int, offsets: OffsetRange) -> LogSplit:
    """Return one split of ``offsets`` of a bucket, without deleted rows.

    Raises `OffsetsTrimmedError` if the log no longer holds all of these offsets.
    """
    log = state.buckets[bucket]
    if offsets:
        require_not_truncated(state, bucket, offsets.start)
    if offsets and not (log.start <= offsets.start and offsets.end <= log.end):
        raise OffsetsTrimmedError(
            f"bucket {bucket} of {state.name}: offsets {offsets} were requested, but the hot log holds {log.offsets}; "
            "earlier rows are in the lake, if the table has a lake: read the table itself, or use "
            "startingOffsets=earliest",
        )
    segments = tuple(s for s in log.segments if s.offsets.intersect(offsets))
    schemas = {s.schema_id: state.written_schema(s.schema_id) for s in segments}
    deleted = state.deleted[bucket].within(offsets) if bucket in state.deleted else None
    return LogSplit(state.table_uuid, bucket, offsets, segments, schemas, deleted or None)


def without_rows(split: LogSplit, rows: OffsetSet | None) -> LogSplit:
    """Return the split without the rows at these offsets."""
    deleted = rows.within(split.offsets) if rows is not None else None
    if not deleted:
        return split
    return replace(split, deleted=deleted if split.deleted is None else OffsetSet.merged([split.deleted, deleted]))


def filter_segments(split: LogSplit, keeps: Callable[[Segment], bool]) -> LogSplit:
    """Return the split with only the segments for which ``keeps`` is true."""
    segments = tuple(segment for segment in split.segments if keeps(segment))
    if len(segments) == len(split.segments):
        return split
    return replace(split, segments=segments, schemas={s.schema_id: split.schemas[s.schema_id] for s in segments})


def plan_whole_range(state: TableState, bucket: int, offsets: OffsetRange) -> LogSplit:
    """Return one split of ``offsets`` of a bucket, including deleted rows. Raises the errors of `plan_range`."""
    return replace(plan_range(state, bucket, offsets), deleted=None)


def plan_snapshot(state: TableState, snapshot: KvSnapshot) -> LogSplit:
    """Return a split with the rows of a KV snapshot, whose offsets are row numbers."""
    schemas = {s.schema_id: state.schemas[s.schema_id] for s in snapshot.segments}
    offsets = OffsetRange(0, snapshot.num_rows)
    return LogSplit(state.table_uuid, snapshot.bucket, offsets, snapshot.segments, schemas)


def require_not_truncated(state: TableState, bucket: int, offset: int) -> None:
    """Raise `OffsetsTrimmedError` for an offset from before the last truncation."""
    if offset < state.first_offset(bucket):
        assert state.truncation is not None
        raise OffsetsTrimmedError(
            f"bucket {bucket} of {state.name}: offset {offset} was requested, but the table was truncated or "
            f"overwritten by commit {state.truncation.commit} and starts at {state.first_offset(bucket)}; "
            "earlier rows are only in older snapshots of its lake",
        )


def split_by_size(split: LogSplit, target_bytes: int) -> list[LogSplit]:
    """Cut a split into pieces of about ``target_bytes``. Large segments are cut between their batches."""
    pieces: list[LogSplit] = []
    start = split.offsets.start
    pending_bytes = 0
    for segment in split.segments:
        inside = segment.offsets.intersect(split.offsets)
        for cut, size_bytes in _cut_points(segment, inside, target_bytes):
            pending_bytes += size_bytes
            if pending_bytes >= target_bytes and cut < split.offsets.end:
                pieces.append(_sub_split(split, OffsetRange(start, cut)))
                start, pending_bytes = cut, 0
    pieces.append(_sub_split(split, OffsetRange(start, split.offsets.end)))
    return [p for p in pieces if p.segments]


def _cut_points(segment: Segment, inside: OffsetRange, target_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the offsets at which the segment may be cut, each with the bytes since the previous offset."""
    size_bytes = _bytes_of_range(segment, inside)
    if size_bytes <= target_bytes or not segment.index_bytes:
        yield inside.end, size_bytes
        return
    per_row_bytes = segment.memory_bytes / segment.num_rows
    previous = inside.start
    for row_end in segment.index.batch_row_starts[1:]:
        cut = min(segment.base_offset + int(row_end), inside.end)
        if cut > previous:
            yield cut, int((cut - previous) * per_row_bytes)
            previous = cut


def _sub_split(split: LogSplit, offsets: OffsetRange) -> LogSplit:
    segments = tuple(s for s in split.segments if s.offsets.intersect(offsets))
    deleted = split.deleted.within(offsets) if split.deleted is not None else None
    return replace(split, offsets=offsets, segments=segments, deleted=deleted)


def _bytes_of_range(segment: Segment, offsets: OffsetRange) -> int:
    return segment.memory_bytes * len(segment.offsets.intersect(offsets)) // segment.num_rows


def read_split(
    storage: Storage,
    split: LogSplit,
    schema: TableSchema,
    columns: Sequence[str] | None = None,
    *,
    records: InlineRecords | None = None,
) -> Iterator[LogBatch]:
    """Read the split's rows in offset order, as ``columns`` of ``schema`` (all by default).

    Rows of older schemas are converted. Concurrent reads of several splits share ``records``.
    """
    target = schema if columns is None else schema.select(columns)
    adapters = {schema_id: ColumnAdapter(written, target) for schema_id, written in split.schemas.items()}
    records = records or InlineRecords(storage, split.table_uuid)
    for segment in split.segments:
        adapter = adapters[segment.schema_id]
        written = split.schemas[segment.schema_id].arrow
        batches = read_segment(
            storage, split.table_uuid, segment, written, split.offsets, adapter.columns, records=records
        )
        for batch in batches:
            adapted = LogBatch(segment, batch.base_offset, adapter.adapt(batch.batch))
            yield adapted if split.deleted is None else adapted.without(split.deleted)


class ColumnAdapter:
    """Converts batches from the columns of their segment to the target columns, matched by column id."""

    def __init__(self, written: TableSchema, target: TableSchema) -> None:
        by_id = {c.id: c for c in written.columns}
        sources = [(by_id.get(c.id), c) for c in target.columns]
        self._sources = [None if old is None else (old.name, cast_of_column(old, new)) for old, new in sources]
        self._schema = target.arrow
        named = [old.name for old, _ in sources if old is not None]
        is_alike = all(old is not None and has_same_storage(old, new) for old, new in sources)
        self._is_identity = is_alike and written.arrow.equals(target.arrow) and list(written.names) == named
        self.columns = None if self._is_identity else (named or [written.names[0]])

    def adapt(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._is_identity:
            return batch
        arrays = [
            pa.nulls(batch.num_rows, field.type) if source is None else source[1](batch.column(source[0]))
            for source, field in zip(self._sources, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def check_dense(batches: Iterator[LogBatch], offsets: OffsetRange) -> Iterator[LogBatch]:
    """Yield the batches. Raise `CorruptDataError` unless they hold exactly ``offsets``, in order."""
    expected = offsets.start
    for batch in batches:
        if batch.base_offset != expected:
            raise CorruptDataError(f"bucket {batch.bucket}: found offset {batch.base_offset}, expected {expected}")
        expected = batch.offsets.end
        yield batch
    if expected != offsets.end:
        raise CorruptDataError(f"the rows of offsets {offsets} end at offset {expected}, expected {offsets.end}")


def hot_range(log: BucketLog, lake_offset: int) -> OffsetRange:
    """Return the range that a union read reads from the hot log: the offsets after those of the lake snapshot.

    Raises `OffsetsTrimmedError` if the log was trimmed past the lake's offset, which no valid read snapshot contains.
    """
    if log.start > lake_offset:
        raise OffsetsTrimmedError(f"the hot log starts at {log.start}, the lake snapshot ends at {lake_offset}")
    return OffsetRange(lake_offset, max(lake_offset, log.end))
