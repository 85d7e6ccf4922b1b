"""Tails and followers for asyncio: no thread waits, and rows are read only when they are requested.

A `AsyncLogPoller` polls a table while tails of an event loop wait, and wakes them with the new state. Tails at the same
position with the same columns share one read. A batch is read when it is requested, so a slow loop body holds at most
one batch.

Each read starts from an immutable cursor, and the tail advances only when its caller gets the batch. So a cancelled
request for a batch loses no row: the next request reads it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Final, Self

import pyarrow as pa

from streamhouse_spark.core.async_calls import run_blocking, sleep_ms
from streamhouse_spark.core.types import Transaction
from streamhouse_spark.core.warehouse_layout import table_prefix
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError, copy_error
from streamhouse_spark.log.consumers import LogPosition
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.follow import BATCH_BYTES, FollowedConsumer
from streamhouse_spark.read.log_poller import poller_of
from streamhouse_spark.read.tail import LogCursor
from streamhouse_spark.table_handle import TableHandle

POLL_MS: Final = (5.0, 25.0)
"""Bounds of the poll interval on a local disk. They are larger than those of a tail in a thread, because a poll costs
more here, and a service may follow many idle tables.
"""
ReadAhead = tuple[pa.RecordBatch | None, LogCursor]
"""A batch, or None at the end of a state, and the cursor after it."""


class AsyncLogPoller:
    """Polls one table while tails of one event loop wait."""

    def __init__(self, table: TableHandle) -> None:
        self._table = table
        self._poller = poller_of(table)
        is_local = table.storage.local_path(table_prefix(table.uuid)) is not None
        self._first = None if is_local else table.refresh_at_most
        self._latest: TableState | None = None
        self._interval_ms = POLL_MS[0]
        self._waiting: set[asyncio.Future[TableState | None]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._reads: dict[Hashable, asyncio.Future[ReadAhead]] = {}

    async def newer_than(self, state: TableState, waiter: asyncio.Future[TableState | None]) -> TableState | None:
        """Return a later state, or the result that another task sets in ``waiter``. Raises the errors of the poll."""
        if self._latest is not None and self._latest.version > state.version:
            return self._latest
        self._latest = state
        self._waiting.add(waiter)
        if self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._poll())
        try:
            return await waiter
        finally:
            self._waiting.discard(waiter)

    def note(self, state: TableState) -> None:
        """Wake the tails with a newer state, for example one that this process wrote before the next poll reads it."""
        if self._latest is not None and state.version > self._latest.version:
            self._latest, self._interval_ms = state, POLL_MS[0]
            self._wake(state)

    async def read(self, cursor: LogCursor, state: TableState, shared_by: Hashable | None) -> ReadAhead:
        """Read the next batch, once for all tails with the same ``shared_by`` at the same position."""
        if shared_by is None:
            return await run_blocking(_read_ahead, cursor, state)
        key = (shared_by, cursor.place, state.version)
        read = self._reads.get(key)
        if read is None:
            read = self._reads[key] = asyncio.ensure_future(run_blocking(_read_ahead, cursor, state))
            read.add_done_callback(lambda done: self._end_read(key, done))
        try:
            return await asyncio.shield(read)
        except StreamhouseError as error:
            raise copy_error(error) from error

    def _end_read(self, key: Hashable, read: asyncio.Future[ReadAhead]) -> None:
        self._reads.pop(key, None)
        if not read.cancelled():
            read.exception()  # all tails that share the read may have been cancelled

    async def _poll(self) -> None:
        failure: Exception | None = None
        try:
            while self._waiting and self._latest is not None:
                await sleep_ms(self._table.world.clock, max(self._poller.wait_ms(), self._interval_ms))
                latest = await run_blocking(self._poller.poll, self._latest, self._table.refresh, self._first)
                self._interval_ms = min(1.1 * self._interval_ms, POLL_MS[1])
                self.note(latest)
        except Exception as error:  # noqa: BLE001 - the tails raise it
            failure = error
        finally:
            self._polling = None
            self._wake(self._latest, failure)  # tails that still wait start to poll again

    def _wake(self, state: TableState | None, failure: Exception | None = None) -> None:
        for waiter in list(self._waiting):
            if waiter.done():
                continue
            if failure is not None:
                waiter.set_exception(copy_error(failure))
            else:
                waiter.set_result(state)


def _read_ahead(cursor: LogCursor, state: TableState) -> ReadAhead:
    ahead = cursor.fork()
    return ahead.take(state, BATCH_BYTES), ahead


class AsyncTail(AsyncIterator[pa.RecordBatch]):
    """Iterator over the batches of `AsyncTable.tail`. For one task at a time, except for `aclose`.

    An error ends it, but a cancellation does not. The start is resolved at the first request for a batch, or by ``async
    with``.
    """

    def __init__(
        self,
        watch: Callable[[], AsyncLogPoller],
        open_cursor: Callable[[], LogCursor],
        shared_by: Hashable | None,
        *,
        available_now: bool,
    ) -> None:
        self._watch = watch
        self._open_cursor = open_cursor
        self._shared_by = shared_by
        self._available_now = available_now
        self._opening: asyncio.Future[LogCursor] | None = None
        self._cursor: LogCursor | None = None
        self._state: TableState | None = None
        self._waiter: asyncio.Future[TableState | None] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def __anext__(self) -> pa.RecordBatch:
        try:
            return await self._next()
        except StreamhouseError:
            self._is_closed = True
            raise

    @property
    def position(self) -> LogPosition:
        """The position after the last batch, and after rows without a match that followed it; initially the start.

        Raises `InvalidOptionError` before the start is resolved.
        """
        return self._opened.position

    async def aclose(self) -> None:
        """End the iteration, also while it waits in another task."""
        self._is_closed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _next(self) -> pa.RecordBatch:
        if self._is_closed:
            raise StopAsyncIteration
        state = self._state or (await self._open()).initial
        while not self._is_closed:
            if state is not self._state or not self._opened.is_at_end(state):
                batch, self._cursor = await self._read(self._opened, state)
                self._state = state
                if batch is not None:
                    return batch
            if self._available_now:
                break
            self._waiter = asyncio.get_running_loop().create_future()
            state = await self._watch().newer_than(state, self._waiter) or state
        raise StopAsyncIteration

    async def _read(self, cursor: LogCursor, state: TableState) -> ReadAhead:
        return await self._watch().read(cursor, state, self._shared_by)

    @property
    def _opened(self) -> LogCursor:
        if self._cursor is None:
            raise InvalidOptionError("the tail has not started; request a batch, or use it in an async with statement")
        return self._cursor

    async def _open(self) -> LogCursor:
        """Resolve the start. After a cancellation, the next call returns the result."""
        if self._cursor is None:
            if self._opening is None:
                self._opening = asyncio.ensure_future(run_blocking(self._open_cursor))
            try:
                self._cursor = await asyncio.shield(self._opening)
            except StreamhouseError:
                self._opening = None
                raise
        return self._cursor


class AsyncFollower(AsyncTail):
    """Iterator over the batches of `AsyncTable.follow`; see `Follower`.

    If the first request is cancelled, it may still fence another follower.
    """

    def __init__(
        self,
        watch: Callable[[], AsyncLogPoller],
        hold: Callable[[], tuple[LogCursor, FollowedConsumer]],
        *,
        available_now: bool,
    ) -> None:
        self._consumer: FollowedConsumer | None = None
        self._is_left = False

        def open_cursor() -> LogCursor:
            cursor, self._consumer = hold()
            return cursor

        super().__init__(watch, open_cursor, None, available_now=available_now)

    async def commit(self) -> None:
        """Commit the position after the last batch; see `Follower.commit`.

        If the call is cancelled, the position may have been committed.
        """
        if self._consumer is not None:
            await run_blocking(self._consumer.commit, self.position)

    @property
    def transaction(self) -> Transaction:
        """The transaction for the last batch; see `Follower.transaction`."""
        if self._consumer is None:
            raise InvalidOptionError("the follower has not started; request a batch first")
        return self._consumer.transaction(self.position)

    async def __aexit__(self, *_: object) -> None:
        """End the iteration without a commit, because the caller may not have processed the last batch."""
        self._is_left = True
        await self.aclose()

    async def __anext__(self) -> pa.RecordBatch:
        try:
            return await super().__anext__()
        except StreamhouseError:
            self._is_left = True
            raise

    async def _next(self) -> pa.RecordBatch:
        if self._is_left:
            raise StopAsyncIteration
        await self.commit()
        try:
            return await super()._next()
        except StopAsyncIteration:
            await self.commit()
            raise

    async def _read(self, cursor: LogCursor, state: TableState) -> ReadAhead:
        assert self._consumer is not None
        return await run_blocking(_read_held, self._consumer, cursor, state)


def _read_held(consumer: FollowedConsumer, cursor: LogCursor, state: TableState) -> ReadAhead:
    consumer.require_processable(state, cursor.position)
    batch, ahead = _read_ahead(cursor, state)
    if batch is None:
        consumer.commit_if_due(ahead.position)
    return batch, ahead
