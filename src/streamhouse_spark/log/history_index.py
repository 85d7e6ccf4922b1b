"""History points identify the history of a table in which a position was taken.

A warehouse that is copied, or restored from a backup, has the same table uuids and record numbers as before, but the
records after some number differ. A *position* (of a stream, a cache, a staged write, a lake snapshot) therefore names a
record by its number and its unique attempt id. Each record names the attempt of the record before it, so that a log is
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
"""Number of latest records that are all in the index. For each doubling of the age, half as many are."""


class HistoryPoint(NamedTuple):
    """A record of a history. It also identifies all records before it."""

    number: int
    attempt: str

    @classmethod
    def from_json(cls, value: Any) -> HistoryPoint:
        """Decode a point from ``[number, attempt]``. Raises `TypeError` or `ValueError` for any other value."""
        number, attempt = value
        if type(number) is not int or not isinstance(attempt, str):
            raise TypeError(f"expected [number, attempt], found {value!r}")
        return cls(number, attempt)


class HistoryRelation(enum.Enum):
    """The relation of a position to a history."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"
    """The record is between indexed records, or before all of them."""


@dataclass(frozen=True, slots=True)
class HistoryIndex:
    """The latest 16 or so records of a history, and 8 records per doubling of the age.

    A record that is `SPACING` times 2 ** n records old is retained if 2 ** (n + 1) divides its number, so that the
    choice depends only on the numbers. The index of a checkpoint of an older format is empty.
    """

    marks: tuple[HistoryPoint, ...] = ()
    """Points by ascending number. The last point is the last record of the log."""
    rows: HistoryPoint | None = None
    """The last record that added or deleted rows, or truncated the table. Positions of readers name this record."""

    @property
    def newest(self) -> HistoryPoint | None:
        return self.marks[-1] if self.marks else None

    def with_point(self, mark: HistoryPoint, *, has_rows: bool) -> HistoryIndex:
        marks = (*self.marks, mark)
        if mark.number % SPACING == 0:
            marks = tuple(m for m in marks if _is_retained(m.number, mark.number))
        return HistoryIndex(marks, mark if has_rows else self.rows)

    def require_followed_by(self, after: str | None, table: str, table_uuid: str) -> None:
        """Raise `CorruptDataError` unless ``after``, the predecessor that a record names, is the last attempt."""
        newest = self.newest
        if after is not None and newest is not None and after != newest.attempt:
            raise CorruptDataError(
                f"record {newest.number + 1} of {table} follows attempt {after}, but record {newest.number} is attempt "
                f"{newest.attempt}: the log mixes two histories. {mixed_history_remedy(table_uuid, newest.number + 1)}"
            )

    def relation(self, mark: HistoryPoint) -> HistoryRelation:
        """Return the relation of a position to this history; `UNKNOWN` if the index does not have its record."""
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
        """Decode an index. A checkpoint of an older format has none."""
        if data is None:
            return EMPTY_INDEX
        rows = data.get("rows")
        marks = tuple(HistoryPoint.from_json(mark) for mark in data["marks"])
        return cls(marks, None if rows is None else HistoryPoint.from_json(rows))


EMPTY_INDEX: Final = HistoryIndex()


@dataclass(frozen=True, slots=True)
class ConsumerPosition:
    """The position of a named consumer, and the time of its last report."""

    offsets: Mapping[int, int]
    time_ms: int
    history: HistoryPoint | None = None
    """See `streamhouse_spark.log.consumers.LogPosition`."""


def mixed_history_remedy(table_uuid: str, number: int) -> str:
    """Return the remedy for a log that has another history, or a gap, at record ``number``."""
    return (
        "If the table was restored from a backup while a process continued to write, stop all writers; then restore "
        f"the whole folder {table_prefix(table_uuid)} from one backup, or delete its commits and checkpoints with "
        f"number {number} and higher, whose rows are lost"
    )


def _is_retained(number: int, newest: int) -> bool:
    level = ((newest - number) // SPACING).bit_length()
    return number % (1 << level) == 0
