"""History points: identify the history that a position was taken in.

A warehouse that is copied, or restored from a backup, has the same table uuid and record numbers as before, but other
records from some number on. A *position* (of a stream, a cache, a staged write, a lake snapshot) therefore names a
record by number and attempt id, which no two records share. Records name the attempt before theirs, so that a log is
one chain.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import table_prefix
from streamhouse_spark.errors import CorruptDataError

SPACING: Final = 16
"""Number of latest records that are all kept; per doubling of the age half as many are kept."""


class HistoryPoint(NamedTuple):
    """One record of one history. It identifies all records before it, too."""

    number: int
    attempt: str

    @classmethod
    def from_json(cls, value: Any) -> HistoryPoint:
        """Decode a point from a list of its two parts. Raises `TypeError` or `ValueError` for any other value."""
        number, attempt = value
        if type(number) is not int or not isinstance(attempt, str):
            raise TypeError(f"expected [number, attempt], found {value!r}")
        return cls(number, attempt)


class HistoryRelation(enum.Enum):
    """The relation of a position to a history."""

    SAME = "same"
    """Its record is part of this history."""
    OTHER = "other"
    """Its record is part of another history."""
    UNKNOWN = "unknown"
    """The record is not in the index: it lies between indexed records, or before all of them."""


@dataclass(frozen=True, slots=True)
class HistoryIndex:
    """The latest records of a history, and ever fewer older ones: about 16, and 8 per doubling of the age.

    A record that is `SPACING` times 2 ** n records old is kept if 2 ** (n + 1) divides its number, so that the choice
    depends on the numbers only. Nothing is known before the oldest point: the table was opened at a checkpoint of an
    older format.
    """

    marks: tuple[HistoryPoint, ...] = ()
    """Ascending by number, the last record of the log at the end."""
    rows: HistoryPoint | None = None
    """The last record that added or deleted rows, or truncated the table. Positions of readers name it."""

    @property
    def newest(self) -> HistoryPoint | None:
        return self.marks[-1] if self.marks else None

    def with_point(self, mark: HistoryPoint, *, has_rows: bool) -> HistoryIndex:
        marks = (*self.marks, mark)
        if mark.number % SPACING == 0:
            marks = tuple(m for m in marks if _is_kept(m.number, mark.number))
        return HistoryIndex(marks, mark if has_rows else self.rows)

    def require_followed_by(self, after: str | None, table: str, table_uuid: str) -> None:
        """Raise `CorruptDataError` for a record that names another attempt than the last one as its predecessor."""
        newest = self.newest
        if after is not None and newest is not None and after != newest.attempt:
            raise CorruptDataError(
                f"record {newest.number + 1} of {table} follows attempt {after}, and record {newest.number} is attempt "
                f"{newest.attempt}: the log mixes two histories. {out_of_mixed(table_uuid, newest.number + 1)}"
            )

    def relation(self, mark: HistoryPoint) -> HistoryRelation:
        """Return the relation of a position to this history, as far as the index covers it."""
        point = next((candidate for candidate in reversed(self.marks) if candidate.number <= mark.number), None)
        if self.rows is not None and self.rows.number == mark.number:
            point = self.rows
        if point is None or point.number != mark.number:
            return HistoryRelation.UNKNOWN
        return HistoryRelation.SAME if point == mark else HistoryRelation.OTHER

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"marks": [list(mark) for mark in self.marks]}
        if self.rows is not None:
            out["rows"] = list(self.rows)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> HistoryIndex:
        """Decode an index. None stands for a checkpoint of an older format, without an index."""
        if data is None:
            return NO_ANCHORS
        rows = data.get("rows")
        marks = tuple(HistoryPoint.from_json(mark) for mark in data["marks"])
        return cls(marks, None if rows is None else HistoryPoint.from_json(rows))


NO_ANCHORS: Final = HistoryIndex()


@dataclass(frozen=True, slots=True)
class ConsumerPosition:
    """The position of a named consumer, and the time of its last report."""

    offsets: Mapping[int, int]
    time_ms: int
    history: HistoryPoint | None = None
    """See `streamhouse_spark.log.consumers.LogPosition`."""


def out_of_mixed(table_uuid: str, number: int) -> str:
    """Return the remedies for a log that has another history, or a gap, from record ``number`` on."""
    return (
        "If the table was restored from a backup while a process went on writing, stop all writers; then put the "
        f"folder {table_prefix(table_uuid)} back from one backup as a whole, or delete in it all commits and "
        f"checkpoints from number {number} on, whose rows are lost"
    )


def _is_kept(number: int, newest: int) -> bool:
    level = ((newest - number) // SPACING).bit_length()
    return number % (1 << level) == 0
