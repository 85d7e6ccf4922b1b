"""Log positions of external readers: named consumers, which delay trimming, and positions that readers store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import is_unicode
from streamhouse_spark.errors import DifferentHistoryError, FormatVersionError, InvalidOptionError, quote
from streamhouse_spark.log.actions import Action, CommitConsumerOffset
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.history_index import HistoryPoint, HistoryRelation
from streamhouse_spark.log.state import TableState

VERSION = 1
CONSUMER_RENEW_MS = 3600 * 1000
"""Minimum interval between two records with the same position of a consumer."""


@dataclass(frozen=True, eq=False)
class LogPosition(Mapping[int, int]):
    """Bucket → the next offset to read, with the last record that had rows when the position was taken.

    The record shows whether the table was restored since, and then has other rows at these offsets. A plain mapping of
    offsets has no such check.
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
        """Return the position in a table of another history: these offsets, limited to the start and end of the log."""
        offsets = {b: max(log.start, min(self.offsets.get(b, log.start), log.end)) for b, log in state.buckets.items()}
        return LogPosition.of(state, offsets)

    def to_json(self) -> dict[str, Any]:
        """Return the position as JSON, for a reader to store with its results."""
        offsets = {str(bucket): offset for bucket, offset in sorted(self.offsets.items())}
        history = None if self.history is None else list(self.history)
        return {"version": VERSION, "table": self.table_uuid, "offsets": offsets, "history": history}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LogPosition:
        """Decode a position. Raises `FormatVersionError`, and `InvalidOptionError` for any other value."""
        try:
            if (version := int(data["version"])) > VERSION:
                raise FormatVersionError(
                    f"a position has version {version}, expected at most {VERSION}; upgrade streamhouse-spark"
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
    """Raise `DifferentHistoryError` for a `LogPosition` of another table, or of another history of this table.

    No request is sent for recent records.
    """
    if not isinstance(position, LogPosition):
        return
    state = log.state
    if position.table_uuid not in (state.table_uuid, *state.former_uuids):
        where = f"is of table {position.table_uuid}, but {state.name} is now {state.table_uuid}: the table was replaced"
    elif position.history is not None and log.relation(position.history) is HistoryRelation.OTHER:
        where = (
            f"is at record {position.history.number} of attempt {position.history.attempt}, which is missing from the "
            f"log of {state.name}: the table was restored from a backup, or is a copy, and has other rows at these "
            "offsets"
        )
    else:
        return
    raise DifferentHistoryError(
        f"{holder} {where}. Nothing was written. Read the table from 'earliest'; or, to continue at these offsets, "
        "limited to the log's end, pass position.moved_to(table.refresh())"
    )


def move_consumer(
    log: CommitLog,
    consumer_id: str,
    offsets: Mapping[int, int] | None,
    state_at_position: Callable[[TableState], TableState],
) -> None:
    """Move a consumer; see `Table.move_consumer`. **Commit point:** one record.

    ``state_at_position`` raises for a dropped table.
    """
    require_position(log, offsets, f"the position of consumer {consumer_id!r}")

    def plan(state: TableState, time_ms: int) -> Sequence[Action]:
        _check_consumer(state_at_position(state), consumer_id, offsets)
        consumer = state.consumers.get(consumer_id)
        if offsets is None:
            return (CommitConsumerOffset(consumer_id, None),) if consumer is not None else ()
        is_unchanged = consumer is not None and consumer.offsets == dict(offsets)
        if is_unchanged and consumer is not None and time_ms - consumer.time_ms < CONSUMER_RENEW_MS:
            return ()
        history = offsets.history if isinstance(offsets, LogPosition) else state.anchors.rows
        return (CommitConsumerOffset(consumer_id, dict(offsets), history),)

    log.commit(plan)


def consumer_position(state: TableState, consumer_id: str) -> LogPosition | None:
    """Return the position of a consumer; None for an unknown consumer."""
    consumer = state.consumers.get(consumer_id)
    return None if consumer is None else LogPosition(state.table_uuid, consumer.offsets, consumer.history)


def _check_consumer(state: TableState, consumer_id: object, offsets: Mapping[Any, object] | None) -> None:
    if not isinstance(consumer_id, str) or not consumer_id or not is_unicode(consumer_id):
        raise InvalidOptionError(f"consumer {consumer_id!r} of {state.name}: expected a non-empty text")
    if not isinstance(offsets, Mapping | None):
        raise InvalidOptionError(
            f"consumer {consumer_id!r} of {state.name}: offsets are {offsets!r}, expected a mapping bucket → offset",
        )
    for bucket, offset in (offsets or {}).items():
        end = state.ends.get(bucket)
        if end is None or type(offset) is not int or not 0 <= offset <= end:
            expected = f"0 to {end}" if end is not None else f"buckets 0 to {state.num_buckets - 1}"
            raise InvalidOptionError(
                f"consumer {consumer_id!r} of {state.name}: offset {offset!r} of bucket {bucket!r}, "
                f"expected {expected}",
            )
