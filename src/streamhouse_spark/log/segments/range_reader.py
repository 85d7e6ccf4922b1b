"""Verified bytes of segments: memory-mapped, or fetched from a remote store.

Remote reads are coalesced: adjacent segments of an object take one request, and many small objects are read
concurrently.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from itertools import groupby
from typing import Final, Protocol

import pyarrow as pa
import xxhash

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.errors import CorruptDataError, ObjectNotFoundError
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.storage.prefetch import SupportsBatchReads, map_with_store_concurrency

Range = tuple[int, int]


RANGE_BYTES_MAX = 8 << 20
GAP_BYTES_MAX = 256 << 10
"""Largest gap between two parts that are fetched together. About as many bytes transfer in the time of a request."""
ONE_REQUEST_BYTES_MAX: Final = 1 << 20
"""Segments of up to this size are fetched with all their columns, which takes no longer than a second request."""
WINDOW_BYTES: Final = 32 << 20
"""Bytes that are fetched concurrently, in addition to the first range."""


class SegmentBytes(Protocol):
    """The bytes of a segment. Positions are relative to its first byte."""

    def expect(self, ranges: Iterable[Range]) -> None:
        """Announce bytes that will be read. The missing bytes are fetched in one request."""

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
        """Return the byte range of the blocks that contain a byte range."""
        size = self.block_bytes
        return start // size * size, min(-(-end // size) * size, self._size_bytes)

    def missing(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the byte ranges of the unverified blocks that contain the ranges. Adjacent blocks are combined."""
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
        """Verify the blocks that contain ``[start, end)``. ``data`` starts at the first of these blocks."""
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
    """A segment on a remote store. Whole blocks are fetched once and stay in memory."""

    def __init__(self, storage: Storage, key: str, segment: Segment, fetched: memoryview | None = None) -> None:
        """``fetched`` are all bytes of the segment, not verified yet, if they were fetched before."""
        self._storage = storage
        self._key = key
        self._at = segment.part or 0
        self._size_bytes = segment.size_bytes
        self._blocks = BlockChecksums(url_of(storage, key), segment)
        self._runs: list[tuple[int, int, memoryview]] = []
        """Start, end and bytes of each fetched range, in order."""
        if fetched is not None:
            self._hold(0, self._size_bytes, fetched)

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


@dataclass(slots=True, eq=False)
class _Range:
    """Bytes ``[start, end)`` of an object. They are released after ``waiting`` segments have taken their parts."""

    key: str
    start: int
    end: int
    is_whole: bool = False
    """Whether the range is the whole object."""
    waiting: int = 1
    data: memoryview | None = None

    def can_extend(self, start: int, end: int) -> bool:
        """Return whether the next part of the object can join the range."""
        return start - self.end <= GAP_BYTES_MAX and end - self.start <= RANGE_BYTES_MAX


class PartRanges:
    """Fetches the segments of one read from their objects. Thread-safe.

    A segment is fetched when it is taken, together with expected segments next to it in the object. A store with
    batched reads also fetches the next expected segments. The bytes are not verified here.
    """

    def __init__(self, storage: Storage, table_uuid: str) -> None:
        self._storage = storage
        self._many = storage if isinstance(storage, SupportsBatchReads) else None
        self._table_uuid = table_uuid
        self._ranges: dict[tuple[str, int], _Range] = {}
        self._unread: dict[_Range, None] = {}
        """Ranges that were not fetched yet, in the order in which their segments will be taken."""
        self._lock = new_lock()

    def expect(self, segments: Iterable[Segment]) -> None:
        """Announce segments that will be taken once each."""
        planned = [s for s in segments if s.uuid is not None and (s.part is not None or self._is_small(s))]
        places = sorted({(s.uuid or "", s.part or 0, s.size_bytes, s.part is None) for s in planned})
        for uuid, parts in groupby(places, key=lambda place: place[0]):
            last: _Range | None = None
            for _, start, size_bytes, is_whole in parts:
                end = start + size_bytes
                if last is not None and last.can_extend(start, end):
                    last.end, last.waiting = end, last.waiting + 1
                else:
                    last = _Range(segment_key(self._table_uuid, uuid), start, end, is_whole)
                self._ranges[uuid, start] = last
        for segment in planned:
            part_range = self._ranges.get((segment.uuid or "", segment.part or 0))
            if part_range is not None and part_range.data is None:
                self._unread[part_range] = None

    def _is_small(self, segment: Segment) -> bool:
        return self._many is not None and segment.size_bytes <= ONE_REQUEST_BYTES_MAX

    def fetch_first(self) -> None:
        """Fetch the first of the expected ranges now."""
        with self._lock:
            if self._unread:
                self._fetch(self._choose_window(next(iter(self._unread))))

    def take(self, segment: Segment) -> memoryview | None:
        """Return the segment's bytes; None if it was not expected, or was taken before.

        Raises `ObjectNotFoundError`.
        """
        with self._lock:
            at = segment.part or 0
            part_range = self._ranges.pop((segment.uuid or "", at), None)
            if part_range is None:
                return None
            if part_range.data is None:
                self._fetch(self._choose_window(part_range))
            if part_range.data is None:
                raise ObjectNotFoundError.of(url_of(self._storage, part_range.key))
            part_range.waiting -= 1
            data, part_range.data = part_range.data, part_range.data if part_range.waiting else None
            return data[at - part_range.start : at - part_range.start + segment.size_bytes]

    def _choose_window(self, first: _Range) -> list[_Range]:
        """Return the ranges to fetch together, starting with ``first``."""
        self._unread.pop(first, None)
        window, left_bytes = [first], WINDOW_BYTES
        while self._many is not None and self._unread:
            following = next(iter(self._unread))
            left_bytes -= following.end - following.start
            if left_bytes < 0:
                break
            del self._unread[following]
            window.append(following)
        return window

    def _fetch(self, window: list[_Range]) -> None:
        """Fetch ranges concurrently. A range of an absent object gets no data."""
        whole = [part_range for part_range in window if part_range.is_whole]
        parts = [[part_range] for part_range in window if not part_range.is_whole]
        for _ in map_with_store_concurrency(self._storage, self._fetch_some, [whole, *parts] if whole else parts):
            pass

    def _fetch_some(self, ranges: list[_Range]) -> None:
        """Fetch one range, or any number of whole objects."""
        if self._many is not None and ranges[0].is_whole:
            keys = [part_range.key for part_range in ranges]
            for part_range, data in zip(ranges, self._many.read_many(keys), strict=True):
                part_range.data = None if data is None else memoryview(data)
            return
        for part_range in ranges:
            (data,) = self._storage.read_ranges(part_range.key, [(part_range.start, part_range.end)])
            part_range.data = memoryview(data)
