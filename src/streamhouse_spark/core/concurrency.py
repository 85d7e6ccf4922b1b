"""Locks that survive a fork, and parallel work on many items. All locks are created here.

After a fork, a child has only the forking thread, so a lock that another thread held would stay locked forever. All
locks and events of the package are reset in a child, unless the forking thread holds them itself. A guarded value may
be half changed: either each step leaves it consistent, or its owner reinitialises it in the child
(`reinit_after_fork`). Resources that a child must not share at all (LMDB) are closed before the fork
(`close_before_fork`).

A child also inherits all open files, and a file lock is held until the last copy is closed. A child would keep a lock
of another thread forever, and block everyone. So files to be locked are opened here, too.

Forks of several threads are serialised. Nothing here waits for a lock except those that `close_before_fork` takes.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, Self, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_events: weakref.WeakSet[threading.Event] = weakref.WeakSet()
_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
_put_away: weakref.WeakSet[Any] = weakref.WeakSet()
_waiting: list[ForkAware] = []
_one_fork = threading.RLock()
_lock_files: dict[int, int] = {}
"""Open file of `open_lock_file` → its thread."""
_one_descriptor = threading.RLock()
"""Ensures that a fork sees a file both opened and registered, or neither."""
THREADS_MAX = 16
T = TypeVar("T")
R = TypeVar("R")


class ReinitAfterFork(Protocol):
    """Owner of state that a child must not inherit, such as connections, identities and work in progress."""

    def renew_in_child(self) -> None: ...


class ForkAware(Protocol):
    """Owner of resources that must not be open during a fork."""

    def before_fork(self) -> None:
        """Close them, and prevent opening until `after_fork`."""

    def after_fork(self) -> None:
        """Allow opening again, in the parent and in the child."""


def new_lock() -> threading.RLock:
    """Create a reentrant lock that is free in a child, unless the forking thread holds it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


@contextmanager
def try_lock(lock: threading.RLock) -> Iterator[bool]:
    """Hold the lock in the block unless another thread holds it, without waiting. Yields whether it is held.

    It is released afterwards even if an interrupt occurs at any point.
    """
    try:
        yield lock.acquire(blocking=False)
    finally:
        if lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - an interrupt may precede the assignment
            lock.release()


def new_condition(lock: threading.RLock | None = None) -> threading.Condition:
    """Create a condition, by default with its own such lock. In a child it has no waiters."""
    return threading.Condition(new_lock() if lock is None else lock)


def new_event() -> threading.Event:
    """Create an event that works in a child, whatever other threads did with it at the fork."""
    event = threading.Event()
    _events.add(event)
    return event


def reinit_after_fork(owner: ReinitAfterFork) -> None:
    """Reinitialise the owner in each child. Holds only a weak reference."""
    _renewed.add(owner)


def close_before_fork(owner: ForkAware) -> None:
    """Close the owner's resources before each fork. Holds only a weak reference."""
    _put_away.add(owner)


def open_lock_file(path: str | os.PathLike[str], mode: int) -> int:
    """Open or create a file for this thread to lock. Children of other threads do not inherit it. Raises `OSError`."""
    with _one_descriptor:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        _lock_files[file] = threading.get_ident()
        return file


def share_lock_file(file: int) -> None:
    """Let children inherit the file and its lock from now on."""
    with _one_descriptor:
        _lock_files.pop(file, None)


def close_lock_file(file: int) -> None:
    """Close the file, which releases its lock. Raises `OSError`."""
    with _one_descriptor:
        _lock_files.pop(file, None)
        os.close(file)


class cached_property(functools.cached_property[T_co]):  # noqa: N801 - named like its base, which it replaces
    """A `functools.cached_property` without the lock of Python 3.11.

    That lock is shared by all objects of a class, held during the computation, and stays locked in a child. Here, two
    threads may both compute a value, and get the same object.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T_co: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | T_co:
        if instance is None:
            return self
        values: dict[str | None, T_co] = instance.__dict__  # type: ignore[assignment]
        try:
            return values[self.attrname]
        except KeyError:
            return values.setdefault(self.attrname, self.func(instance))


def _before() -> None:
    _one_fork.acquire()
    for owner in list(_put_away):
        owner.before_fork()
        _waiting.append(owner)
    _one_descriptor.acquire()  # last, because its holders never wait


def _after_in_parent() -> None:
    _one_descriptor.release()
    _reopen()
    _one_fork.release()


def _after_in_child() -> None:
    for lock in list(_locks):
        if not lock._is_owned():  # noqa: SLF001 - as in threading.Condition
            lock._at_fork_reinit()  # noqa: SLF001 - as the standard library's own modules do
    for event in list(_events):
        event._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001
    for file, thread in list(_lock_files.items()):
        if thread != threading.get_ident():
            close_lock_file(file)
    _one_descriptor.release()
    _reopen()
    for renewed in list(_renewed):
        renewed.renew_in_child()
    _one_fork.release()


def _reopen() -> None:
    while _waiting:
        _waiting.pop().after_fork()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


class ThreadPool:
    """Threads of the whole process, started as they are needed. A child starts its own."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max, self._name = threads_max, name
        self.renew_in_child()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        self.executor = ThreadPoolExecutor(self._threads_max, thread_name_prefix=self._name)


def parallel_map(work: Callable[[T], R], items: Sequence[T], *, threads_max: int | None = None) -> Iterator[R]:
    """Yield the results in the order of the items. The first error ends the work.

    Pass ``threads_max`` for work that keeps a core busy, or that only waits. By default there are more threads than
    cores.
    """
    threads = min(len(items), threads_max or min(THREADS_MAX, 2 * (os.cpu_count() or 1)))
    if threads < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, items)


def map_with_prefetch(pool: Executor, work: Callable[[T], R], items: Iterable[T], *, num_ahead: int) -> Iterator[R]:
    """Yield the results in the order of the items, with up to ``num_ahead`` items processed in advance."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > num_ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
