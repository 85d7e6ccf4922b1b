"""Scheduling of threads that look up single rows.

A lookup releases Python's lock several times for a microsecond or two. If all threads look up rows, each release wakes
a thread that finds the lock taken again and goes back to sleep: the threads spend three times as long on waking each
other as on their lookups. So while one thread looks up rows, the others sleep here without being woken. A thread keeps
its turn for several lookups if it comes back for the next one at once.

This is only a hint: lookup results do not depend on it. A thread never waits long for its turn. It goes on while
another thread reads the log or rows that are not in memory, or was interrupted and never releases its turn.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from streamhouse_spark.core.fork_safety import new_event, reinit_after_fork

LOOKUPS_MAX: Final = 192
"""Lookups per turn while others wait: about 2.5 ms, half of Python's own switch interval."""
WAIT_S: Final = 0.002
"""Time in which a thread does more lookups than a turn has, if its rows are in memory."""
_FEW: Final = 8
"""So few lookups in that time mean that concurrent threads would do more."""
_WITHOUT: Final = 64
"""Lookups that then bypass the scheduler; doubled each time that this repeats."""
_WITHOUT_MAX: Final = 4096


class LookupScheduler:
    """The turns of a process. Its fields are updated without a lock: a race only makes the hint worse."""

    def __init__(self) -> None:
        self.renew_in_child()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        self._is_taken = False
        self._waiting: deque[_Waiter] = deque()
        self._num_done = 0
        self._num_left = 0
        self._num_without = 0
        self._next_without = _WITHOUT
        self._comes_back = False
        """Whether threads with a turn look up one row after another."""
        self._passer = 0
        """The thread that passed on the latest turn."""

    def acquire(self) -> bool:
        """Wait briefly for the turn. Returns whether this thread has it and must `release` it."""
        if self._is_taken:
            return self._wait()
        self._is_taken = True
        return True

    def release(self) -> None:
        """Release the turn."""
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
        if self._passer == threading.get_ident():  # it came back before the next thread passed the turn on
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
        """Let a thread that waited for a while continue, unless the others do as much as one thread can."""
        if self._is_taken and num_done >= _FEW:
            return
        if self._is_taken and num_done:
            self._num_without = self._next_without
            self._next_without = min(2 * self._next_without, _WITHOUT_MAX)
            while (other := self._next()) is not None:
                other.ready.set()
        elif self._forget(waiter):  # the turn is free, or its owner is busy with something else
            self._comes_back = False
            self._passer, self._num_left = 0, LOOKUPS_MAX
            self._is_taken = waiter.has_turn = True
            waiter.ready.set()

    def _next(self) -> _Waiter | None:
        """Remove and return the first waiter; None if all have continued."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _forget(self, waiter: _Waiter) -> bool:
        """Remove a waiter. Returns False if another thread did."""
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
"""The scheduler of all tables, because all threads share Python's lock."""
