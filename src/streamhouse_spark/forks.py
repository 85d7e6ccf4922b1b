"""What a fork leaves in the child: locks that nobody holds, and identities of its own. The only maker of locks.

A child has one thread, the one that forked. A lock that another thread held at that moment would stay locked in it for
ever. So all locks and events of the package are made here, and are free in a child, unless the thread that forked
holds them itself. What they guard was perhaps being changed: it is such that each step leaves something right, or its
owner `renews` it in the child. What must not be shared with a child at all (LMDB) is `put away` before the fork.

Forks of several threads follow each other. Nothing here waits for a lock but for those that `put_away_for_forks` takes.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import Any, Protocol, Self, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)


class Renewed(Protocol):
    """Has what a child must not take over from its parent: connections, identities, what is under way."""

    def renew_in_child(self) -> None: ...


class PutAway(Protocol):
    """Holds what must not be open while the process forks."""

    def before_fork(self) -> None:
        """Close it, and let nobody open it until `after_fork`."""

    def after_fork(self) -> None:
        """In the parent and in the child."""


_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_events: weakref.WeakSet[threading.Event] = weakref.WeakSet()
_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
_put_away: weakref.WeakSet[Any] = weakref.WeakSet()
_waiting: list[PutAway] = []
_one_fork = threading.RLock()


def new_lock() -> threading.RLock:
    """A reentrant lock that is free in a child, unless the thread that forks holds it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def new_condition() -> threading.Condition:
    """A condition with such a lock; in a child nobody waits for it."""
    return threading.Condition(new_lock())


def new_event() -> threading.Event:
    """An event that can be asked and set in a child, whatever other threads did with it at the fork."""
    event = threading.Event()
    _events.add(event)
    return event


def renew_in_children(owner: Renewed) -> None:
    """Let the owner renew itself in each child. It is not kept alive by this."""
    _renewed.add(owner)


def put_away_for_forks(owner: PutAway) -> None:
    """Let the owner close what it has open before each fork. It is not kept alive by this."""
    _put_away.add(owner)


class cached_property(functools.cached_property[T_co]):  # noqa: N801 - as its base, whose place it takes
    """As `functools.cached_property`, without the lock of Python 3.11's.

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


def _after_in_parent() -> None:
    _open_again()
    _one_fork.release()


def _after_in_child() -> None:
    for lock in list(_locks):
        if not lock._is_owned():  # noqa: SLF001 - as threading.Condition asks
            lock._at_fork_reinit()  # noqa: SLF001 - as the standard library's own modules do
    for event in list(_events):
        event._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001
    _open_again()
    for renewed in list(_renewed):
        renewed.renew_in_child()
    _one_fork.release()


def _open_again() -> None:
    while _waiting:
        _waiting.pop().after_fork()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
