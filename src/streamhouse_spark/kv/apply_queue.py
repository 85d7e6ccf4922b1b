"""Committed changes that are due on a tablet of this host: stored in the log, and applied behind the writer's answer.

The log has them, so nothing waits for them but the next use of the tablet: whoever asks it for rows does first what is
due, or waits until the thread of this module has done it. Work that nobody does (a process was killed, a disk failed)
is done again by the next use, from the log. So it may also be dropped, as a child of a fork does, whose parent has it.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import Final

from streamhouse_spark.core.fork_safety import new_lock, renew_in_children

BYTES_MAX: Final = 64 << 20
"""Bytes of rows that may be due in this process, over all tablets. What exceeds them is applied before the answer."""

Work = Callable[[], None]


class ApplyQueue:
    """Work that is due on one tablet, in the order of the log. Safe for threads.

    Work does not raise, and may use the tablet, which then is as the work before left it.
    """

    def __init__(self) -> None:
        self._work: deque[tuple[Work, int]] = deque()
        self._is_busy = False
        self._lock = new_lock()
        renew_in_children(self)

    def renew_in_child(self) -> None:
        """Leave all work to the parent, where it began or will begin."""
        self._work.clear()
        self._is_busy = False

    def add(self, work: Work, num_bytes: int) -> None:
        """Do ``work`` behind what is due already: soon, by another thread, if little is due; else now."""
        self._work.append((work, num_bytes))
        if _applier.try_enqueue(self, num_bytes):
            return
        self.finish()

    def finish(self) -> None:
        """Return when nothing is due: do what nobody began, and wait for what another thread is doing."""
        if not self._work and not self._is_busy:
            return
        with self._lock:
            if self._is_busy:
                return  # this thread's own work uses the tablet
            self._is_busy = True
            try:
                while self._work:
                    work, num_bytes = self._work.popleft()
                    try:
                        work()
                    finally:
                        _applier.note_done(num_bytes)
            finally:
                self._is_busy = False


class _Applier:
    """The thread of this process that does what is due on all tablets."""

    def __init__(self) -> None:
        self.renew_in_child()
        renew_in_children(self)

    def renew_in_child(self) -> None:
        self._lock = new_lock()
        self._tablets: queue.SimpleQueue[ApplyQueue] = queue.SimpleQueue()
        self._waiting: weakref.WeakSet[ApplyQueue] = weakref.WeakSet()
        self._num_bytes = 0
        self._thread: threading.Thread | None = None
        self._is_ending = False

    def try_enqueue(self, due: ApplyQueue, num_bytes: int) -> bool:
        """Note the bytes in any case. Returns False for more than may be due, and where no thread can begin."""
        with self._lock:
            self._num_bytes += num_bytes
            if self._num_bytes > BYTES_MAX or self._is_ending or not self._is_running():
                return False
            self._waiting.add(due)
        self._tablets.put(due)
        return True

    def note_done(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes = max(0, self._num_bytes - num_bytes)

    def end(self) -> None:
        """Do what is due; from now on everything is done at once."""
        with self._lock:
            self._is_ending = True
        self.finish()

    def finish(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for due in waiting:
            due.finish()

    def _is_running(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, args=(self._tablets,), name="streamhouse-apply", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process may have no more threads, or ends
                return False
            self._thread = thread
            # Files whose writer ends in the middle are thrown away. Children of multiprocessing ask no `atexit`.
            Finalize(None, self.end, exitpriority=50)
        return True

    @staticmethod
    def _run(tablets: queue.SimpleQueue[ApplyQueue]) -> None:
        while True:
            tablets.get().finish()


_applier = _Applier()


def finish_all() -> None:
    """Return when nothing is due on any tablet of this process."""
    _applier.finish()
