"""Blocking calls on behalf of event loops: in few threads that all loops of the process share.

A `SerialCallQueue` joins calls of one kind. A thread makes all waiting calls, completes them together, and then makes
the calls that arrived meanwhile. A thousand concurrent calls therefore cost a few changes of threads instead of two
thousand.

A cancelled call is not made if it still waits. If it is being made, it is made to its end, and the caller does not see
its outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from streamhouse_spark.core.clock import Clock, SystemClock
from streamhouse_spark.core.concurrency import ThreadPool, new_lock, reinit_after_fork

THREADS_MAX: Final = 16
"""Threads of the process, for all tables and event loops."""
_POOL: Final = ThreadPool(THREADS_MAX, "streamhouse-aio")
T = TypeVar("T")


async def run_blocking(call: Callable[..., T], *args: Any) -> T:
    """Make a blocking call in a thread of the pool."""
    return await asyncio.get_running_loop().run_in_executor(_POOL.executor, call, *args)


async def sleep_ms(clock: Clock, duration_ms: float) -> None:
    """Sleep without blocking the event loop. A simulated clock advances at once."""
    if isinstance(clock, SystemClock):
        await asyncio.sleep(duration_ms / 1000)
    else:
        clock.sleep_ms(duration_ms)
        await asyncio.sleep(0)


class QueuedCall:
    """One call that waits in a lane, and its outcome."""

    __slots__ = ("argument", "error", "future", "loop", "result")

    def __init__(self, argument: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.argument = argument
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def make(self, call: Callable[[Any], Any]) -> None:
        """Call with the argument, and keep the outcome."""
        try:
            self.result = call(self.argument)
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self.error = error

    def answer(self) -> None:
        """Complete the future, in its event loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class SerialCallQueue:
    """Calls that are made one after another, in the order of the requests. Safe for use by several event loops."""

    def __init__(self, make_all: Callable[[Sequence[QueuedCall]], None]) -> None:
        """``make_all`` makes calls and sets their outcomes; it runs in one thread at a time."""
        self._make_all = make_all
        self._lock = new_lock()
        self.renew_in_child()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        """Forget the calls of the parent process."""
        self._waiting: list[QueuedCall] = []
        self._is_running = False

    async def call(self, argument: Any) -> Any:
        """Return the result of the call with this argument. Raises its error."""
        call = QueuedCall(argument, asyncio.get_running_loop())
        with self._lock:
            self._waiting.append(call)
            if not self._is_running:
                _POOL.executor.submit(self._run)
                self._is_running = True
        return await call.future

    def _run(self) -> None:
        while calls := self._take():
            try:
                self._make_all(calls)
            except BaseException as error:  # noqa: BLE001 - the callers get it
                for call in calls:
                    call.error = call.error or error
            _answer(calls)

    def _take(self) -> list[QueuedCall]:
        """Return the waiting calls, without those that were cancelled."""
        with self._lock:
            calls, self._waiting = [call for call in self._waiting if not call.future.cancelled()], []
            self._is_running = bool(calls)
        return calls


def _answer(calls: Sequence[QueuedCall]) -> None:
    for loop in {call.loop for call in calls}:
        of_loop = [call for call in calls if call.loop is loop]
        try:
            loop.call_soon_threadsafe(_answer_all, of_loop)
        except RuntimeError:  # the loop was closed, so no call waits
            continue


def _answer_all(calls: Sequence[QueuedCall]) -> None:
    for call in calls:
        call.answer()
