"""Sets of log offsets of one bucket as runs, for example the offsets of the rows of a data file, or of deleted rows.

A data file of an unpartitioned table has one run. A file of one of many partitions may have many runs. The runs are
stored compressed in the Parquet footer, so that trimmed log ranges can be read from the lake with their offsets.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CorruptDataError

FORMAT_VERSION = 1
_WIDTHS_BYTES = (1, 2, 4, 8)

Int64Array = npt.NDArray[np.int64]
_EMPTY: Int64Array = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class OffsetSet:
    """Ascending, disjoint, non-empty runs ``[starts[i], starts[i] + lengths[i])``. Row k has the k-th offset."""

    starts: Int64Array
    lengths: Int64Array

    @classmethod
    def of(cls, offsets: Int64Array) -> OffsetSet:
        """Return the runs of ascending offsets."""
        if len(offsets) == 0:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        first = np.concatenate([[0], breaks])
        return cls(offsets[first], np.diff(np.concatenate([first, [len(offsets)]])))

    @classmethod
    def dense(cls, start: int, num_rows: int) -> OffsetSet:
        return cls(np.array([start], np.int64), np.array([num_rows], np.int64)) if num_rows else cls.of(_EMPTY)

    @classmethod
    def concat(cls, parts: Sequence[OffsetSet]) -> OffsetSet:
        """Concatenate parts in ascending order and merge adjacent runs. Raises `ValueError` for parts out of order."""
        starts = np.concatenate([_EMPTY, *(p.starts for p in parts)])
        lengths = np.concatenate([_EMPTY, *(p.lengths for p in parts)])
        if len(starts) == 0:
            return cls(starts, lengths)
        gaps = starts[1:] - (starts[:-1] + lengths[:-1])
        if len(gaps) and int(gaps.min()) < 0:
            raise ValueError("offset runs overlap or are out of order")
        first = np.concatenate([[0], np.flatnonzero(gaps != 0) + 1])
        return cls(starts[first], np.add.reduceat(lengths, first))

    @classmethod
    def union(cls, parts: Sequence[OffsetSet]) -> OffsetSet:
        """Combine disjoint parts in any order. Raises `ValueError` for a common offset."""
        starts = np.concatenate([_EMPTY, *(p.starts for p in parts)])
        lengths = np.concatenate([_EMPTY, *(p.lengths for p in parts)])
        order = np.argsort(starts, kind="stable")
        return cls.concat([cls(starts[order], lengths[order])])

    @classmethod
    def merged(cls, parts: Sequence[OffsetSet]) -> OffsetSet:
        """Combine parts in any order, which may overlap."""
        starts = np.concatenate([_EMPTY, *(p.starts for p in parts)])
        if len(starts) == 0:
            return cls(starts, starts)
        order = np.argsort(starts, kind="stable")
        starts, lengths = starts[order], np.concatenate([p.lengths for p in parts])[order]
        reached = np.maximum.accumulate(starts + lengths)
        first = np.concatenate([[0], np.flatnonzero(starts[1:] > reached[:-1]) + 1])
        last = np.concatenate([first[1:], [len(starts)]]) - 1
        return cls(starts[first], reached[last] - starts[first])

    def __bool__(self) -> bool:
        return len(self.starts) > 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetSet):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.lengths, other.lengths)

    def __hash__(self) -> int:
        return hash((self.starts.tobytes(), self.lengths.tobytes()))

    @property
    def num_rows(self) -> int:
        return int(self.lengths.sum())

    @property
    def range(self) -> OffsetRange:
        """The range from the first to the last offset. Raises `IndexError` if the set is empty."""
        return OffsetRange(int(self.starts[0]), int(self.starts[-1] + self.lengths[-1]))

    def offsets(self) -> Int64Array:
        """Return one offset per row."""
        first_rows = np.cumsum(self.lengths) - self.lengths
        offsets: Int64Array = np.arange(self.num_rows, dtype=np.int64)
        offsets += np.repeat(self.starts - first_rows, self.lengths)
        return offsets

    def offsets_of(self, rows: Int64Array) -> Int64Array:
        """Return the offsets of the rows with these numbers, which must exist."""
        first_rows = np.cumsum(self.lengths) - self.lengths
        run = np.searchsorted(first_rows, rows, side="right") - 1
        offsets: Int64Array = rows + (self.starts - first_rows)[run]
        return offsets

    def rows_of(self, offsets: OffsetRange) -> tuple[int, int]:
        """Return the half-open range of row numbers whose offsets are in ``offsets``."""
        return self.rows_below(offsets.start), self.rows_below(offsets.end)

    def rows(self, first: int, last: int) -> OffsetSet:
        """Return the runs of rows ``[first, last)``."""
        first_rows = np.cumsum(self.lengths) - self.lengths
        skipped = np.clip(first - first_rows, 0, self.lengths)
        lengths = np.clip(last - first_rows, 0, self.lengths) - skipped
        is_nonempty = lengths > 0
        return OffsetSet((self.starts + skipped)[is_nonempty], lengths[is_nonempty])

    def within(self, offsets: OffsetRange) -> OffsetSet:
        """Return the intersection with a range."""
        first = max(int(np.searchsorted(self.starts, offsets.start, side="right")) - 1, 0)
        last = int(np.searchsorted(self.starts, offsets.end, side="left"))
        run_starts, lengths = self.starts[first:last], self.lengths[first:last]
        starts = np.maximum(run_starts, offsets.start)
        ends = np.minimum(run_starts + lengths, offsets.end)
        is_nonempty = ends > starts
        return OffsetSet(starts[is_nonempty], (ends - starts)[is_nonempty])

    def overlaps(self, other: OffsetSet) -> tuple[Int64Array, OffsetSet]:
        """Return the common offsets, as one run per pair of runs, and the index of each run in this set."""
        ends, other_ends = self.starts + self.lengths, other.starts + other.lengths
        first = np.searchsorted(other_ends, self.starts, side="right")
        counts = np.maximum(np.searchsorted(other.starts, ends, side="left") - first, 0)
        own_runs = np.repeat(np.arange(len(counts)), counts)
        other_runs = np.arange(len(own_runs)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        starts = np.maximum(self.starts[own_runs], other.starts[other_runs])
        return own_runs, OffsetSet(starts, np.minimum(ends[own_runs], other_ends[other_runs]) - starts)

    def common(self, other: OffsetSet) -> OffsetSet:
        """Return the intersection."""
        return self.overlaps(other)[1]

    def without(self, other: OffsetSet) -> OffsetSet:
        """Return the difference."""
        shared = self.common(other)
        starts = np.sort(np.concatenate([self.starts, shared.starts + shared.lengths]))
        ends = np.sort(np.concatenate([self.starts + self.lengths, shared.starts]))
        is_nonempty = ends > starts
        return OffsetSet(starts[is_nonempty], (ends - starts)[is_nonempty])

    def holds(self, offsets: Int64Array) -> npt.NDArray[np.bool_]:
        """Return whether each of these offsets is in the set."""
        run = np.searchsorted(self.starts, offsets, side="right") - 1
        ends = self.starts + self.lengths
        is_member: npt.NDArray[np.bool_] = (run >= 0) & (offsets < ends[np.maximum(run, 0)])
        return is_member

    def rows_at(self, offsets: OffsetSet) -> Int64Array:
        """Return the row numbers of offsets, which must be in the set."""
        requested = offsets.offsets()
        run = np.searchsorted(self.starts, requested, side="right") - 1
        first_rows = np.cumsum(self.lengths) - self.lengths
        numbers: Int64Array = first_rows[run] + requested - self.starts[run]
        return numbers

    def rows_below(self, offset: int) -> int:
        """Return the number of smaller offsets."""
        return int(np.clip(offset - self.starts, 0, self.lengths).sum())

    def to_json(self) -> dict[str, Any]:
        """Return the set as JSON for another process of this version."""
        return {"runs": len(self.starts), "starts": _to_json_runs(self.starts), "lengths": _to_json_runs(self.lengths)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OffsetSet:
        """Decode the result of `to_json`."""
        return cls(*(_from_json_runs(value[name], value["runs"]) for name in ("starts", "lengths")))

    def to_text(self) -> str:
        """Return the set as text for file metadata."""
        header: dict[str, object] = {"version": FORMAT_VERSION, "rows": self.num_rows}
        if len(self.starts) == 1:
            header["start"] = int(self.starts[0])
        elif len(self.starts):
            gaps = self.starts[1:] - (self.starts[:-1] + self.lengths[:-1])
            if int(gaps.min()) < 1:
                raise ValueError("offset runs touch or are out of order")
            header["start"] = int(self.starts[0])
            header["runs"] = len(self.starts)
            header["lengths"] = _to_json_runs(self.lengths)
            header["gaps"] = _to_json_runs(gaps)
        return json.dumps(header, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str | bytes, *, where: str) -> OffsetSet:
        """Parse the result of `to_text`. Raises `CorruptDataError` with the location ``where``."""
        try:
            header = json.loads(text)
            version, rows = header["version"], header["rows"]
            if version != FORMAT_VERSION:
                raise ValueError(f"version {version}")
            if rows == 0:
                return cls.of(_EMPTY)
            if "runs" not in header:
                return cls.dense(header["start"], rows)
            lengths = _from_json_runs(header["lengths"], header["runs"])
            gaps = _from_json_runs(header["gaps"], header["runs"] - 1)
            starts = header["start"] + np.concatenate([[0], np.cumsum(lengths[:-1] + gaps)])
        except (ValueError, KeyError, TypeError, OSError, binascii.Error, pa.ArrowException) as error:
            raise CorruptDataError(
                f"the offsets in the footer of {where} cannot be read: {error}; restore it, "
                "or rebuild the lake from the log (streamhouse retier)"
            ) from error
        if int(lengths.sum()) != rows or int(lengths.min()) < 1 or (len(gaps) and int(gaps.min()) < 1):
            raise CorruptDataError(
                f"the offsets in the footer of {where} do not add up to its {rows} rows; restore it, "
                "or rebuild the lake from the log (streamhouse retier)"
            )
        return cls(starts.astype(np.int64), lengths)


NO_RUNS: Final = OffsetSet(_EMPTY, _EMPTY)


def _to_json_runs(values: Int64Array) -> dict[str, object]:
    width = next(w for w in _WIDTHS_BYTES if int(values.max(initial=0)) < 1 << (8 * w))
    data = pa.compress(values.astype(f"<u{width}").tobytes(), codec="zstd", asbytes=True)
    return {"bytes": width, "zstd": base64.b64encode(data).decode()}


def _from_json_runs(packed: dict[str, object], count: int) -> Int64Array:
    width = packed["bytes"]
    if width not in _WIDTHS_BYTES or not isinstance(width, int):
        raise ValueError(f"{width} bytes per number")
    data = pa.decompress(
        base64.b64decode(str(packed["zstd"]), validate=True),
        decompressed_size=count * width,
        codec="zstd",
        asbytes=True,
    )
    return np.frombuffer(data, f"<u{width}", count=count).astype(np.int64)
