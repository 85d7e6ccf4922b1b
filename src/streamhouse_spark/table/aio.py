"""`Table.aio`: the methods of a table for asyncio services, without a thread per call.

Calls run in a bounded pool of threads that all tables of the process share. Concurrent appends share few commits, and
concurrent lookups share few switches of threads. Tails wait without a thread (`streamhouse_spark.read.async_tail`).

**Cancellation.** A cancelled write is stored completely, or not at all if no thread has started it. To find out, write
with a ``transaction`` and repeat the write: a stored version is not written again. To let a write complete, await it
with ``asyncio.shield``.
"""

# ruff: noqa: A002 - users call it `filter`, as in pyarrow

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa

from streamhouse_spark.core.argument_validation import validates_arguments
from streamhouse_spark.core.async_calls import QueuedCall, SerialCallQueue, run_blocking
from streamhouse_spark.core.concurrency import reinit_after_fork
from streamhouse_spark.core.types import BucketOffsets, OffsetRange, Transaction
from streamhouse_spark.errors import WriterFullError
from streamhouse_spark.read.async_tail import AsyncFollower, AsyncLogPoller, AsyncTail
from streamhouse_spark.read.follow import FollowOptions, hold_consumer
from streamhouse_spark.read.tail import LogCursor
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.log_writer import LogTableWriter
from streamhouse_spark.write.producer.accumulator import BatchLimits
from streamhouse_spark.write.producer.writer import SenderThread, Writer, make_writer

_LIMITS: Final = BatchLimits(flush_ms=0, flush_bytes=8 << 20, in_flight_bytes_max=64 << 20)


class TableCalls(Protocol):
    """The blocking methods of `Table`."""

    @property
    def append(self) -> Callable[..., BucketOffsets]: ...
    @property
    def upsert(self) -> Callable[..., BucketOffsets]: ...
    @property
    def delete(self) -> Callable[..., BucketOffsets | int]: ...
    @property
    def to_arrow(self) -> Callable[..., pa.Table]: ...
    @property
    def lookup(self) -> Callable[..., pa.Table]: ...
    @property
    def lookup_one(self) -> Callable[..., dict[str, Any] | None]: ...


class WriteBatcher:
    """Writes concurrent calls to one table as batches of a `Writer`, without its thread."""

    def __init__(self, calls: TableCalls, log_writer: LogTableWriter) -> None:
        self._calls = calls
        self._log_writer = log_writer
        self.renew_in_child()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        """Discard the rows of the parent process."""
        self._writer: tuple[Writer, SenderThread] | None = None

    def make_all(self, calls: Sequence[QueuedCall]) -> None:
        """Write the rows or keys of the calls. The argument of a call is its method, and its rows or keys."""
        for call in calls:
            call.make(self._send)
        try:
            self._step()
        except BaseException:
            self._writer = None  # its queue may contain rows that were not written
            raise
        for call in calls:
            if call.error is None:
                call.make(call.result)

    def _send(self, argument: tuple[str, Any]) -> Callable[[Any], BucketOffsets]:
        """Queue the rows of a call, and return a function that returns their offsets after they are stored."""
        method, rows = argument
        if method == ("append" if self._log_writer.table.state.primary_key else "upsert"):
            getattr(self._calls, method)(rows)  # raises the error for the wrong kind of table
        if self._writer is None:
            self._writer = make_writer(self._log_writer, None, _LIMITS, delivery_timeout_ms=0)
        writer = self._writer[0]
        send = writer.delete if method == "delete" else writer.send
        try:
            sent = send(rows, timeout_ms=0)
        except WriterFullError:
            self._step()
            sent = send(rows, timeout_ms=0)
        return lambda _: sent.result()

    def _step(self) -> None:
        while self._writer is not None and self._writer[1].step():
            pass


def _make_each(calls: Sequence[QueuedCall]) -> None:
    for call in calls:
        call.make(lambda lookup: lookup())


@validates_arguments()
class AsyncTable:
    """The asyncio interface of a table; see `Table.aio`. Safe for use by several event loops.

    Methods have the arguments and raise the errors of the methods of `Table` with the same names.
    """

    def __init__(self, calls: TableCalls, log_writer: LogTableWriter) -> None:
        self._calls = calls
        self._table: TableHandle = log_writer.table
        self._writes = SerialCallQueue(WriteBatcher(calls, log_writer).make_all)
        self._lookups = SerialCallQueue(_make_each)
        self._watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncLogPoller] = (
            weakref.WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"{self._table!r}.aio"

    # -- writing --------------------------------------------------------------------------------------------------

    async def append(self, rows: Any, *, transaction: Transaction | None = None) -> BucketOffsets:
        """Append rows; see `Table.append`. Concurrent calls without a ``transaction`` share commits.

        >>> asyncio.run(orders.aio.append([{"id": 3, "day": "tue", "amount": 1.5}]))
        BucketOffsets({0: [2, 3)})
        """
        if transaction is not None:
            return await run_blocking(partial(self._calls.append, rows, transaction=transaction))
        return await self._write("append", rows)

    async def upsert(
        self, rows: Any, *, columns: Sequence[str] | None = None, transaction: Transaction | None = None
    ) -> BucketOffsets:
        """Upsert rows; see `Table.upsert`. Concurrent calls without ``columns`` and ``transaction`` share commits.

        Calls that share a commit get the offsets of all changes of the commit.

        >>> asyncio.run(people.aio.upsert([{"id": 3, "name": "Cyd", "city": "Bonn"}]))
        BucketOffsets({0: [2, 3)})
        """
        if transaction is not None or columns is not None:
            return await run_blocking(partial(self._calls.upsert, rows, columns=columns, transaction=transaction))
        return await self._write("upsert", rows)

    async def delete(
        self, keys: Any = None, *, where: Any = None, transaction: Transaction | None = None
    ) -> BucketOffsets | int:
        """Delete rows; see `Table.delete`. Concurrent calls by key without a ``transaction`` share commits.

        >>> asyncio.run(people.aio.delete([2]))
        BucketOffsets({0: [2, 3)})
        """
        if keys is None or where is not None or transaction is not None:
            return await run_blocking(partial(self._calls.delete, keys, where=where, transaction=transaction))
        return await self._write("delete", keys)

    # -- reading --------------------------------------------------------------------------------------------------

    async def to_arrow(
        self, *, columns: Sequence[str] | None = None, filter: Any = None, as_of_timestamp_ms: int | None = None
    ) -> pa.Table:
        """Read all rows; see `Table.to_arrow`.

        >>> asyncio.run(orders.aio.to_arrow(columns=["id"], filter="amount > 5")).to_pylist()
        [{'id': 1}]
        """
        return await run_blocking(
            partial(self._calls.to_arrow, columns=columns, filter=filter, as_of_timestamp_ms=as_of_timestamp_ms)
        )

    async def lookup(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
        insert_if_absent: bool = False,
    ) -> pa.Table:
        """Look up current rows by primary key; see `Table.lookup`.

        >>> asyncio.run(people.aio.lookup([1], columns=["name"])).to_pylist()
        [{'id': 1, 'name': 'Ada', '_found': True}]
        """
        call = partial(
            self._calls.lookup,
            keys,
            columns=columns,
            max_staleness_ms=max_staleness_ms,
            at_least=at_least,
            insert_if_absent=insert_if_absent,
        )
        rows: pa.Table = await self._look_up(
            call, waits=insert_if_absent or max_staleness_ms is not None or at_least is not None
        )
        return rows

    async def lookup_one(
        self,
        key: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
    ) -> dict[str, Any] | None:
        """Look up the current row of one key; see `Table.lookup_one`.

        >>> asyncio.run(people.aio.lookup_one(1))
        {'id': 1, 'name': 'Ada', 'city': 'Ulm'}
        """
        call = partial(
            self._calls.lookup_one, key, columns=columns, max_staleness_ms=max_staleness_ms, at_least=at_least
        )
        row: dict[str, Any] | None = await self._look_up(
            call, waits=max_staleness_ms is not None or at_least is not None
        )
        return row

    def tail(
        self,
        start: Any = "latest",
        *,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        include_metadata: bool = False,
        available_now: bool = False,
    ) -> AsyncTail:
        """Follow the log; see `Table.tail`. A batch has all rows since the last batch, up to a few megabytes.

        The start is resolved when the first batch is requested, or by ``async with``. A request that is cancelled, for
        example by ``asyncio.timeout``, loses no row, and the tail can be used again. With ``available_now``, the tail
        ends after the rows that were committed when it started. ``await tail.aclose()`` ends it from another task.

        >>> async def count_rows():
        ...     return sum([batch.num_rows async for batch in orders.aio.tail("earliest", available_now=True)])
        >>> asyncio.run(count_rows())
        2
        """
        open_cursor = partial(
            LogCursor, self._table, start, columns=columns, filter=filter, include_metadata=include_metadata
        )
        shared_by: Hashable | None = None
        if filter is None or isinstance(filter, str):
            shared_by = (columns if columns is None else tuple(columns), filter, include_metadata)
        return AsyncTail(self._watch, open_cursor, shared_by, available_now=available_now)

    def follow(
        self,
        name: str,
        *,
        start: Any = "earliest",
        columns: Sequence[str] | None = None,
        filter: Any = None,
        include_metadata: bool = False,
        skip_change_commits: bool = False,
        sink: TableHandle | None = None,
        available_now: bool = False,
    ) -> AsyncFollower:
        """Process all new rows as a named consumer, each row at least once; see `Table.follow`.

        The position is committed when the next batch is requested or the loop ends. If the task is cancelled in the
        loop body, the last batch is not committed.

        >>> async def process():
        ...     async for batch in orders.aio.follow("billing", available_now=True):
        ...         print(batch.num_rows)
        >>> asyncio.run(process())
        2
        """
        options = FollowOptions(
            columns, filter, include_metadata, skip_change_commits, sink, available_now=available_now
        )
        return AsyncFollower(
            self._watch, partial(hold_consumer, self._table, name, start, options), available_now=available_now
        )

    async def _write(self, method: str, rows: Any) -> BucketOffsets:
        offsets: BucketOffsets = await self._writes.call((method, rows))
        if (watch := self._watches.get(asyncio.get_running_loop())) is not None:
            watch.note(self._table.state)
        return offsets

    async def _look_up(self, call: Callable[[], Any], *, waits: bool) -> Any:
        """Make a lookup in the lane, or in a separate thread if it ``waits`` for the store."""
        return await (run_blocking(call) if waits else self._lookups.call(call))

    def _watch(self) -> AsyncLogPoller:
        loop = asyncio.get_running_loop()
        watch = self._watches.get(loop)
        if watch is None:
            watch = self._watches[loop] = AsyncLogPoller(self._table)
        return watch
