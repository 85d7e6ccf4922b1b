"""Ranges of shared objects: a reader of several segments of one fetches neighbours in one request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from streamhouse_spark.core.paths import segment_key
from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.storage.base import Storage

RANGE_BYTES_MAX = 8 << 20
GAP_BYTES_MAX = 256 << 10
"""Largest gap between two parts that are fetched together: about the bytes that move in the time of a request."""


@dataclass(slots=True)
class _Range:
    """Bytes ``[start, end)`` of an object, kept until the expected number of segments took theirs."""

    start: int
    end: int
    waiting: int = 1
    data: memoryview | None = None

    def takes(self, start: int, end: int) -> bool:
        """Tell whether a part behind the others can join the range."""
        return start - self.end <= GAP_BYTES_MAX and end - self.start <= RANGE_BYTES_MAX


class PartRanges:
    """The parts of shared objects that one read is about to take. Used by one thread.

    Only a segment that is asked for is fetched, with expected neighbours: a read of one bucket reads no other's bytes.
    Bytes are handed out as they came, for the reader to verify.
    """

    def __init__(self, storage: Storage, table_uuid: str) -> None:
        self._storage = storage
        self._table_uuid = table_uuid
        self._ranges: dict[tuple[str, int], _Range] = {}

    def expect(self, segments: Iterable[Segment]) -> None:
        """Announce segments that will be taken, once each."""
        places = sorted({(s.uuid, s.part, s.size_bytes) for s in segments if s.uuid is not None and s.part is not None})
        for uuid, parts in groupby(places, key=lambda place: place[0]):
            last: _Range | None = None
            for _, start, size_bytes in parts:
                end = start + size_bytes
                if last is not None and last.takes(start, end):
                    last.end, last.waiting = end, last.waiting + 1
                else:
                    last = _Range(start, end)
                self._ranges[uuid, start] = last

    def take(self, segment: Segment) -> memoryview | None:
        """Return the segment's bytes; None if it was not expected, or was taken already.

        Raises `ObjectNotFoundError`.
        """
        if segment.uuid is None or segment.part is None:
            return None
        found = self._ranges.pop((segment.uuid, segment.part), None)
        if found is None:
            return None
        if found.data is None:
            key = segment_key(self._table_uuid, segment.uuid)
            found.data = memoryview(self._storage.read_ranges(key, [(found.start, found.end)])[0])
        start = segment.part - found.start
        found.waiting -= 1
        data, found.data = found.data, found.data if found.waiting else None
        return data[start : start + segment.size_bytes]
