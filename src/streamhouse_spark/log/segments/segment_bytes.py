"""The bytes of a segment, verified before use: memory-mapped, or fetched from a remote store."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from itertools import groupby
from typing import Protocol

import pyarrow as pa
import xxhash

from streamhouse_spark.errors import CorruptDataError
from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.storage.base import Storage, url_of

Range = tuple[int, int]


class SegmentBytes(Protocol):
    """Positions are relative to the segment's first byte."""

    def expect(self, ranges: Iterable[Range]) -> None:
        """Announce bytes that will be read: missing ones are fetched in one request."""

    def read(self, start: int, end: int) -> memoryview:
        """Return verified bytes ``[start, end)``. Raises `CorruptDataError`."""


class BlockChecksums:
    """Verifies byte ranges of a segment against its block checksums, each block once."""

    def __init__(self, where: str, segment: Segment) -> None:
        self._where = where
        self.block_bytes = segment.index.block_bytes
        self._sums = segment.index.block_sums.tolist()
        self._size_bytes = segment.size_bytes
        self._part = segment.part
        self._verified = bytearray(len(self._sums))

    def align_range(self, start: int, end: int) -> Range:
        """Return the smallest run of whole blocks around a byte range."""
        size = self.block_bytes
        return start // size * size, min(-(-end // size) * size, self._size_bytes)

    def missing(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the unverified blocks around the ranges, adjacent ones combined."""
        size = self.block_bytes
        needed = {
            block
            for start, end in ranges
            if start < end
            for block in range(start // size, -(-min(end, self._size_bytes) // size))
            if not self._verified[block]
        }
        runs = groupby(enumerate(sorted(needed)), key=lambda numbered: numbered[1] - numbered[0])
        block_runs = [[block for _, block in run] for _, run in runs]
        return [self.align_range(run[0] * size, (run[-1] + 1) * size) for run in block_runs]

    def check_size(self, object_bytes: int) -> None:
        """Verify the length of the object."""
        least = (self._part or 0) + self._size_bytes
        if object_bytes < least or (self._part is None and object_bytes != least):
            raise CorruptDataError(
                f"{self._where} has {object_bytes} bytes, expected {least} by the commit record; restore this file",
            )

    def check(self, data: bytes | memoryview, start: int, end: int) -> None:
        """Verify ``data``, the segment's bytes from the block at or before ``start`` on."""
        at = self._part or 0
        size = self.block_bytes
        view = memoryview(data)
        origin = self.align_range(start, end)[0]
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


class MmapReader:
    """A memory-mapped segment. Bytes are verified in place."""

    def __init__(self, storage: Storage, key: str, segment: Segment) -> None:
        self._blocks = BlockChecksums(url_of(storage, key), segment)
        self._blocks.check_size(storage.size_bytes(key))
        self._size_bytes = segment.size_bytes
        with pa.memory_map(storage.local_path(key)) as file:
            file.seek(segment.part or 0)
            self.buffer = file.read_buffer(segment.size_bytes)
        self._view = memoryview(self.buffer)

    def expect(self, ranges: Iterable[Range]) -> None:
        """Do nothing: the file is mapped."""

    def read(self, start: int, end: int) -> memoryview:
        end = min(end, self._size_bytes)
        low, high = self._blocks.align_range(start, end)
        self._blocks.check(self._view[low:high], start, end)
        return self._view[start:end]


class RangeFetcher:
    """A segment on a remote store. Whole blocks are fetched, each once, and held as long as this object."""

    def __init__(self, storage: Storage, key: str, segment: Segment, held: memoryview | None = None) -> None:
        """``held`` are all bytes of the segment, not verified yet, if they were fetched before."""
        self._storage = storage
        self._key = key
        self._at = segment.part or 0
        self._size_bytes = segment.size_bytes
        self._blocks = BlockChecksums(url_of(storage, key), segment)
        self._runs: list[tuple[int, int, memoryview]] = []
        """Start and end of adjacent blocks, and their bytes, in order."""
        if held is not None:
            self._hold(0, self._size_bytes, held)

    def expect(self, ranges: Iterable[Range]) -> None:
        missing = self._blocks.missing(ranges)
        if missing:
            file_ranges = [(self._at + low, self._at + high) for low, high in missing]
            for (low, high), data in zip(missing, self._storage.read_ranges(self._key, file_ranges), strict=True):
                self._hold(low, high, memoryview(data))

    def read(self, start: int, end: int) -> memoryview:
        end = min(end, self._size_bytes)
        self.expect([(start, end)])
        parts = []
        for low, high, view in self._runs[max(bisect_right(self._runs, start, key=_low) - 1, 0) :]:
            if low >= end:
                break
            if high > start:
                parts.append(view[max(start - low, 0) : end - low])
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _hold(self, low: int, high: int, view: memoryview) -> None:
        if len(view) != high - low:
            raise CorruptDataError(
                f"{url_of(self._storage, self._key)} ends at byte {self._at + low + len(view)}, expected "
                f"{self._at + self._size_bytes} bytes by the commit record; restore this file",
            )
        self._blocks.check(view, low, high)
        insort(self._runs, (low, high, view), key=_low)


def _low(run: tuple[int, int, memoryview]) -> int:
    return run[0]
