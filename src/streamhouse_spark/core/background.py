"""Work behind calls: optional work after a commit, which the caller does not wait for.

It is bounded: of one key there is one piece of work at a time, and whoever gets ahead of it can wait. A process that
ends finishes what was started, and a child of a fork begins without any. Under a clock of tests work is done in the
call, so that what a seed does is the same each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from streamhouse_spark.core.fork_safety import new_lock, renew_in_children

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
    """Does work in threads of its own, one piece after the other, which the interpreter joins when it ends. Safe for
    threads and forks.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._turn = new_lock()
        """Work competes with the calls for Python's lock, so there is one piece at a time, whatever its key."""
        self._under_way: dict[Hashable, threading.Thread] = {}
        renew_in_children(self)

    def renew_in_child(self) -> None:
        """Leave the work to the parent, whose threads do it."""
        self._under_way = {}

    def start(self, key: Hashable, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run, args=(key, work), name="streamhouse-background")
        with self._lock:
            if key in self._under_way:
                return
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends, or the system has no more threads: somebody does it later
                return
            self._under_way[key] = thread

    def _run(self, key: Hashable, work: Callable[[], None]) -> None:
        try:
            with self._turn:
                work()
        finally:
            with self._lock:  # behind `start`, which has noted this thread by then
                if self._under_way.get(key) is threading.current_thread():
                    del self._under_way[key]

    def finish(self, key: Hashable) -> None:
        with self._lock:
            thread = self._under_way.get(key)
        if thread is not None and thread is not threading.current_thread():
            thread.join(WAIT_S_MAX)


IN_CALL: Final = InCall()
IN_THREAD: Final = InThread()
