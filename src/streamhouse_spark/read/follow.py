"""Followers: tails with a named consumer, whose position is committed when the loop requests the next batch.

At its start a follower fences earlier followers of the consumer. So a consumer has one live follower, and the next
follower reads rows after the committed position again: each row is processed at least once.

For exactly once, the position is stored with the results. If the results go to a table, a transaction stores both. It
also contains the version of the previous transaction, so that a batch conflicts if another process has written some of
its rows.
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
from streamhouse_spark.read.tail import CommitWaiter, LogCursor, Tail, start_offsets
from streamhouse_spark.table_handle import TableHandle

BATCH_BYTES: Final = 8 << 20
"""Bytes of a batch of many small commits. A batch of one segment may be larger."""
SKIPPED_COMMIT_MS: Final = 60_000
"""Time after which a position is committed after rows without a match only, so that they can be trimmed."""


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """The options of a follower; see `Table.follow`."""

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
    """Open a follower; see `Table.follow`. **Commit point:** see `hold_consumer`."""
    waiting: Any = {"poll_ms": options.poll_ms, "stop": options.stop, "until_ms": options.until_ms}
    wait = CommitWaiter(table, **waiting, available_now=options.available_now)
    return Follower(*hold_consumer(table, name, start, options), wait)


def hold_consumer(
    table: TableHandle, name: str, start: Any, options: FollowOptions
) -> tuple[LogCursor, FollowedConsumer]:
    """Take over the consumer ``name``, and return a cursor at its position. **Commit point:** the record of the epoch.

    All options and the position are validated before.
    """
    state = table.refresh()
    who = f"consumer {name!r}"
    sink = Sink.of(options.sink, f"{name}/{table.uuid}") if options.sink is not None else None
    if sink is not None and sink.stored is not None:
        if isinstance(start, Mapping):
            raise InvalidOptionError(
                f"{who} of {state.name} has a start position, but its sink {sink.table.name} stores a position; leave "
                f"start out, or first run forget_transactions({sink.app_id!r}) on {sink.table.name}"
            )
        start = sink.position_in(consumer_position(state, name))
    stored = start if isinstance(start, Mapping) else consumer_position(state, name)
    begin = _resolve_start(table, state, start if stored is None else stored, who)
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
            advice=f"{_restart_remedy(name)}, or with skip_change_commits=True to ignore deletions",
            fails_on_deletes=not options.skip_change_commits,
        )

    cursor(begin)
    consumer, held = HeldConsumer.hold(
        table.log, name, explicit, lambda latest: _resolve_start(table, latest, start, who)
    )
    return cursor(held), FollowedConsumer(table, consumer, held, sink)


def _resolve_start(table: TableHandle, state: TableState, start: Any, who: str) -> LogPosition:
    """Return a start as a position with the offsets of all buckets. Raises the errors of `start_offsets`."""
    require_position(table.log, start, f"the start of {who} of {state.name}")
    history = start.history if isinstance(start, LogPosition) else state.anchors.rows
    return LogPosition(state.table_uuid, start_offsets(state, start, table.storage), history)


def _require_retained(state: TableState, position: LogPosition, name: str) -> None:
    for bucket, first in first_retained_offsets(state).items():
        if position[bucket] < first:
            raise OffsetsTrimmedError(
                f"consumer {name!r} of {state.name} is at offset {position[bucket]} of bucket {bucket}, but the log "
                f"starts at {first}: the rows between were trimmed, or the table was truncated. Tiered rows are still "
                f"in the table; {_restart_remedy(name)}"
            )


def _restart_remedy(name: str) -> str:
    return (
        f"to continue with the rows that are left, follow with start=table.consumer_position({name!r})"
        ".moved_to(table.refresh()), or with start={} to read all of them"
    )


class FollowedConsumer:
    """The consumer of one follower, and its committed position. Thread-safe, because a cancelled call may still run."""

    def __init__(self, table: TableHandle, consumer: HeldConsumer, stored: LogPosition, sink: Sink | None) -> None:
        self._table = table
        self._consumer = consumer
        self._stored = stored
        self._stored_in = 0
        """The commit that stored the position. Older states have another position."""
        self._stored_ms = table.world.clock.boot_ms()
        self._sink = sink
        self._lock = new_lock()
        self._written: int | None = None
        """Version of the transaction that the loop body requested, which is stored when the body has finished."""

    def commit(self, position: LogPosition) -> None:
        """Commit a position before which all rows are processed. **Commit point:** one record, if it has changed."""
        with self._lock:
            if self._sink is not None and self._written is not None:
                self._sink, self._written = replace(self._sink, stored=self._written), None
            if position.offsets != self._stored.offsets:
                self._stored_in = self._consumer.move(self._table.log, position, self._stored)
                self._stored, self._stored_ms = position, self._table.world.clock.boot_ms()

    def transaction(self, position: LogPosition) -> Transaction:
        """Return the transaction for the rows before a position. Raises `InvalidOptionError` without a sink."""
        if self._sink is None:
            raise InvalidOptionError(
                f"consumer {self._consumer.consumer_id!r} has no sink; pass the table to write to with "
                "follow(…, sink=table)"
            )
        transaction = self._sink.transaction(position)
        self._written = transaction.version
        return transaction

    def require_processable(self, state: TableState, position: LogPosition) -> None:
        """Raise `ConsumerFencedError` or `OffsetsTrimmedError` if this follower must not process rows of a state."""
        with self._lock:
            if state.version >= self._stored_in:
                self._consumer.require_held(state, self._stored)
            _require_retained(state, position, self._consumer.consumer_id)

    def commit_if_due(self, position: LogPosition) -> None:
        """Commit the position after rows without a match, if the last commit is older than `SKIPPED_COMMIT_MS`."""
        if self._table.world.clock.boot_ms() - self._stored_ms >= SKIPPED_COMMIT_MS:
            self.commit(position)


class Follower(Tail):
    """Iterator over the batches of `Table.follow`. Not thread-safe, except for `close`.

    An error ends it. Call `Table.follow` again to continue.
    """

    def __init__(self, cursor: LogCursor, consumer: FollowedConsumer, wait: CommitWaiter) -> None:
        super().__init__(cursor, wait)
        self._consumer = consumer
        self._is_left = False

    def commit(self) -> None:
        """Commit the position after the last batch. Requesting the next batch does this too.

        Raises `ConsumerFencedError` if a newer follower has the consumer, and the errors of `Table.append`. Then the
        next follower reads the last batch again.
        """
        self._consumer.commit(self._position)

    @property
    def transaction(self) -> Transaction:
        """The transaction for writing the last batch to the ``sink``, which stores the position after it too.

        Raises `InvalidOptionError` without a ``sink``.
        """
        return self._consumer.transaction(self._position)

    def _end(self) -> None:
        """End the iteration without a commit, because the caller may not have processed the last batch."""
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
    """The table to which the batches of a follower are written, and the last transaction of the follower there."""

    table: TableHandle
    app_id: str
    stored: int | None
    position: LogPosition | None
    """The position in the stored transaction; None if it has expired."""

    @classmethod
    def of(cls, table: TableHandle, app_id: str) -> Sink:
        """Read the last transaction. Raises `InvalidOptionError` if ``table`` is not a table."""
        if not isinstance(table, TableHandle):
            raise InvalidOptionError(f"sink is {quote(table)}, expected a Table")
        state = table.refresh()
        entry = state.transactions.get(app_id)
        text = entry.batch.fingerprint if entry is not None and entry.batch is not None else None
        position = None if text is None else LogPosition.from_json(json.loads(text))
        return cls(table, app_id, find_stored_version(state.transactions, state.past_transactions, app_id), position)

    def position_in(self, committed: LogPosition | None) -> LogPosition:
        """Return the position after the stored rows. Raises `InvalidOptionError` if it has expired."""
        if self.position is not None:
            return self.position
        if committed is not None and _position_version(committed) == self.stored:
            return committed
        raise InvalidOptionError(
            f"{self.table.name} has rows of {self.app_id}, but the position after them has expired "
            "(table.transactions.ttl); determine the position from the rows, run "
            f"forget_transactions({self.app_id!r}) on {self.table.name}, and follow with start= this position"
        )

    def transaction(self, position: LogPosition) -> Transaction:
        """Return the transaction of the rows before a position."""
        batch = StreamBatch(json.dumps(position.to_json(), separators=(",", ":")))
        follows = -1 if self.stored is None else self.stored
        return Transaction(self.app_id, _position_version(position), batch=batch, follows=follows)


def _position_version(position: LogPosition) -> int:
    """Return a number that increases with the position."""
    return sum(position.values())
