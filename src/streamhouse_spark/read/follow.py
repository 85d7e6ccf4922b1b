"""Followers: named consumers in a plain loop, whose position is committed when the loop asks for the next batch.

A follower holds its name from the start, and a later follower of the name fences it. So there is one live follower of a
name, and what it has not committed is read again by the next one: at least once.

For exactly once the position is stored with the results. A transaction of a table does that: it carries the position
after its rows, and names the version that it follows. A batch that another process has written already, cut anywhere
else, conflicts instead of being written twice.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.types import StreamBatch, Transaction
from streamhouse_spark.errors import InvalidOptionError, OffsetsTrimmedError, quote
from streamhouse_spark.log.consumers import (
    HeldConsumer,
    LogPosition,
    consumer_position,
    first_retained_offsets,
    require_position,
)
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import find_stored_version
from streamhouse_spark.read.tail import LogCursor, Tail, Wait, start_offsets
from streamhouse_spark.table_handle import TableHandle

BATCH_BYTES: Final = 8 << 20
"""Bytes of a batch of many small commits. Larger batches are those of one segment."""
SKIPPED_COMMIT_MS: Final = 60_000
"""Time after which a position is committed that only rows without a match lie before, so that these can be trimmed."""


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """The options of a follower, see `Table.follow`."""

    columns: Sequence[str] | None = None
    filter: Any = None
    include_metadata: bool = False
    skip_change_commits: bool = False
    sink: TableHandle | None = None
    poll_ms: float | None = None
    stop: threading.Event | None = None
    until_ms: int | None = None
    available_now: bool = False


def open_follower(table: TableHandle, name: str, start: Any, options: FollowOptions) -> Follower:
    """Follow the log as `Table.follow` does. **Commit point:** that of `hold_consumer`."""
    waiting: Any = {"poll_ms": options.poll_ms, "stop": options.stop, "until_ms": options.until_ms}
    wait = Wait(table, **waiting, available_now=options.available_now)
    return Follower(*hold_consumer(table, name, start, options), wait)


def hold_consumer(
    table: TableHandle, name: str, start: Any, options: FollowOptions
) -> tuple[LogCursor, FollowedConsumer]:
    """Hold the consumer ``name``, and return a cursor at its position. **Commit point:** that of `claim_epoch`.

    All options and the position are validated before.
    """
    state = table.refresh()
    who = f"consumer {name!r}"
    sink = Sink.of(options.sink, f"{name}/{table.uuid}") if options.sink is not None else None
    if sink is not None and sink.stored is not None:
        if isinstance(start, Mapping):
            raise InvalidOptionError(
                f"{who} of {state.name} has a start position, and {sink.table.name} stores another one; leave start out"
            )
        start = sink.position_in(consumer_position(state, name))
    stored = start if isinstance(start, Mapping) else consumer_position(state, name)
    begin = _resolve(table, state, start if stored is None else stored, who)
    _require_retained(state, begin, name)
    explicit = begin if isinstance(start, Mapping) else None

    def cursor(position: Any) -> LogCursor:
        return LogCursor(
            table,
            position,
            columns=options.columns,
            filter=options.filter,
            include_metadata=options.include_metadata,
            who=who,
            advice=f"{_way_out(name)}, or with skip_change_commits=True to ignore deletions",
            fails_on_deletes=not options.skip_change_commits,
        )

    cursor(begin)
    consumer, held = HeldConsumer.hold(table.log, name, explicit, lambda latest: _resolve(table, latest, start, who))
    return cursor(held), FollowedConsumer(table, consumer, held, sink)


def _resolve(table: TableHandle, state: TableState, start: Any, who: str) -> LogPosition:
    """Return a start as a position with the offsets of all buckets. Raises as `start_offsets`."""
    require_position(table.log, start, f"the start of {who} of {state.name}")
    history = start.history if isinstance(start, LogPosition) else state.anchors.rows
    return LogPosition(state.table_uuid, start_offsets(state, start, table.storage), history)


def _require_retained(state: TableState, position: LogPosition, name: str) -> None:
    for bucket, first in first_retained_offsets(state).items():
        if position[bucket] < first:
            raise OffsetsTrimmedError(
                f"consumer {name!r} of {state.name} is at offset {position[bucket]} of bucket {bucket}, and the log "
                f"starts at {first}: rows between were trimmed, or the table was truncated. The table itself has rows "
                f"that were tiered; {_way_out(name)}"
            )


def _way_out(name: str) -> str:
    return (
        f"to continue with the rows that are left, follow with start=table.consumer_position({name!r})"
        ".moved_to(table.refresh()), or with start={} to read all of them"
    )


class FollowedConsumer:
    """The consumer of one follower, and what it has committed. Thread-safe: a cancelled call may still be made."""

    def __init__(self, table: TableHandle, consumer: HeldConsumer, stored: LogPosition, sink: Sink | None) -> None:
        self._table = table
        self._consumer = consumer
        self._stored = stored
        self._stored_in = 0
        """The commit of the stored position: older states have another one."""
        self._stored_ms = table.world.clock.boot_ms()
        self._sink = sink
        self._lock = new_lock()
        self._written: int | None = None
        """The version of the transaction that the loop body asked for, which is stored when the body has finished."""

    def commit(self, position: LogPosition) -> None:
        """Commit a position: all rows before it are processed. **Commit point:** one record, unless it is stored."""
        with self._lock:
            if self._sink is not None and self._written is not None:
                self._sink, self._written = replace(self._sink, stored=self._written), None
            if position.offsets != self._stored.offsets:
                self._stored_in = self._consumer.move(self._table.log, position, self._stored)
                self._stored, self._stored_ms = position, self._table.world.clock.boot_ms()

    def transaction(self, position: LogPosition) -> Transaction:
        """Return the transaction of the sink for the rows before a position. Raises `InvalidOptionError`."""
        if self._sink is None:
            raise InvalidOptionError(
                f"consumer {self._consumer.consumer_id!r} has no sink; pass the table that is written as "
                "follow(…, sink=table)"
            )
        transaction = self._sink.transaction(position)
        self._written = transaction.version
        return transaction

    def require_processable(self, state: TableState, position: LogPosition) -> None:
        """Raise `ConsumerFencedError` or `OffsetsTrimmedError` unless this follower may process the rows of a state."""
        with self._lock:
            if state.version >= self._stored_in:
                self._consumer.require_held(state, self._stored)
            _require_retained(state, position, self._consumer.consumer_id)

    def commit_if_due(self, position: LogPosition) -> None:
        """Commit the position after rows without a match, if nothing was committed for `SKIPPED_COMMIT_MS`."""
        if self._table.world.clock.boot_ms() - self._stored_ms >= SKIPPED_COMMIT_MS:
            self.commit(position)


class Follower(Tail):
    """Iterator of `Table.follow`. For one thread only, except `close`. An error ends it; follow again to continue."""

    def __init__(self, cursor: LogCursor, consumer: FollowedConsumer, wait: Wait) -> None:
        super().__init__(cursor, wait)
        self._consumer = consumer
        self._is_left = False

    def commit(self) -> None:
        """Commit the position after the last batch, as requesting the next batch does. **Commit point:** one record.

        Raises `ConsumerFencedError` if another follower has the name, and as `Table.append`: rows after the stored
        position are read again by the next follower.
        """
        self._consumer.commit(self._position)

    @property
    def transaction(self) -> Transaction:
        """The transaction with which the ``sink`` stores the last batch and the position after it, exactly once.

        Raises `InvalidOptionError` without a ``sink``.
        """
        return self._consumer.transaction(self._position)

    def _end(self) -> None:
        """End the iteration without a commit: the caller may not have finished with the last batch."""
        super()._end()
        self._is_left = True

    def _next(self) -> pa.RecordBatch:
        if self._is_left:
            raise StopIteration
        self.commit()
        try:
            return super()._next()
        except StopIteration:
            self.commit()
            raise

    def _read_batch(self, state: TableState) -> pa.RecordBatch | None:
        self._consumer.require_processable(state, self._position)
        batch = self._cursor.take(state, BATCH_BYTES)
        if batch is None:
            self._consumer.commit_if_due(self._cursor.position)
        return batch


@dataclass(frozen=True, slots=True)
class Sink:
    """The table that a follower's batches are written to, and the last version of its transactions there."""

    table: TableHandle
    app_id: str
    stored: int | None
    position: LogPosition | None
    """The position in the stored transaction; None if it has expired."""

    @classmethod
    def of(cls, table: TableHandle, app_id: str) -> Sink:
        """Read the last transaction. Raises `InvalidOptionError` for a value that is no table."""
        if not isinstance(table, TableHandle):
            raise InvalidOptionError(f"sink is {quote(table)}, expected a Table")
        state = table.refresh()
        entry = state.transactions.get(app_id)
        text = entry.batch.fingerprint if entry is not None and entry.batch is not None else None
        position = None if text is None else LogPosition.from_json(json.loads(text))
        return cls(table, app_id, find_stored_version(state.transactions, state.past_transactions, app_id), position)

    def position_in(self, committed: LogPosition | None) -> LogPosition:
        """Return the position after the stored rows. Raises `InvalidOptionError` if it is not known any more."""
        if self.position is not None:
            return self.position
        if committed is not None and _version(committed) == self.stored:
            return committed
        raise InvalidOptionError(
            f"{self.table.name} has rows of {self.app_id}, but the position after them has expired "
            "(table.transactions.ttl); find it out from the rows, then run "
            f"forget_transactions({self.app_id!r}) on {self.table.name} and follow with start= that position"
        )

    def transaction(self, position: LogPosition) -> Transaction:
        """Return the transaction of the rows before a position."""
        batch = StreamBatch(json.dumps(position.to_json(), separators=(",", ":")))
        follows = -1 if self.stored is None else self.stored
        return Transaction(self.app_id, _version(position), batch=batch, follows=follows)


def _version(position: LogPosition) -> int:
    """Return a number that grows with the position."""
    return sum(position.values())
