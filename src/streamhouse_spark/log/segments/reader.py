"""Reads segments as record batches. Length and checksums are verified before any byte is interpreted.

An Arrow file has no checksum of its own, and one flipped bit silently yields wrong rows. Each read therefore verifies
the blocks that it covers: batch metadata, the buffers of the requested columns, and the footer if Arrow needs it. A
local file is memory-mapped, and uncompressed columns are returned without copying. On other stores only the needed
blocks are fetched. Only requested columns are decompressed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import commit_key, segment_key
from streamhouse_spark.errors import (
    CorruptDataError,
    FormatVersionError,
    ObjectNotFoundError,
    SnapshotExpiredError,
    StorageError,
    StreamhouseError,
    TableNotFoundError,
    count_of,
)
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.history_index import mixed_history_remedy
from streamhouse_spark.log.record import RecentRows, read_record
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.ipc_format import (
    FILE_HEAD_BYTES,
    PREFIX_BYTES,
    ColumnSelection,
    IpcBatchLayout,
    head_end,
)
from streamhouse_spark.log.segments.range_reader import (
    ONE_REQUEST_BYTES_MAX,
    BlockChecksums,
    MmapReader,
    PartRanges,
    RangeFetcher,
    SegmentBytes,
)
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.storage.prefetch import Prefetch, SupportsBatchReads, map_with_store_concurrency

_FOOTER_TAIL_BYTES = 10  # int32 footer length, then the magic
_MAGIC = b"ARROW1"
RECORDS_AHEAD: Final = 256
RECORD_BYTES_AHEAD: Final = 32 << 20
"""Records, and bytes of their rows, that are read concurrently."""


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Rows of a segment's bucket from ``base_offset``, in offset order. Without deleted rows they are dense."""

    segment: Segment
    base_offset: int
    batch: pa.RecordBatch
    live: npt.NDArray[np.bool_] | None = None
    """For each offset of the range, whether its row is in the batch; None if all rows are."""

    @property
    def bucket(self) -> int:
        return self.segment.bucket

    @property
    def offsets(self) -> OffsetRange:
        num_offsets = self.batch.num_rows if self.live is None else len(self.live)
        return OffsetRange(self.base_offset, self.base_offset + num_offsets)

    def without(self, deleted: OffsetSet) -> LogBatch:
        """Return the batch without the rows at these offsets. The batch must have all rows of its range."""
        positions = deleted.within(self.offsets).offsets() - self.base_offset
        if not len(positions):
            return self
        live = np.ones(self.batch.num_rows, np.bool_)
        live[positions] = False
        return LogBatch(self.segment, self.base_offset, arrow_rows.copy_live_rows(self.batch, positions), live)

    def only(self, mask: npt.NDArray[np.bool_]) -> LogBatch:
        """Return the batch with only the rows for which ``mask`` is true."""
        live = mask
        if self.live is not None:
            live = self.live.copy()
            live[self.live] = mask
        return LogBatch(self.segment, self.base_offset, arrow_rows.drop_rows(self.batch, ~mask), live)

    def row_offsets(self) -> npt.NDArray[np.int64]:
        """Return the offset of each row."""
        if self.live is None:
            return np.arange(self.base_offset, self.offsets.end)
        return self.base_offset + np.flatnonzero(self.live)

    def of_rows(self, of_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Select the values of the rows from values of all offsets of the range."""
        return of_offsets if self.live is None else of_offsets[self.live]


def read_segment(
    storage: Storage,
    table_uuid: str,
    segment: Segment,
    file_schema: pa.Schema,
    offsets: OffsetRange,
    columns: Sequence[str] | None = None,
    *,
    records: InlineRecords | None = None,
) -> Iterator[LogBatch]:
    """Read the segment's rows within ``offsets``, with ``columns`` of the schema that wrote it, in file order.

    Reads of several segments share ``records``.

    Raises:
        CorruptDataError: the bytes do not match their checksums or length, or the object is missing.
        SnapshotExpiredError: the segment was compacted or trimmed, and its object was deleted after the grace period.
        TableNotFoundError: the table was dropped, and the object was deleted after the grace period.
    """
    read_range = segment.offsets.intersect(offsets)
    if not read_range:
        return
    if segment.uuid is None:
        batches = _read_inline_batches(records or InlineRecords(storage, table_uuid), segment, file_schema, columns)
    else:
        batches = _read_object_batches(storage, table_uuid, segment, file_schema, read_range, columns, records)
    for base_offset, batch in batches:
        inside = OffsetRange(base_offset, base_offset + batch.num_rows).intersect(read_range)
        if inside:
            yield LogBatch(segment, inside.start, batch.slice(inside.start - base_offset, len(inside)))


class InlineRecords:
    """Reads commit records and object parts that hold rows of several segments, each once. Thread-safe.

    An object serves one read of the table: it caches every record, and thus about as many bytes as the result.
    """

    def __init__(self, storage: Storage, table_uuid: str, recent: RecentRows | None = None) -> None:
        """Create a reader. ``recent`` has rows that were read before."""
        self._storage = storage
        self._table_uuid = table_uuid
        self._recent = recent
        self._payloads: dict[int, memoryview] = {}
        self._ahead: dict[int, int] = {}
        """Announced records in the order in which they will be read, with the bytes of their rows."""
        self.parts = PartRanges(storage, table_uuid)
        self._lock = new_lock()

    def expect(self, segments: Iterable[Segment]) -> None:
        """Announce segments that will be read once each.

        Adjacent segments of a shared object are read in one request. A store with batched reads reads all segments
        together.
        """
        announced = list(segments)
        self.parts.expect(announced)
        for segment in announced:
            if segment.uuid is None and not self._is_cached(segment.commit):
                start, end = segment.inline or (0, 0)
                self._ahead[segment.commit] = self._ahead.get(segment.commit, 0) + end - start

    def fetch_first(self) -> None:
        """Read the first of the announced records and parts now, on a store with batched reads."""
        if isinstance(self._storage, SupportsBatchReads):
            fetches = [self._fetch_records, self.parts.fetch_first]
            for _ in map_with_store_concurrency(self._storage, lambda fetch: fetch(), fetches):
                pass

    def _fetch_records(self) -> None:
        with self._lock:
            if self._ahead:
                self._read(self._choose_window())

    def rows_of(self, segment: Segment) -> bytes:
        """Return the bytes of an inline segment's rows, aligned for Arrow's kernels."""
        with self._lock:
            if not self._is_cached(segment.commit):
                self._ahead.pop(segment.commit, None)
                failures = self._read([segment.commit, *self._choose_window()])
                if isinstance(error := failures.get(segment.commit), ObjectNotFoundError):
                    key = commit_key(self._table_uuid, segment.commit)
                    raise _missing_object_error(self._storage, self._table_uuid, segment, key) from error
                if error is not None:
                    raise error
            payload = self._payloads[segment.commit]
        start, end = segment.inline or (0, 0)
        return payload[start:end].tobytes()

    def _is_cached(self, number: int) -> bool:
        """Return whether the rows of a record are cached. Called with the lock held, or before any read."""
        if number not in self._payloads and self._recent is not None:
            rows = self._recent.of(number)
            if rows is not None:
                self._payloads[number] = rows
        return number in self._payloads

    def _read(self, numbers: Sequence[int]) -> dict[int, StreamhouseError]:
        """Read records concurrently. Return the errors of unreadable records, to raise when their rows are used."""
        prefetch = Prefetch(self._storage)
        prefetch.expect(commit_key(self._table_uuid, number) for number in numbers)
        failures: dict[int, StreamhouseError] = {}
        for number in numbers:
            try:
                _, self._payloads[number] = read_record(self._storage, self._table_uuid, number, prefetch)
            except (ObjectNotFoundError, CorruptDataError, FormatVersionError) as error:
                failures[number] = error
        return failures

    def _choose_window(self) -> list[int]:
        """Remove and return the announced records that are read together."""
        numbers: list[int] = []
        left_bytes = RECORD_BYTES_AHEAD
        while isinstance(self._storage, SupportsBatchReads) and self._ahead and len(numbers) < RECORDS_AHEAD:
            number = next(iter(self._ahead))
            left_bytes -= self._ahead[number]
            if numbers and left_bytes < 0:
                break
            del self._ahead[number]
            numbers.append(number)
        return numbers


def _read_inline_batches(
    records: InlineRecords, segment: Segment, schema: pa.Schema, columns: Sequence[str] | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    batch = pa.ipc.read_record_batch(pa.py_buffer(records.rows_of(segment)), schema)
    yield segment.base_offset, batch if columns is None else batch.select(list(columns))


def _read_object_batches(
    storage: Storage,
    table_uuid: str,
    segment: Segment,
    schema: pa.Schema,
    offsets: OffsetRange,
    columns: Sequence[str] | None,
    records: InlineRecords | None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    key = segment_key(table_uuid, segment.uuid or "")
    row_starts = segment.index.batch_row_starts
    first = int(np.searchsorted(row_starts, offsets.start - segment.base_offset, side="right")) - 1
    last = int(np.searchsorted(row_starts, offsets.end - segment.base_offset, side="left"))
    positions = range(first, last)
    try:
        batches = _iter_batches(storage, key, segment, schema, positions, columns, records)
        for position, batch in zip(positions, batches, strict=True):
            if batch.num_rows != segment.index.batch_rows[position]:
                raise CorruptDataError(
                    f"{url_of(storage, key)}: batch {position} has {count_of(batch.num_rows, 'row')}, expected "
                    f"{segment.index.batch_rows[position]} by the commit record; restore this file",
                )
            yield segment.base_offset + int(row_starts[position]), batch
    except ObjectNotFoundError as error:
        raise _missing_object_error(storage, table_uuid, segment, key) from error


def _iter_batches(
    storage: Storage,
    key: str,
    segment: Segment,
    schema: pa.Schema,
    positions: range,
    columns: Sequence[str] | None,
    records: InlineRecords | None,
) -> Iterator[pa.RecordBatch]:
    source: SegmentBytes
    if storage.local_path(key) is not None:
        source = MmapReader(storage, key, segment)
        if not segment.compressed:
            return _read_mapped_batches(source, url_of(storage, key), segment, positions, columns)
    else:
        source = RangeFetcher(storage, key, segment, records.parts.take(segment) if records is not None else None)
    if columns is None:
        return _read_whole_batches(source, segment, schema, positions)
    if set(columns) == set(schema.names):
        return (batch.select(list(columns)) for batch in _read_whole_batches(source, segment, schema, positions))
    return _read_selected_columns(source, segment, schema, positions, columns)


def verify_segment(storage: Storage, table_uuid: str, segment: Segment, file_schema: pa.Schema) -> None:
    """Read the segment and verify its bytes and its number of rows. Raises `CorruptDataError`."""
    if segment.uuid is not None:
        key = segment_key(table_uuid, segment.uuid)
        try:
            if (start := segment.part) is None:
                data = storage.read(key)
            else:
                (data,) = storage.read_ranges(key, [(start, start + segment.size_bytes)])
        except ObjectNotFoundError as error:
            raise _missing_object_error(storage, table_uuid, segment, key) from error
        sums = BlockChecksums(url_of(storage, key), segment)
        sums.check_size((start or 0) + len(data))
        sums.check(data, 0, len(data))
    rows = sum(b.batch.num_rows for b in read_segment(storage, table_uuid, segment, file_schema, segment.offsets))
    if rows != segment.num_rows:
        raise CorruptDataError(
            f"segment at offset {segment.base_offset} holds {count_of(rows, 'row')}, expected {segment.num_rows}"
        )


def _missing_object_error(storage: Storage, table_uuid: str, segment: Segment, key: str) -> StreamhouseError:
    """Return the error for an absent object: damage, or a reader that was suspended for longer than the grace
    period.
    """
    try:
        state = CommitLog(storage, table_uuid, World()).refresh()
    except TableNotFoundError as error:
        return error
    except (CorruptDataError, StorageError):
        return _damaged_segment_error(storage, table_uuid, segment, key)
    if state.dropped:
        return TableNotFoundError(f"table {state.name} ({table_uuid}) was dropped while it was read")
    live = {(s.uuid, s.commit if s.uuid is None else 0) for s in state.kept_segments()}
    if (segment.uuid, segment.commit if segment.uuid is None else 0) in live:
        return _damaged_segment_error(storage, table_uuid, segment, key)
    return SnapshotExpiredError(
        f"{url_of(storage, key)} was compacted or trimmed after this read of {state.name} started, and was deleted "
        "when its grace period ended; retry the read",
    )


def _damaged_segment_error(storage: Storage, table_uuid: str, segment: Segment, key: str) -> CorruptDataError:
    return CorruptDataError(
        f"{url_of(storage, key)} is missing although the table names it; restore this file. "
        f"{mixed_history_remedy(table_uuid, segment.commit)}"
    )


def _read_mapped_batches(
    mapped: MmapReader, where: str, segment: Segment, positions: range, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of an uncompressed file without copying them, each verified before it is returned."""
    _verify_footer(where, mapped, segment.size_bytes)
    reader = pa.ipc.open_file(mapped.buffer)
    if reader.num_record_batches != len(segment.index.batch_starts):
        raise CorruptDataError(f"{where}: the footer does not match the commit record; restore this file")
    for position in positions:
        _read_head(mapped, segment, position)
        batch = reader.get_batch(position)
        if columns is not None:
            batch = batch.select(list(columns))
        for column in batch.columns:
            for buffer in column.buffers():
                if buffer is not None and buffer.size:
                    start = buffer.address - mapped.buffer.address
                    if 0 <= start < segment.size_bytes:
                        mapped.read(start, start + buffer.size)
        yield batch


def _read_whole_batches(
    source: SegmentBytes, segment: Segment, schema: pa.Schema, positions: range
) -> Iterator[pa.RecordBatch]:
    """Yield batches with all their columns, fetched in one request."""
    source.expect([_extent(segment, positions)])
    for position in positions:
        low = int(segment.index.batch_starts[position])
        data = source.read(low, _batch_end(segment, position))
        message = data[_batch_start(source, segment, position) - low :]
        yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)


def _read_selected_columns(
    source: SegmentBytes, segment: Segment, schema: pa.Schema, positions: range, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of batches, in two requests: the heads of all batches, then the columns that they locate."""
    start, end = _extent(segment, positions)
    if end - start <= ONE_REQUEST_BYTES_MAX:
        source.expect([(start, end)])
    chosen = ColumnSelection.of(schema, columns)
    file_head_bytes = FILE_HEAD_BYTES + schema.serialize().size
    starts = [int(segment.index.batch_starts[position]) for position in positions]
    source.expect((at, at + chosen.head_bytes_max + (0 if at else file_head_bytes)) for at in starts)
    pieces = []
    for position in positions:
        head, end = _read_head(source, segment, position)
        pieces.append(IpcBatchLayout.of(head, end, chosen))
    source.expect(byte_range for piece in pieces for byte_range in piece.ranges)
    for piece in pieces:
        yield piece.batch([source.read(start, end) for start, end in piece.ranges]).select(list(columns))


def _extent(segment: Segment, positions: range) -> tuple[int, int]:
    """Return the byte range from the first to the last of these batches."""
    return int(segment.index.batch_starts[positions[0]]), _batch_end(segment, positions[-1])


def _batch_start(source: SegmentBytes, segment: Segment, position: int) -> int:
    """Return where the message of a batch starts. The first batch of a file follows the schema message."""
    start = int(segment.index.batch_starts[position])
    return start or _head_end(source, FILE_HEAD_BYTES)


def _batch_end(segment: Segment, position: int) -> int:
    starts = segment.index.batch_starts
    return int(starts[position + 1]) if position + 1 < len(starts) else segment.size_bytes


def _read_head(source: SegmentBytes, segment: Segment, position: int) -> tuple[memoryview, int]:
    """Return prefix and head of a batch, and where they end."""
    start = _batch_start(source, segment, position)
    end = _head_end(source, start)
    return source.read(start, end), end


def _head_end(source: SegmentBytes, start: int) -> int:
    return head_end(source.read(start, start + PREFIX_BYTES), start)


def _verify_footer(where: str, source: SegmentBytes, size_bytes: int) -> None:
    """Verify the tail of an Arrow file, which has the footer's position, and then the footer."""
    start = size_bytes - _FOOTER_TAIL_BYTES
    tail = bytes(source.read(start, size_bytes)) if start >= 0 else b""
    footer_bytes = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or footer_bytes > start:
        raise CorruptDataError(f"{where} has no valid Arrow footer; restore this file")
    source.read(start - footer_bytes, size_bytes)
