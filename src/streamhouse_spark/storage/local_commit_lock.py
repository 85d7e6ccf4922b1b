"""File locks between processes of one host that are about to put an object into the same directory.

A lock only saves lost races; correctness rests on put-if-absent. A process that was stopped must not stop the others,
so each wait is bounded, and a process that waited that long continues without the lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.fork_safety import close_lock_file, open_lock_file

WAIT_MS_MAX = 50
POLL_MS = 0.2


class LocalCommitLock:
    """The locks that the threads of this process hold."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._thread = threading.local()

    def __reduce__(self) -> tuple[type[LocalCommitLock], tuple[World]]:
        return LocalCommitLock, (self._world,)  # locks belong to one process

    @contextmanager
    def hold(self, path: str) -> Iterator[None]:
        """Hold the lock file ``path`` in the block, or until `release`; after ``WAIT_MS_MAX`` continue without it."""
        directory = os.path.dirname(path)
        try:
            with suppress(OSError):  # the put that follows reports it
                file = open_lock_file(path, 0o666)
                self._held.append((directory, file))
                self._wait(file)
            yield
        finally:
            self.release(directory)

    def release(self, directory: str) -> None:
        """Release this thread's locks in a directory, if it holds any: its object is visible there."""
        for entry in [entry for entry in self._held if entry[0] == directory]:
            self._held.remove(entry)
            with suppress(OSError):  # the object may be stored already
                close_lock_file(entry[1])

    @property
    def _held(self) -> list[tuple[str, int]]:
        """The directory and the file descriptor of each lock of this thread."""
        if not hasattr(self._thread, "held"):
            self._thread.held = []
        held: list[tuple[str, int]] = self._thread.held
        return held

    def _wait(self, file: int) -> None:
        clock = self._world.clock
        until_ms = clock.boot_ms() + WAIT_MS_MAX
        while not _try_lock(file) and clock.boot_ms() < until_ms:
            clock.sleep_ms(POLL_MS)


@contextmanager
def only_process(path: str | None) -> Iterator[bool]:
    """Hold the lock file ``path`` in the block, unless another process or thread of this host holds it.

    Yields whether no other holds it, as far as known; always True without a path. The file is created, and removed
    afterwards. Only a hint: if the file is removed concurrently, the next caller locks another one.
    """
    file: int | None = None
    is_alone = True
    try:
        if path is not None:
            with suppress(OSError):
                file = open_lock_file(path, 0o666)
                is_alone = _try_lock(file)
        yield is_alone
    finally:
        if file is not None and path is not None:
            if is_alone:
                with suppress(OSError):
                    os.unlink(path)
            with suppress(OSError):
                close_lock_file(file)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
