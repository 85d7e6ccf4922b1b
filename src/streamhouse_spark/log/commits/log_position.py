"""Positions of external readers: offsets, and the record that identifies the history they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import DifferentHistoryError, FormatVersionError, InvalidOptionError, quote
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.history_epochs import HistoryPoint, HistoryRelation
from streamhouse_spark.log.commits.state import TableState

VERSION = 1


@dataclass(frozen=True, eq=False)
class LogPosition(Mapping[int, int]):
    """Bucket → the next offset to read.

    It names the last record with rows at the time it was taken, so that a restored table, which has other rows at these
    offsets, is detected. A plain mapping of the same offsets has no such check.
    """

    table_uuid: str
    offsets: Mapping[int, int]
    history: HistoryPoint | None = None
    """None if the table had no rows, or an older version of this package wrote the position."""

    @classmethod
    def of(cls, state: TableState, offsets: Mapping[int, int]) -> LogPosition:
        """Return the position at these offsets of the state's history."""
        return cls(state.table_uuid, dict(offsets), state.anchors.rows)

    def __getitem__(self, bucket: int) -> int:
        return self.offsets[bucket]

    def __iter__(self) -> Iterator[int]:
        return iter(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets)

    def moved_to(self, state: TableState) -> LogPosition:
        """Return the position in a table of another history: the same offsets, limited to the start and end
        of the log.
        """
        offsets = {b: max(log.start, min(self.offsets.get(b, log.start), log.end)) for b, log in state.buckets.items()}
        return LogPosition.of(state, offsets)

    def to_json(self) -> dict[str, Any]:
        """Return the position as JSON, to be stored next to the results of the rows."""
        offsets = {str(bucket): offset for bucket, offset in sorted(self.offsets.items())}
        history = None if self.history is None else list(self.history)
        return {"version": VERSION, "table": self.table_uuid, "offsets": offsets, "history": history}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LogPosition:
        """Decode a position. Raises `FormatVersionError` for a newer format, `InvalidOptionError` for any
        other value.
        """
        try:
            if (version := int(data["version"])) > VERSION:
                raise FormatVersionError(
                    f"a position has version {version}, expected {VERSION} at most; upgrade streamhouse-spark"
                )
            history = data["history"]
            mark = None if history is None else HistoryPoint.from_json(history)
            return cls(str(data["table"]), {int(b): int(offset) for b, offset in data["offsets"].items()}, mark)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidOptionError(
                f"a position is {quote(data)}, expected the result of LogPosition.to_json "
                f"({type(error).__name__}: {error})"
            ) from error


def require_position(log: CommitLog, position: object, holder: str) -> None:
    """Raise `DifferentHistoryError` unless the offsets belong to this table's history, if they name one.

    No request is sent for recent records.
    """
    if not isinstance(position, LogPosition):
        return
    state = log.state
    if position.table_uuid not in (state.table_uuid, *state.former_uuids):
        where = (
            f"is of table {position.table_uuid}, and {state.name} is {state.table_uuid}: the name meant another table"
        )
    elif position.history is not None and log.relation(position.history) is HistoryRelation.OTHER:
        where = (
            f"is at record {position.history.number} of attempt {position.history.attempt}, which the log of "
            f"{state.name} does not have: the table was restored from a backup, or is a copy, and has other "
            "rows at these offsets"
        )
    else:
        return
    raise DifferentHistoryError(
        f"{holder} {where}. Nothing was written. Read the table from 'earliest'; or, to continue at these offsets, "
        "limited to the log's end, pass position.moved_to(table.refresh())"
    )
