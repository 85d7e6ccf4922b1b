"""Log positions of external readers: named consumers, which delay trimming, and positions that readers store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import CONSUMER_EPOCHS, is_unicode
from streamhouse_spark.errors import (
    ConsumerFencedError,
    DifferentHistoryError,
    FormatVersionError,
    InvalidOptionError,
    quote,
)
from streamhouse_spark.log.actions import Action, CommitConsumerOffset
from streamhouse_spark.log.archive.pages import first_change_offsets
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.epochs import claim_epoch, stored_epoch
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
        """Return the position in another history, or after trimming: these offsets, limited to the retained rows."""
        first, ends = first_retained_offsets(state), state.ends
        return LogPosition.of(state, {b: max(at, min(self.offsets.get(b, at), ends[b])) for b, at in first.items()})

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


def first_retained_offsets(state: TableState) -> dict[int, int]:
    """Return bucket → the first offset that a reader of the log can start at."""
    return {bucket: max(at, state.first_offset(bucket)) for bucket, at in first_change_offsets(state).items()}


@dataclass(frozen=True, slots=True)
class HeldConsumer:
    """A named consumer that a follower holds. A later follower of the name fences it, see `claim_epoch`."""

    consumer_id: str
    epoch: int

    @classmethod
    def hold(
        cls, log: CommitLog, consumer_id: str, position: LogPosition | None, start: Callable[[TableState], LogPosition]
    ) -> tuple[HeldConsumer, LogPosition]:
        """Hold a consumer and return its position. **Commit point:** the record of `claim_epoch`.

        The position is ``position`` if given, else the stored one, else ``start`` of the latest state.
        """

        def plan(state: TableState, _time_ms: int) -> tuple[Action]:
            stored = consumer_position(state, consumer_id) if position is None else position
            at = start(state) if stored is None else stored
            _check_consumer(state, consumer_id, at)
            return (CommitConsumerOffset(consumer_id, dict(at), at.history),)

        epoch, state = claim_epoch(log, CONSUMER_EPOCHS + consumer_id, plan, f"consumer {consumer_id!r}")
        held = consumer_position(state, consumer_id)
        assert held is not None
        return cls(consumer_id, epoch), held

    def move(self, log: CommitLog, position: LogPosition, stored: LogPosition) -> int:
        """Commit the position after the ``stored`` one, and return the commit's number. **Commit point:** one record.

        Raises `ConsumerFencedError` as `require_held`; then nothing was written.
        """

        def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
            self.require_held(state, stored, position)
            return (CommitConsumerOffset(self.consumer_id, dict(position), position.history),)

        return log.commit(plan, is_shared=True).state.version

    def require_held(self, state: TableState, *positions: LogPosition) -> None:
        """Raise `ConsumerFencedError` unless this follower holds the consumer, at one of the positions."""
        if stored_epoch(state, CONSUMER_EPOCHS + self.consumer_id) != self.epoch:
            reason = "a newer follower has this name"
        elif (stored := state.consumers.get(self.consumer_id)) is None:
            reason = "it was removed"
        elif stored.offsets not in [position.offsets for position in positions]:
            reason = f"it was moved to {dict(stored.offsets)}"
        else:
            return
        raise ConsumerFencedError(
            f"consumer {self.consumer_id!r} of {state.name}: {reason}, and rows that were not committed are read again "
            "from the stored position; end this follower, and give followers that run at the same time different names"
        )


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
