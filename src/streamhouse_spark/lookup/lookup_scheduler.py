"""Turns of threads that look up single rows.

A lookup lets other threads of the process run several times, each time for a microsecond or two. Where all of them look
up rows, each such moment wakes one that finds Python's lock taken again, and sleeps on: the threads spend three times
as long on waking each other as on their lookups. So while one thread looks up rows the others sleep here, where nothing
wakes them, and it keeps the turn for some of its lookups, if it comes back for the next at once.

Only a hint: what a lookup finds does not depend on it. A turn is never waited for where that would take long: while
another thread reads the log, or rows that are not in memory, or was interrupted and will never say that it is done.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from streamhouse_spark.core.fork_safety import new_event, renew_in_children

LOOKUPS_MAX: Final = 192
"""Lookups of one thread, while others wait: some 2.5 ms, half of the time that Python itself leaves its lock to one."""
WAIT_S: Final = 0.002
"""Time in which a thread does more lookups than it may, if its rows are in memory."""
_FEW: Final = 8
"""Lookups in that time which are so few that more threads at once would do more."""
_WITHOUT: Final = 64
"""Lookups that ask for no turn afterwards; twice as many each time that it is so again."""
_WITHOUT_MAX: Final = 4096


class LookupScheduler:
    """The turns of a process. Everything may be changed by any thread between two steps: it is then a worse hint."""

    def __init__(self) -> None:
        self.renew_in_child()
        renew_in_children(self)

    def renew_in_child(self) -> None:
        self._is_taken = False
        self._waiting: deque[_Waiter] = deque()
        self._num_done = 0
        self._num_left = 0
        self._num_without = 0
        self._next_without = _WITHOUT
        self._comes_back = False
        """Whether those who have a turn look up one row after another."""
        self._passer = 0
        """The thread that let others have the newest turn."""

    def acquire(self) -> bool:
        """Wait for the turn, but not for long. Returns whether this thread has it now, and has to `leave` it."""
        if self._is_taken:
            return self._wait()
        self._is_taken = True
        return True

    def release(self) -> None:
        """Let others have the turn."""
        self._is_taken = False
        self._num_done += 1
        if self._waiting:
            self._num_left -= 1
            if self._num_left < 0 or not self._comes_back:
                self._pass_on()

    def _pass_on(self) -> None:
        waiter = self._next()
        if waiter is None:
            return
        if self._num_left < 0:
            self._next_without = _WITHOUT
        self._passer, self._num_left = threading.get_ident(), LOOKUPS_MAX
        self._is_taken = waiter.has_turn = True
        waiter.ready.set()

    def _wait(self) -> bool:
        if self._num_without > 0:
            self._num_without -= 1
            return False
        if self._passer == threading.get_ident():  # it comes back before the next one has passed the turn on
            self._comes_back = True
        waiter = _Waiter()
        self._waiting.append(waiter)
        try:
            while not waiter.ready.is_set():
                num_done = self._num_done
                if not waiter.ready.wait(WAIT_S * len(self._waiting)):
                    self._look(waiter, self._num_done - num_done)
        except BaseException:  # an interrupt
            self._forget(waiter)
            if waiter.has_turn:
                self.release()
            raise
        return waiter.has_turn

    def _look(self, waiter: _Waiter, num_done: int) -> None:
        """Let a thread that has waited for a while go on, unless the others do as much as one thread can."""
        if self._is_taken and num_done >= _FEW:
            return
        if self._is_taken and num_done:
            self._num_without = self._next_without
            self._next_without = min(2 * self._next_without, _WITHOUT_MAX)
            while (other := self._next()) is not None:
                other.ready.set()
        elif self._forget(waiter):  # the turn is free, or its owner does something else for long
            self._comes_back = False
            self._passer, self._num_left = 0, LOOKUPS_MAX
            self._is_taken = waiter.has_turn = True
            waiter.ready.set()

    def _next(self) -> _Waiter | None:
        """Take out the first that waits; None if all have gone on meanwhile."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _forget(self, waiter: _Waiter) -> bool:
        """Take out one that waits. Returns False if another thread did."""
        try:
            self._waiting.remove(waiter)
        except ValueError:
            return False
        return True


class _Waiter:
    def __init__(self) -> None:
        self.ready = new_event()
        self.has_turn = False


SCHEDULER: Final = LookupScheduler()
"""The turns of all tables, because Python's lock is one for all."""
