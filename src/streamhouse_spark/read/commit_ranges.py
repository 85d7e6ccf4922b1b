"""Offset ranges of a bucket, each with the commit that added or deleted its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange

Int64Array = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_NONE: Int64Array = np.zeros(0, np.int64)
_NUMBERS = ("starts", "ends", "versions", "times_us")
_COLUMNS = (*_NUMBERS, "is_grouped", "is_updated")


class CommitRange(NamedTuple):
    """Offsets of one commit."""

    rows: OffsetSet
    version: int
    time_us: int
    is_grouped: bool = False
    is_updated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class CommitRanges:
    """Ascending, disjoint ranges ``[starts[i], ends[i])``, each of one commit. A commit may have several."""

    starts: Int64Array
    ends: Int64Array
    versions: Int64Array
    """Commit number of each range."""
    times_us: Int64Array
    is_grouped: Bools
    """Whether several writers share the commit record, so that it may contain several changes of a key."""
    is_updated: Bools
    """Whether the rows are the pre-images or post-images of an update of a log table."""

    @classmethod
    def of(cls, parts: Iterable[CommitRange]) -> CommitRanges:
        """Combine the offsets of commits, given in any order."""
        nonempty = [part for part in parts if part.rows]
        starts = np.concatenate([_NONE, *(part.rows.starts for part in nonempty)])
        lengths = np.concatenate([_NONE, *(part.rows.lengths for part in nonempty)])
        counts = [len(part.rows.starts) for part in nonempty]
        columns = zip(*(part[1:] for part in nonempty), strict=True) if nonempty else [[]] * 4
        versions, times_us, grouped, updated = (np.repeat(column, counts) for column in columns)
        unsorted = cls(
            starts,
            starts + lengths,
            versions.astype(np.int64),
            times_us.astype(np.int64),
            grouped.astype(np.bool_),
            updated.astype(np.bool_),
        )
        return unsorted.select(np.argsort(starts, kind="stable"))

    def select(self, selection: Int64Array | Bools) -> CommitRanges:
        """Return the selected ranges."""
        return CommitRanges(*(getattr(self, name)[selection] for name in _COLUMNS))

    def _cut(self, starts: Int64Array, ends: Int64Array) -> CommitRanges:
        """Return the ranges with other bounds, except empty ones."""
        return replace(self, starts=starts, ends=ends).select(ends > starts)

    def __bool__(self) -> bool:
        return len(self.starts) > 0

    @property
    def num_rows(self) -> int:
        return int((self.ends - self.starts).sum())

    @property
    def range(self) -> OffsetRange:
        """The range from the first to the last offset. Raises `IndexError` if there are no offsets."""
        return OffsetRange(int(self.starts[0]), int(self.ends[-1]))

    def within(self, offsets_range: OffsetRange) -> CommitRanges:
        """Return the intersection with ``offsets_range``."""
        return self._cut(np.maximum(self.starts, offsets_range.start), np.minimum(self.ends, offsets_range.end))

    @property
    def offsets(self) -> OffsetSet:
        """All offsets, without their commits."""
        return OffsetSet.concat([OffsetSet(self.starts, self.ends - self.starts)])

    def since(self, time_us: int) -> CommitRanges:
        """Return the ranges of commits whose display time is ``time_us`` or later."""
        return self.select(self.times_us >= time_us)

    def of_commit(self, number: int) -> OffsetSet:
        """Return the offsets of the commit with this number."""
        is_of_commit = self.versions == number
        return OffsetSet.concat([OffsetSet(self.starts[is_of_commit], (self.ends - self.starts)[is_of_commit])])

    def at_offsets(self, rows: OffsetSet) -> CommitRanges:
        """Return the intersection with these offsets."""
        indices, shared = OffsetSet(self.starts, self.ends - self.starts).overlaps(rows)
        return replace(self.select(indices), starts=shared.starts, ends=shared.starts + shared.lengths)

    def overlaps(self, offsets: OffsetRange) -> bool:
        """Return whether a range contains one of the offsets."""
        place = int(np.searchsorted(self.ends, offsets.start, side="right"))
        return place < len(self.starts) and int(self.starts[place]) < offsets.end

    def find(self, offsets: Int64Array) -> Int64Array:
        """Return the index of the range of each offset, or -1."""
        place: Int64Array = np.searchsorted(self.starts, offsets, side="right") - 1
        place[(place >= 0) & (offsets >= self.ends[np.maximum(place, 0)])] = -1
        return place

    def to_json(self) -> dict[str, Any]:
        return {
            "starts": self.starts.tolist(),
            "ends": self.ends.tolist(),
            "versions": self.versions.tolist(),
            "times_us": self.times_us.tolist(),
            "grouped": np.flatnonzero(self.is_grouped).tolist(),
            "updated": np.flatnonzero(self.is_updated).tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CommitRanges:
        starts, ends, versions, times_us = (np.array(data[name], np.int64) for name in _NUMBERS)
        grouped, updated = (np.zeros(len(starts), np.bool_) for _ in range(2))
        grouped[np.array(data["grouped"], np.int64)] = True
        updated[np.array(data["updated"], np.int64)] = True
        return cls(starts, ends, versions, times_us, grouped, updated)
