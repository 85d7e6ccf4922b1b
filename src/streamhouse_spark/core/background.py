"""Work behind calls: optional work after a commit, which the caller does not wait for.

It is bounded: of one key there is one piece of work at a time, and whoever gets ahead of it can wait. A process that
ends finishes what was started, and a child of a fork begins without any. Under a clock of tests work is done in the
call, so that what a seed does is the same each time.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, Protocol

from streamhouse_spark.core.forks import new_lock, renew_in_children

THREADS: Final = 1
"""Work competes with the calls for Python's lock, so there is one thread for all keys."""


WAIT_S_MAX: Final = 30


class Background(Protocol):
    def start(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do the work, which raises nothing, soon; not at all where work of the key is waiting or under way."""

    def finish(self, key: Hashable) -> None:
        """Wait until no work of the key is waiting or under way, `WAIT_S_MAX` at most: a store may hang."""


class InCall:
    """Does work in the call that starts it."""

    def start(self, key: Hashable, work: Callable[[], None]) -> None:  # noqa: ARG002 - see `Background`
        work()

    def finish(self, key: Hashable) -> None: ...


class InThread:
    """Does work in a thread of its own, which the interpreter joins when it ends. Safe for threads and forks."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._forget()
        renew_in_children(self)

    def _forget(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: dict[Hashable, Future[None]] = {}

    def renew_in_child(self) -> None:
        """Leave the work to the parent, whose thread does it."""
        self._forget()

    def start(self, key: Hashable, work: Callable[[], None]) -> None:
        with self._lock:
            if key in self._under_way:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, "streamhouse-background")
            try:
                future = self._pool.submit(contextvars.copy_context().run, work)
            except RuntimeError:  # the interpreter ends: somebody else does it later
                return
            self._under_way[key] = future
        future.add_done_callback(lambda done: self._forget_done(key, done))

    def _forget_done(self, key: Hashable, done: Future[None]) -> None:
        with self._lock:
            if self._under_way.get(key) is done:
                del self._under_way[key]

    def finish(self, key: Hashable) -> None:
        with self._lock:
            future = self._under_way.get(key)
        if future is not None:
            wait([future], WAIT_S_MAX)


IN_CALL: Final = InCall()
IN_THREAD: Final = InThread()
