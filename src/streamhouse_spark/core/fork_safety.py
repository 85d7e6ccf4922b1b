"""Forks of the process: a child gets free locks, and identities of its own. The only maker of locks.

A child has one thread, the one that forked. A lock that another thread held at that moment would stay locked in it for
ever. So all locks and events of the package are made here, and are free in a child, unless the thread that forked holds
them itself. The guarded values were perhaps being changed: either each step leaves them right, or their owner `renews`
them in the child. Things that must not be shared with a child at all (LMDB) are `put away` before the fork.

A child also has copies of all open files, and a lock of a file is held until the last copy is closed: a child would
wait for ever for one that another thread held, and so would everybody else. So files to be locked are opened here too.

Forks of several threads follow each other. Nothing here waits for a lock but for those that `close_before_fork` takes.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)


class ReinitAfterFork(Protocol):
    """An owner of things that a child must not inherit: connections, identities, work under way."""

    def renew_in_child(self) -> None: ...


class ForkAware(Protocol):
    """An owner of things that must not be open while the process forks."""

    def before_fork(self) -> None:
        """Close them, and let nobody open them until `after_fork`."""

    def after_fork(self) -> None:
        """Allow opening again, in the parent and in the child."""


_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_events: weakref.WeakSet[threading.Event] = weakref.WeakSet()
_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
_put_away: weakref.WeakSet[Any] = weakref.WeakSet()
_waiting: list[ForkAware] = []
_one_fork = threading.RLock()
_lock_files: dict[int, int] = {}
"""The thread of each open file that `open_lock_file` returned."""
_one_descriptor = threading.RLock()
"""A fork sees a file open and noted, or neither."""


def new_lock() -> threading.RLock:
    """Make a reentrant lock that is free in a child, unless the forking thread holds it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


@contextmanager
def try_lock(lock: threading.RLock) -> Iterator[bool]:
    """Hold the lock in the block unless another thread holds it, without waiting. Gives whether it is held.

    Free afterwards, wherever an interrupt came.
    """
    try:
        yield lock.acquire(blocking=False)
    finally:
        if lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - an interrupt may come before the outcome
            lock.release()


def new_condition(lock: threading.RLock | None = None) -> threading.Condition:
    """Make a condition with such a lock, by default one of its own; in a child nobody waits for it."""
    return threading.Condition(new_lock() if lock is None else lock)


def new_event() -> threading.Event:
    """Make an event that works in a child, whatever other threads did with it at the fork."""
    event = threading.Event()
    _events.add(event)
    return event


def renew_in_children(owner: ReinitAfterFork) -> None:
    """Let the owner renew itself in each child. It is not kept alive by this."""
    _renewed.add(owner)


def close_before_fork(owner: ForkAware) -> None:
    """Let the owner close what it has open before each fork. It is not kept alive by this."""
    _put_away.add(owner)


def open_lock_file(path: str | os.PathLike[str], mode: int) -> int:
    """Open a file for this thread to lock, made if absent; no child of another thread gets it. Raises `OSError`."""
    with _one_descriptor:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        _lock_files[file] = threading.get_ident()
        return file


def share_lock_file(file: int) -> None:
    """Let children have the file from now on, with its lock."""
    with _one_descriptor:
        _lock_files.pop(file, None)


def close_lock_file(file: int) -> None:
    """Close the file; its lock becomes free. Raises `OSError`."""
    with _one_descriptor:
        _lock_files.pop(file, None)
        os.close(file)


class cached_property(functools.cached_property[T_co]):  # noqa: N801 - as its base, whose place it takes
    """A `functools.cached_property` without the lock of Python 3.11's.

    That lock is one for all objects of a class, is held while a value is worked out, and stays locked in a child. Here
    two threads may both work a value out, and get the same object.
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
    _one_descriptor.acquire()  # last: a holder of it waits for nothing


def _after_in_parent() -> None:
    _one_descriptor.release()
    _reopen()
    _one_fork.release()


def _after_in_child() -> None:
    for lock in list(_locks):
        if not lock._is_owned():  # noqa: SLF001 - as threading.Condition asks
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
