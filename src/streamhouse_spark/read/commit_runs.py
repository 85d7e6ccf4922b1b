"""Offsets of one bucket by the commit that added their rows, or took them away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.core.values import dataclass

Int64Array = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class CommitRuns:
    """Ascending, disjoint runs ``[starts[i], ends[i])``, each of one commit. A commit may have several."""

    starts: Int64Array
    ends: Int64Array
    versions: Int64Array
    """Number of the commit of each run."""
    times_us: Int64Array
    is_grouped: Bools
    """Whether the commit may have changed a key of the bucket several times: several writers share its record."""

    @classmethod
    def of(cls, parts: Iterable[tuple[OffsetRuns, int, int, bool]]) -> CommitRuns:
        """Join offsets with their commit, time in microseconds and whether it is grouped, in any order."""
        found = [part for part in parts if part[0]]
        starts = np.concatenate([_NONE, *(runs.starts for runs, *_ in found)])
        lengths = np.concatenate([_NONE, *(runs.lengths for runs, *_ in found)])
        counts = [len(runs.starts) for runs, *_ in found]
        versions, times_us, grouped = (np.repeat([part[place] for part in found], counts) for place in (1, 2, 3))
        order = np.argsort(starts, kind="stable")
        return cls(
            starts[order],
            (starts + lengths)[order],
            versions.astype(np.int64)[order],
            times_us.astype(np.int64)[order],
            grouped.astype(np.bool_)[order],
        )

    def __bool__(self) -> bool:
        return len(self.starts) > 0

    @property
    def num_rows(self) -> int:
        return int((self.ends - self.starts).sum())

    @property
    def range(self) -> OffsetRange:
        """The range from the first offset to behind the last. Raises `IndexError` if there is none."""
        return OffsetRange(int(self.starts[0]), int(self.ends[-1]))

    def within(self, wanted: OffsetRange) -> CommitRuns:
        """Return the part that lies in ``wanted``."""
        starts, ends = np.maximum(self.starts, wanted.start), np.minimum(self.ends, wanted.end)
        kept = ends > starts
        return CommitRuns(starts[kept], ends[kept], self.versions[kept], self.times_us[kept], self.is_grouped[kept])

    @property
    def offsets(self) -> OffsetRuns:
        """All offsets, without their commits."""
        return OffsetRuns.concat([OffsetRuns(self.starts, self.ends - self.starts)])

    def since(self, time_us: int) -> CommitRuns:
        """Return the part of commits that are shown with this time or a later one."""
        kept = self.times_us >= time_us
        return CommitRuns(
            self.starts[kept], self.ends[kept], self.versions[kept], self.times_us[kept], self.is_grouped[kept]
        )

    def of_commit(self, number: int) -> OffsetRuns:
        """Return the offsets of one commit."""
        own = self.versions == number
        return OffsetRuns.concat([OffsetRuns(self.starts[own], (self.ends - self.starts)[own])])

    def among(self, rows: OffsetRuns) -> CommitRuns:
        """Return the part at these offsets."""
        own, shared = OffsetRuns(self.starts, self.ends - self.starts).overlaps(rows)
        ends = shared.starts + shared.lengths
        return CommitRuns(shared.starts, ends, self.versions[own], self.times_us[own], self.is_grouped[own])

    def reaches(self, offsets: OffsetRange) -> bool:
        """Tell whether a run has one of the offsets."""
        place = int(np.searchsorted(self.ends, offsets.start, side="right"))
        return place < len(self.starts) and int(self.starts[place]) < offsets.end

    def find(self, offsets: Int64Array) -> Int64Array:
        """Return for each offset the index of its run, or -1."""
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
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CommitRuns:
        starts, ends, versions, times_us = (np.array(data[n], np.int64) for n in _NAMES)
        is_grouped = np.zeros(len(starts), np.bool_)
        is_grouped[np.array(data["grouped"], np.int64)] = True
        return cls(starts, ends, versions, times_us, is_grouped)


_NONE: Int64Array = np.zeros(0, np.int64)
_NAMES = ("starts", "ends", "versions", "times_us")
