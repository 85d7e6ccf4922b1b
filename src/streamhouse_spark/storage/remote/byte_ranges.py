"""Plans requests for many byte ranges of one object, and assembles the responses."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from streamhouse_spark.core.lazy_dataclass import dataclass

GAP_BYTES_MAX = 64 << 10
"""Ranges closer than this are fetched together: reading the gap costs less than another request."""
PIECE_BYTES_MAX = 16 << 20
"""Longer ranges are fetched in concurrent pieces: one connection is slower than the network."""


@dataclass(frozen=True, slots=True)
class RangePlan:
    """The pieces to fetch: sorted, without overlap, none longer than `PIECE_BYTES_MAX`."""

    requested: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Sequence[tuple[int, int]]) -> RangePlan:
        for start, end in ranges:
            if not 0 <= start <= end:
                raise ValueError(f"not a byte range: [{start}, {end})")
        pieces: list[tuple[int, int]] = []
        for start, end in stretches(ranges):
            pieces.extend((at, min(at + PIECE_BYTES_MAX, end)) for at in range(start, end, PIECE_BYTES_MAX))
        return cls(tuple(ranges), tuple(pieces))

    def assemble(self, fetched: Mapping[tuple[int, int], bytes]) -> list[bytes]:
        """Return the requested ranges in their order, from the bytes of every piece (short at the end of
        the object).
        """
        starts = [start for start, _ in self.pieces]
        return [self._one(start, end, starts, fetched) for start, end in self.requested]

    def _one(self, start: int, end: int, starts: list[int], fetched: Mapping[tuple[int, int], bytes]) -> bytes:
        if start == end:
            return b""
        if (whole := fetched.get((start, end))) is not None:
            return whole
        parts = []
        for piece in self.pieces[bisect_right(starts, start) - 1 :]:
            if piece[0] >= end:
                break
            parts.append(memoryview(fetched[piece])[max(start - piece[0], 0) : end - piece[0]])
        return b"".join(parts)


def stretches(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges that are close to each other; sorted."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and start - merged[-1][1] <= GAP_BYTES_MAX:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged
