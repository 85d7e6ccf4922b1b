"""Writes the segments of several buckets: many small ones into one object, or few large ones concurrently."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import pyarrow as pa

from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.log.segments.statistics import RowSummary
from streamhouse_spark.log.segments.writer import (
    ArrowFileWriter,
    SegmentOptions,
    StagedSegment,
    make_staged_segment,
    rechunk_batches,
    stage_file,
    stage_object,
)
from streamhouse_spark.storage.base import Bytes, Sink, Storage

PART_BYTES_MAX = 256 << 10
"""Largest segment that shares an object. An append to thousands of buckets has little data per bucket, and separate
objects would cost a request each when they are written, read, listed and deleted.
"""
SHARED_BYTES_MAX = 32 << 20
PARTS_MIN = 16
"""Fewer segments get separate objects, which are deleted with their own rows."""
ALIGNMENT_BYTES = 64
"""Alignment of Arrow's buffers in a file."""

T = TypeVar("T")


def pack_by_size(items: Iterable[T], size_bytes: Callable[[T], int], bytes_max: int) -> Iterator[tuple[T, ...]]:
    """Yield groups of consecutive items of at most ``bytes_max``. A larger item is a separate group."""
    group: list[T] = []
    group_bytes = 0
    for item in items:
        item_bytes = size_bytes(item)
        if group and group_bytes + item_bytes > bytes_max:
            yield tuple(group)
            group, group_bytes = [], 0
        group.append(item)
        group_bytes += item_bytes
    if group:
        yield tuple(group)


def group_into_objects(items: Iterable[T], size_bytes: Callable[[T], int]) -> Iterator[tuple[T, ...]]:
    """Yield the items of each object, in no order: large items alone, `PARTS_MIN` or more small items together."""
    small: list[T] = []
    small_bytes = 0
    for item in items:
        item_bytes = size_bytes(item)
        if item_bytes > PART_BYTES_MAX:
            yield (item,)
            continue
        if small and small_bytes + item_bytes > SHARED_BYTES_MAX:
            yield from _shared(small)
            small, small_bytes = [], 0
        small.append(item)
        small_bytes += item_bytes
    yield from _shared(small)


def _shared(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    if len(items) >= PARTS_MIN:
        yield tuple(items)
    else:
        yield from ((item,) for item in items)


def stage_shared_object(
    storage: Storage, table_uuid: str, segment_uuid: str, parts: Sequence[tuple[int, pa.Table]], options: SegmentOptions
) -> list[StagedSegment]:
    """Write the rows of buckets as one object. The segments are durable when this returns."""
    if len(parts) == 1:
        ((bucket, rows),) = parts
        return [stage_object(storage, table_uuid, segment_uuid, rows, bucket, options)]
    staged = []
    with create_shared(storage, table_uuid, segment_uuid) as sink:
        for bucket, rows in parts:
            part = sink.begin_part()
            segment = stage_file(sink, segment_uuid, rows, bucket, options).segment
            staged.append(StagedSegment(replace(segment, part=part)))
    return staged


@contextmanager
def create_shared(storage: Storage, table_uuid: str, segment_uuid: str) -> Iterator[PackedObjectWriter]:
    """Create an object for several segments. It is durable when the context ends without error."""
    with storage.create(segment_key(table_uuid, segment_uuid)) as sink:
        yield PackedObjectWriter(sink)


class PackedObjectWriter:
    """Writes an object, and aligns the start of each segment."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._size_bytes = 0

    def begin_part(self) -> int:
        """Return the position at which the next segment starts in the object."""
        padding = -self._size_bytes % ALIGNMENT_BYTES
        if padding:
            self.write(bytes(padding))
        return self._size_bytes

    def write(self, data: Bytes) -> int:
        self._sink.write(data)
        self._size_bytes += memoryview(data).nbytes
        return len(data)


# -- streams ----------------------------------------------------------------------------------------------------------


_NAME = "streamhouse-stage"

Part: TypeAlias = tuple[int, pa.RecordBatch]
"""A bucket, and some of its rows."""


class BucketSegmentWriter:
    """A segment of one bucket that is being written. Its object is stored by `finish`; an error removes it."""

    def __init__(
        self,
        storage: Storage,
        table_uuid: str,
        segment_uuid: str,
        bucket: int,
        schema: pa.Schema,
        options: SegmentOptions,
        bytes_max: int,
    ) -> None:
        """Open a segment of at most about ``bytes_max``."""
        self._uuid = segment_uuid
        self._bucket = bucket
        self._schema = schema
        self._options = options
        with ExitStack() as stack:
            sink = stack.enter_context(storage.create(segment_key(table_uuid, segment_uuid)))
            self._file = ArrowFileWriter(sink, schema, bytes_max, options.codec)
            self._stack = stack.pop_all()
        self._is_whole = True
        self._summary = RowSummary(options.stats_columns, options.partition_by)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the object if the segment is not finished."""
        self._stack.__exit__(kind, error, trace)

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows. Does nothing after an error, which closes the object."""
        if not self._is_whole:
            return
        self._is_whole = False
        with self._stack.pop_all() as stack:
            for batch in rechunk_batches(pa.Table.from_batches([rows])):
                self._file.write(batch)
            self._stack = stack.pop_all()
        self._summary.add(rows)
        self._is_whole = True

    def finish(self) -> StagedSegment:
        """Complete the object, and return the segment. It is durable when this returns."""
        assert self._is_whole
        with self._stack.pop_all():
            size_bytes, index = self._file.finish()
        described = replace(
            make_staged_segment(0, self._bucket, self._options, size_bytes),
            **self._summary.to_fields(self._schema, is_compressed=self._options.codec != "none"),
            uuid=self._uuid,
            index_bytes=index.to_bytes(),
        )
        return StagedSegment(described)


def stage_bucket_segments(
    steps: Iterable[Sequence[Part]], open_stream: Callable[[int], BucketSegmentWriter], bytes_max: int
) -> list[StagedSegment]:
    """Write the rows of each bucket in order, into segments of little more than ``bytes_max``.

    Two threads write, each for its own buckets, so that rows stay in order. About two steps wait to be written. The
    segments are durable when this returns.
    """
    streams: dict[int, tuple[BucketSegmentWriter, int]] = {}
    waiting: deque[Future[None]] = deque()
    finished: list[Future[StagedSegment]] = []
    with ExitStack() as unfinished, ThreadPoolExecutor(1, _NAME) as even, ThreadPoolExecutor(1, _NAME) as odd:
        writers = (even, odd)
        for step in steps:
            while len(waiting) > len(step):
                waiting.popleft().result()
            for bucket, rows in step:
                writer = writers[bucket % 2]
                stream, size_bytes = streams.pop(bucket, (None, 0))
                if stream is None:
                    stream = unfinished.enter_context(open_stream(bucket))
                waiting.append(writer.submit(stream.write, rows))
                size_bytes += rows.nbytes
                if size_bytes < bytes_max:
                    streams[bucket] = (stream, size_bytes)
                else:
                    finished.append(writer.submit(stream.finish))
        for future in waiting:
            future.result()
        finished += [writers[bucket % 2].submit(s.finish) for bucket, (s, _) in sorted(streams.items())]
        return [future.result() for future in finished]
