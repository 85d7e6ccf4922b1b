"""Objects that hold the segments of several buckets, each in its own byte range.

An append to thousands of buckets has little data per bucket. An object per bucket would cost a request each when it is
written, read, listed and deleted. Segments of up to `PART_BYTES_MAX` therefore share objects, if there are at least
`PARTS_MIN`. Each is an Arrow file with its own checksums, and starts at a multiple of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from streamhouse_spark.core.paths import segment_key
from streamhouse_spark.log.segments.writer import SegmentOptions, StagedSegment, stage_file, stage_object
from streamhouse_spark.storage.base import Bytes, Sink, Storage

PART_BYTES_MAX = 256 << 10
SHARED_BYTES_MAX = 32 << 20
PARTS_MIN = 16
"""Fewer segments get an object each: they cost little, and each is deleted with its own rows."""
ALIGNMENT_BYTES = 64
"""Keeps Arrow's buffers aligned in an object as in a file."""

T = TypeVar("T")


def group_into_objects(items: Iterable[T], size_bytes: Callable[[T], int]) -> Iterator[tuple[T, ...]]:
    """Yield the items of each object, in no order: large items alone, small ones together if they are many."""
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


def stage_group(
    storage: Storage, table_uuid: str, segment_uuid: str, parts: Sequence[tuple[int, pa.Table]], options: SegmentOptions
) -> list[StagedSegment]:
    """Write the rows of buckets as one object, durable when this returns."""
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
    """Create an object for several segments. Durable and visible when the context ends without error."""
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
