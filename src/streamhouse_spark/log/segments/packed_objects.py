"""Objects that hold the segments of several buckets, each whole at its range of bytes.

An append to thousands of buckets gives each of them little: an object for each would cost a request for each, when it
is written, read, listed and deleted. Segments of up to `PART_BYTES_MAX` therefore share objects, if they are at least
`PARTS_MIN`. Each is an Arrow file of its own, with its own checksums, that begins at a multiple of 64 bytes.
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
"""Arrow's buffers are aligned in an object as they are in a file."""

T = TypeVar("T")


def group_into_objects(items: Iterable[T], size_bytes: Callable[[T], int]) -> Iterator[tuple[T, ...]]:
    """Return the items of one object each: large ones alone, small ones together if they are many. Not in their
    order.
    """
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
    """Create an object for parts. Durable and visible when the context ends well."""
    with storage.create(segment_key(table_uuid, segment_uuid)) as sink:
        yield PackedObjectWriter(sink)


class PackedObjectWriter:
    """Passes bytes on to an object, and remembers the beginning of each part."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._size_bytes = 0

    def begin_part(self) -> int:
        """Return the position at which the next part begins in the object."""
        padding = -self._size_bytes % ALIGNMENT_BYTES
        if padding:
            self.write(bytes(padding))
        return self._size_bytes

    def write(self, data: Bytes) -> int:
        self._sink.write(data)
        self._size_bytes += memoryview(data).nbytes
        return len(data)
