"""Background work: optional post-commit work that the caller does not wait for.

It is bounded: there is one piece of work per key at a time, and a caller that gets ahead of it can wait. A process
finishes started work before it exits, and a forked child starts without any. Under a simulated clock, work runs in the
calling thread, which keeps seeded runs deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from streamhouse_spark.core.fork_safety import new_lock, reinit_after_fork

WAIT_S_MAX: Final = 30


class Background(Protocol):
    def start(self, key: Hashable, work: Callable[[], None]) -> None:
        """Run the work soon, unless work of the key is waiting or in progress. The work must not raise."""

    def finish(self, key: Hashable) -> None:
        """Wait until no work of the key is waiting or in progress, at most `WAIT_S_MAX` because a store may hang."""


class InCall:
    """Runs work in the call that starts it."""

    def start(self, key: Hashable, work: Callable[[], None]) -> None:  # noqa: ARG002 - see `Background`
        work()

    def finish(self, key: Hashable) -> None: ...


class InThread:
    """Runs work in threads, one piece at a time. The interpreter joins them on exit. Safe for threads and forks."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._turn = new_lock()
        """Work competes with callers for the GIL, so one piece runs at a time, regardless of its key."""
        self._under_way: dict[Hashable, threading.Thread] = {}
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        """Leave the work to the parent, whose threads run it."""
        self._under_way = {}

    def start(self, key: Hashable, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run, args=(key, work), name="streamhouse-background")
        with self._lock:
            if key in self._under_way:
                return
            try:
                thread.start()
            except RuntimeError:  # the interpreter exits, or no thread is available: the work is done later
                return
            self._under_way[key] = thread

    def _run(self, key: Hashable, work: Callable[[], None]) -> None:
        try:
            with self._turn:
                work()
        finally:
            with self._lock:  # after `start`, which has registered this thread by then
                if self._under_way.get(key) is threading.current_thread():
                    del self._under_way[key]

    def finish(self, key: Hashable) -> None:
        with self._lock:
            thread = self._under_way.get(key)
        if thread is not None and thread is not threading.current_thread():
            thread.join(WAIT_S_MAX)


IN_CALL: Final = InCall()
IN_THREAD: Final = InThread()
