"""Segments to record batches. Length and checksums are verified before any byte is interpreted.

An Arrow file has no checksum of its own, and one flipped bit gives silently wrong rows. So each read first verifies
the blocks that it covers: footer, batch metadata, and the buffers of the columns that were asked for. Locally the file
is memory-mapped and uncompressed columns are handed out without copying; elsewhere only the needed blocks are fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.core.paths import commit_key, segment_key
from streamhouse_spark.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    SnapshotExpiredError,
    StorageError,
    StreamhouseError,
    TableNotFoundError,
)
from streamhouse_spark.log.commits.anchors import out_of_mixed
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.record import read_record
from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.log.segments.part_ranges import PartRanges
from streamhouse_spark.storage.base import Storage

_FOOTER_TAIL_BYTES = 10  # int32 footer length, then the magic
_MAGIC = b"ARROW1"
_MESSAGE_PREFIX_BYTES = 8
_FILE_HEAD_BYTES = 8


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Rows ``[base_offset, base_offset + batch.num_rows)`` of a segment's bucket, in offset order."""

    segment: Segment
    base_offset: int
    batch: pa.RecordBatch

    @property
    def bucket(self) -> int:
        return self.segment.bucket

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.base_offset, self.base_offset + self.batch.num_rows)


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
    """Read the segment's rows within ``offsets``, with ``columns`` of the schema that it was written with, in file
    order.

    Reads of several segments share ``records``.

    Raises:
        CorruptDataError: the bytes do not match their checksums or length, or the object is missing.
        SnapshotExpiredError: the table no longer has this segment, and its object was deleted after the grace.
        TableNotFoundError: the table was dropped, and its object was deleted after the grace.
    """
    wanted = segment.offsets.intersect(offsets)
    if not wanted:
        return
    if segment.uuid is None:
        batches = _inline_batches(records or InlineRecords(storage, table_uuid), segment, file_schema, columns)
    else:
        batches = _object_batches(storage, table_uuid, segment, wanted, columns, records)
    for base_offset, batch in batches:
        inside = OffsetRange(base_offset, base_offset + batch.num_rows).intersect(wanted)
        if inside:
            yield LogBatch(segment, inside.start, batch.slice(inside.start - base_offset, len(inside)))


class InlineRecords:
    """Commit records, and parts of objects, that hold rows of several segments, each read once.

    It keeps everything that it has read, so it lives no longer than one read, whose result is as large.
    """

    def __init__(self, storage: Storage, table_uuid: str) -> None:
        self._storage = storage
        self._table_uuid = table_uuid
        self._payloads: dict[int, memoryview] = {}
        self.parts = PartRanges(storage, table_uuid)

    def expect(self, segments: Iterable[Segment]) -> None:
        """Announce segments that will be read, once each: neighbours in an object that they share come in one
        request.
        """
        self.parts.expect(segments)

    def rows_of(self, segment: Segment) -> bytes:
        """Return the bytes of an inline segment's rows, aligned for Arrow's kernels."""
        payload = self._payloads.get(segment.commit)
        if payload is None:
            try:
                _, payload = read_record(self._storage, self._table_uuid, segment.commit)
            except ObjectNotFoundError as error:
                key = commit_key(self._table_uuid, segment.commit)
                raise _missing(self._storage, self._table_uuid, segment, key) from error
            self._payloads[segment.commit] = payload
        start, end = segment.inline or (0, 0)
        return payload[start:end].tobytes()


def _inline_batches(
    records: InlineRecords, segment: Segment, schema: pa.Schema, columns: Sequence[str] | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    batch = pa.ipc.read_record_batch(pa.py_buffer(records.rows_of(segment)), schema)
    yield segment.base_offset, batch if columns is None else batch.select(list(columns))


def _object_batches(
    storage: Storage,
    table_uuid: str,
    segment: Segment,
    wanted: OffsetRange,
    columns: Sequence[str] | None,
    records: InlineRecords | None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    key = segment_key(table_uuid, segment.uuid or "")
    row_starts = segment.index.batch_row_starts
    first = int(np.searchsorted(row_starts, wanted.start - segment.base_offset, side="right")) - 1
    last = int(np.searchsorted(row_starts, wanted.end - segment.base_offset, side="left"))
    try:
        if storage.local_path(key) is not None:
            batches = _MappedSegment(storage, key, segment).batches(range(first, last), columns)
        else:
            held = records.parts.take(segment) if records is not None else None
            batches = _FetchedSegment(storage, key, segment, held).batches(range(first, last), columns)
        for position, batch in zip(range(first, last), batches, strict=True):
            if batch.num_rows != segment.index.batch_rows[position]:
                raise CorruptDataError(
                    f"{storage.url}/{key}: batch {position} has {batch.num_rows} rows, the commit record says "
                    f"{segment.index.batch_rows[position]}; restore this file",
                )
            yield segment.base_offset + int(row_starts[position]), batch
    except ObjectNotFoundError as error:
        raise _missing(storage, table_uuid, segment, key) from error


def verify_segment(storage: Storage, table_uuid: str, segment: Segment, file_schema: pa.Schema) -> None:
    """Read and check every byte and row count. Raises `CorruptDataError`."""
    if segment.uuid is not None:
        key = segment_key(table_uuid, segment.uuid)
        try:
            data = storage.read(key) if segment.part is None else _read_part(storage, key, segment)
        except ObjectNotFoundError as error:
            raise _missing(storage, table_uuid, segment, key) from error
        _Blocks(f"{storage.url}/{key}", segment).check(data, 0, len(data), (segment.part or 0) + len(data))
    rows = sum(b.batch.num_rows for b in read_segment(storage, table_uuid, segment, file_schema, segment.offsets))
    if rows != segment.num_rows:
        raise CorruptDataError(
            f"segment at offset {segment.base_offset} holds {rows} rows, expected {segment.num_rows}"
        )


def _read_part(storage: Storage, key: str, segment: Segment) -> bytes:
    at = segment.part or 0
    return storage.read_ranges(key, [(at, at + segment.size_bytes)])[0]


def _missing(storage: Storage, table_uuid: str, segment: Segment, key: str) -> StreamhouseError:
    """Return the error for an absent object: damage, or a reader that slept for longer than the grace."""
    try:
        state = CommitLog(storage, table_uuid, World()).refresh()
    except TableNotFoundError as gone:
        return gone
    except (CorruptDataError, StorageError):
        return _damage(storage, table_uuid, segment, key)
    if state.dropped:
        return TableNotFoundError(f"table {state.name} ({table_uuid}) was dropped while it was read")
    live = {(s.uuid, s.commit if s.uuid is None else 0) for s in state.kept_segments()}
    if (segment.uuid, segment.commit if segment.uuid is None else 0) in live:
        return _damage(storage, table_uuid, segment, key)
    return SnapshotExpiredError(
        f"{storage.url}/{key} was merged or trimmed since this read of {state.name} began, and is deleted because the "
        "grace is over; read again",
    )


def _damage(storage: Storage, table_uuid: str, segment: Segment, key: str) -> CorruptDataError:
    return CorruptDataError(
        f"{storage.url}/{key} is missing although the table names it; restore it. "
        f"{out_of_mixed(table_uuid, segment.commit)}"
    )


class _Blocks:
    """Verifies byte ranges of a segment against its block sums, each block once."""

    def __init__(self, where: str, segment: Segment) -> None:
        self._where = where
        self._block_bytes = segment.index.block_bytes
        self._sums = segment.index.block_sums.tolist()
        self._size_bytes = segment.size_bytes
        self._part = segment.part
        self._verified = bytearray(len(self._sums))

    def aligned(self, start: int, end: int) -> tuple[int, int]:
        """Return the smallest run of whole blocks around a byte range."""
        size = self._block_bytes
        return start // size * size, min(-(-end // size) * size, self._size_bytes)

    def check(self, data: bytes | memoryview, start: int, end: int, object_bytes: int | None = None) -> None:
        """Verify ``data``, the segment's bytes from the block at or before ``start`` on."""
        at = self._part or 0
        if object_bytes is not None:
            least = at + self._size_bytes
            if object_bytes < least or (self._part is None and object_bytes != least):
                raise CorruptDataError(
                    f"{self._where} has {object_bytes} bytes, the commit record says {least}; restore this file",
                )
        size = self._block_bytes
        view = memoryview(data)
        origin = self.aligned(start, end)[0]
        for block in range(start // size, -(-end // size)):
            if self._verified[block]:
                continue
            low = block * size
            part = view[low - origin : min(low + size, self._size_bytes) - origin]
            if xxhash.xxh3_64_intdigest(part) != self._sums[block]:
                raise CorruptDataError(
                    f"{self._where}: bytes [{at + low}, {at + low + len(part)}) do not match their checksum; "
                    "restore this file",
                )
            self._verified[block] = 1


class _MappedSegment:
    """A memory-mapped segment. Bytes are verified where they lie, before Arrow or the caller looks at them."""

    def __init__(self, storage: Storage, key: str, segment: Segment) -> None:
        self._where = f"{storage.url}/{key}"
        self._segment = segment
        self._blocks = _Blocks(self._where, segment)
        self._blocks.check(b"", 0, 0, storage.size_bytes(key))
        with pa.memory_map(storage.local_path(key)) as file:
            file.seek(segment.part or 0)
            self._buffer = file.read_buffer(segment.size_bytes)
        self._view = memoryview(self._buffer)
        _verify_footer(self._where, self._verify, segment.size_bytes)
        self._reader = pa.ipc.open_file(self._buffer)
        if self._reader.num_record_batches != len(segment.index.batch_starts):
            raise CorruptDataError(f"{self._where}: the footer does not match the commit record; restore this file")

    def batches(self, positions: range, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        for position in positions:
            start = int(self._segment.index.batch_starts[position])
            if self._segment.compressed:
                self._verify(start, self._message_end(position))
                batch = self._reader.get_batch(position)
                yield batch if columns is None else batch.select(list(columns))
                continue
            if start == 0:  # the head of the file and the schema lie before the first batch
                start = self._verify_message(_FILE_HEAD_BYTES)
            self._verify_message(start)
            batch = self._reader.get_batch(position)
            if columns is not None:
                batch = batch.select(list(columns))
            self._verify_buffers(batch)
            yield batch

    def _verify_message(self, start: int) -> int:
        """Verify the metadata of the message at ``start``; returns its end."""
        prefix = self._verify(start, start + _MESSAGE_PREFIX_BYTES)
        end = start + _MESSAGE_PREFIX_BYTES + int.from_bytes(prefix[4:], "little")
        self._verify(start, end)
        return end

    def _verify_buffers(self, batch: pa.RecordBatch) -> None:
        base = self._buffer.address
        for column in batch.columns:
            for buffer in column.buffers():
                if buffer is not None and buffer.size:
                    start = buffer.address - base
                    if 0 <= start < self._segment.size_bytes:
                        self._verify(start, start + buffer.size)

    def _message_end(self, position: int) -> int:
        starts = self._segment.index.batch_starts
        return int(starts[position + 1]) if position + 1 < len(starts) else self._segment.size_bytes

    def _verify(self, start: int, end: int) -> memoryview:
        """Return the mapped bytes ``[start, end)``, verified."""
        end = min(end, self._segment.size_bytes)
        low, high = self._blocks.aligned(start, end)
        self._blocks.check(self._view[low:high], start, end)
        return self._view[start:end]


class _FetchedSegment:
    """A segment on a remote store: a file for Arrow whose every read fetches and verifies whole blocks."""

    def __init__(self, storage: Storage, key: str, segment: Segment, held: memoryview | None) -> None:
        self._storage = storage
        self._key = key
        self._segment = segment
        self._held = held
        """All bytes of the segment, not verified yet, if they are here already."""
        self._where = f"{storage.url}/{key}"
        self._blocks = _Blocks(self._where, segment)

    def batches(self, positions: range, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        whole = columns is None and len(positions) == len(self._segment.index.batch_starts)
        fetched = _FetchedFile(self._storage, self._key, self._segment, self._blocks)
        if self._held is not None:
            fetched.take(self._held)
        elif whole:
            fetched.fetch(0, self._segment.size_bytes)
        file = pa.PythonFile(fetched, mode="r")
        _verify_footer(self._where, fetched.fetch, self._segment.size_bytes)
        options = pa.ipc.IpcReadOptions()
        with fetched.own_errors():
            schema = pa.ipc.open_file(file).schema
            if columns is not None:
                options.included_fields = [schema.get_field_index(c) for c in columns]
            reader = pa.ipc.open_file(file, options=options)
        for position in positions:
            with fetched.own_errors():
                batch = reader.get_batch(position)
            yield batch if columns is None else batch.select(list(columns))


class _FetchedFile:
    """The file object that `pyarrow.PythonFile` needs. Adjacent blocks are fetched in one request and kept."""

    closed = False

    def __init__(self, storage: Storage, key: str, segment: Segment, blocks: _Blocks) -> None:
        self._storage = storage
        self._key = key
        self._size_bytes = segment.size_bytes
        self._at = segment.part or 0
        self._blocks = blocks
        self._runs: list[tuple[int, memoryview]] = []
        self._position = 0
        self._failure: BaseException | None = None

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """Raise the original error of a read: Arrow turns an error of its file into an `OSError` of its own."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            if self._failure is not None:
                raise self._failure from error
            raise

    def fetch(self, start: int, end: int) -> memoryview:
        """Return verified bytes ``[start, end)`` of the segment."""
        for low, view in self._runs:
            if low <= start and end <= low + len(view):
                return view[start - low : end - low]
        low, high = self._blocks.aligned(start, end)
        (data,) = self._storage.read_ranges(self._key, [(self._at + low, self._at + high)])
        self._hold(memoryview(data), low, high)
        return memoryview(data)[start - low : end - low]

    def take(self, view: memoryview) -> None:
        """Verify and keep all bytes of the segment, fetched by another reader."""
        self._hold(view, 0, self._size_bytes)

    def _hold(self, view: memoryview, low: int, high: int) -> None:
        if len(view) != high - low:
            raise CorruptDataError(
                f"{self._storage.url}/{self._key} ends at byte {self._at + low + len(view)}, the commit record says "
                f"{self._at + self._size_bytes} bytes; restore this file",
            )
        self._blocks.check(view, low, high)
        self._runs = [*self._runs[-3:], (low, view)]

    def read_buffer(self, size: int = -1) -> pa.Buffer:
        end = self._size_bytes if size < 0 else min(self._position + size, self._size_bytes)
        try:
            data = self.fetch(self._position, end) if end > self._position else b""
        except BaseException as error:
            self._failure = error
            raise
        self._position = end
        return pa.py_buffer(data)

    def read(self, size: int = -1) -> bytes:
        return bytes(self.read_buffer(size))

    def seek(self, position: int, whence: int = 0) -> int:
        base = (0, self._position, self._size_bytes)[whence]
        self._position = base + position
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        """Do nothing: nothing is written here."""

    def close(self) -> None:
        """Do nothing: blocks are freed with the object."""


def _verify_footer(where: str, fetch: Callable[[int, int], memoryview], size_bytes: int) -> None:
    """Verify the tail of an Arrow file, which has the footer's position, and then the footer."""
    start = size_bytes - _FOOTER_TAIL_BYTES
    tail = bytes(fetch(start, size_bytes)) if start >= 0 else b""
    footer_bytes = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or footer_bytes > start:
        raise CorruptDataError(f"{where} does not end as an Arrow file does; restore this file")
    fetch(start - footer_bytes, size_bytes)
