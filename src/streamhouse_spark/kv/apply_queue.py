"""Committed changes that wait to be applied to this host's tablets, after the writer's call returned.

The log has the changes, so only the next use of the tablet waits for them: it applies queued work itself, or waits for
the thread of this module. Work that is lost, because a process was killed or a disk failed, is repeated from the log by
the next use. It may therefore be dropped, as in a forked child, whose parent still has it.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import Final

from streamhouse_spark.core.fork_safety import new_lock, reinit_after_fork

BYTES_MAX: Final = 64 << 20
"""Bytes of rows queued in this process, over all tablets. More are applied before the call returns."""

Work = Callable[[], None]


class ApplyQueue:
    """Queued work of one tablet, in log order. Thread-safe.

    Work must not raise. It may use the tablet, which has all earlier work applied.
    """

    def __init__(self) -> None:
        self._work: deque[tuple[Work, int]] = deque()
        self._is_busy = False
        self._lock = new_lock()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        """Leave all work to the parent process."""
        self._work.clear()
        self._is_busy = False

    def add(self, work: Work, num_bytes: int) -> None:
        """Queue ``work``: another thread does it soon if little is queued, else this call does it now."""
        self._work.append((work, num_bytes))
        if _applier.try_enqueue(self, num_bytes):
            return
        self.finish()

    def finish(self) -> None:
        """Do all queued work that has not started, and wait for work in progress."""
        if not self._work and not self._is_busy:
            return
        with self._lock:
            if self._is_busy:
                return  # reentrant: this thread's work uses the tablet
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
    """The thread of this process that applies the queues of all tablets."""

    def __init__(self) -> None:
        self.renew_in_child()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        self._lock = new_lock()
        self._tablets: queue.SimpleQueue[ApplyQueue] = queue.SimpleQueue()
        self._waiting: weakref.WeakSet[ApplyQueue] = weakref.WeakSet()
        self._num_bytes = 0
        self._thread: threading.Thread | None = None
        self._is_ending = False

    def try_enqueue(self, due: ApplyQueue, num_bytes: int) -> bool:
        """Count the bytes. Returns False if too much is queued or no thread can start."""
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
        """Apply all queues; afterwards work is done at once."""
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
            except RuntimeError:  # the process is out of threads, or exiting
                return False
            self._thread = thread
            # Files of a writer that ends in the middle are discarded. Children of multiprocessing do not run `atexit`.
            Finalize(None, self.end, exitpriority=50)
        return True

    @staticmethod
    def _run(tablets: queue.SimpleQueue[ApplyQueue]) -> None:
        while True:
            tablets.get().finish()


_applier = _Applier()


def finish_all() -> None:
    """Apply the queues of all tablets of this process."""
    _applier.finish()
