"""Locks that survive a fork, and parallel work on many items. All locks are created here.

A forked child has only the forking thread, so a lock that another thread held would stay locked forever. All locks and
events of the package are therefore reset in a child, unless the forking thread holds them. A guarded value may be in
the middle of a change. Either each step leaves it consistent, or its owner reinitialises it in the child
(`reinit_after_fork`). Resources that a child must not share (LMDB) are closed before the fork (`close_before_fork`).

A child also inherits all open files, and a file lock is held until the last copy is closed. A child would hold the lock
of another thread forever. Files that will be locked are therefore also opened here.

Forks of several threads are serialised. The functions of this module wait only for the locks of owners that are
registered with `close_before_fork`.
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
    """Owner of state that a forked child must not inherit, such as connections, identities and work in progress."""

    def renew_in_child(self) -> None: ...


class ForkAware(Protocol):
    """Owner of resources that must not be open during a fork."""

    def before_fork(self) -> None:
        """Close the resources, and prevent opening until `after_fork`."""

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

    The lock is released even if an interrupt occurs at any point.
    """
    try:
        yield lock.acquire(blocking=False)
    finally:
        if lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - an interrupt may precede the assignment
            lock.release()


def new_condition(lock: threading.RLock | None = None) -> threading.Condition:
    """Create a condition, by default with a new lock of `new_lock`. It has no waiters in a child."""
    return threading.Condition(new_lock() if lock is None else lock)


def new_event() -> threading.Event:
    """Create an event that works in a child, even if other threads used it during the fork."""
    event = threading.Event()
    _events.add(event)
    return event


def reinit_after_fork(owner: ReinitAfterFork) -> None:
    """Reinitialise the owner in each child. Holds a weak reference to the owner."""
    _renewed.add(owner)


def close_before_fork(owner: ForkAware) -> None:
    """Close the owner's resources before each fork. Holds a weak reference to the owner."""
    _put_away.add(owner)


def open_lock_file(path: str | os.PathLike[str], mode: int) -> int:
    """Open or create a file for this thread to lock. Children of other threads do not inherit it. Raises `OSError`."""
    with _one_descriptor:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        _lock_files[file] = threading.get_ident()
        return file


def share_lock_file(file: int) -> None:
    """Let later children inherit the file and its lock."""
    with _one_descriptor:
        _lock_files.pop(file, None)


def close_lock_file(file: int) -> None:
    """Close the file, which releases its lock. Raises `OSError`."""
    with _one_descriptor:
        _lock_files.pop(file, None)
        os.close(file)


class cached_property(functools.cached_property[T_co]):  # noqa: N801 - named like its base, which it replaces
    """A `functools.cached_property` without the lock of Python 3.11.

    All objects of a class share that lock. It is held during the computation, and stays locked in a child. Here, two
    threads may both compute a value, and both return the object that is stored first.
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
        if not lock._is_owned():  # noqa: SLF001 - threading.Condition uses it too
            lock._at_fork_reinit()  # noqa: SLF001 - modules of the standard library use it too
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

    By default there are more threads than cores. Pass ``threads_max`` for work that keeps a core busy, or only waits.
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
