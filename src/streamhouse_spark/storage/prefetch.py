"""Reading of many small objects in the time of one request, where the store can.

On an object store cost is round trips in sequence: thirty records one after the other take thirty of them, and asked
for at once they take one. On a local disk there is nothing to win, so nothing is read that nobody may want.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from streamhouse_spark.core.concurrency import THREADS_MAX, in_parallel
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.storage.base import Storage, url_of

WINDOW: Final = 42
"""So many records are asked for at once: those that may follow a checkpoint, and one more, which shows that none is
missing."""
FIRST: Final = 8
"""Records that are asked for together with a checkpoint, before the others: many tables have few."""
DELETES_MAX: Final = 48
"""Objects that are deleted at the same time: each is a short request, with nothing to hold in memory."""
T = TypeVar("T")
R = TypeVar("R")


class ReadsMany(ABC):
    """A store with requests that take long, of which many may be under way. Each class with such a method is one: the
    check of a protocol would look at the attributes of each object, which takes a tenth of the time of an append.
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return hasattr(other, "read_many")

    @abstractmethod
    def read_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects, each as `Storage.read` does, at the same time. None stands for an absent one."""


def at_once(storage: Storage, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Return the results of work that waits for the store, in the order of the items; done at once where that helps."""
    return in_parallel(work, items, threads_max=THREADS_MAX) if isinstance(storage, ReadsMany) else map(work, items)


def delete_all(storage: Storage, keys: Sequence[str]) -> None:
    """Delete objects in any order, at the same time where that helps. An absent one is no error."""
    if isinstance(storage, ReadsMany):
        for _ in in_parallel(storage.delete, keys, threads_max=DELETES_MAX):
            pass
    else:
        for key in keys:
            storage.delete(key)


def expect_together(storage: Storage, requests: Sequence[tuple[Prefetch, Sequence[str]]]) -> None:
    """Read the objects that several readers are about to read, at the same time."""
    keys = [key for _, own_keys in requests for key in own_keys]
    if keys and isinstance(storage, ReadsMany):
        contents = iter(storage.read_many(keys))
        for ahead, own_keys in requests:
            ahead.hold({key: next(contents) for key in own_keys})


class Prefetch:
    """The objects of one store that a caller is about to read. For one thread, and for one look at the store.

    An object that was asked for ahead is as it was at that time: absent ones may be there since. Each is handed out
    once; later reads ask again.
    """

    def __init__(self, storage: Storage, first: int = FIRST) -> None:
        """An opener asks for the ``first`` records of a log together with its checkpoint."""
        self._storage = storage
        self.first = first
        self._many = storage if isinstance(storage, ReadsMany) else None
        self._found: dict[str, bytes | None] = {}
        self._joined: list[str] = []

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def is_useful(self) -> bool:
        """Whether asking ahead saves time here."""
        return self._many is not None

    def expect(self, keys: Iterable[str]) -> None:
        """Read these objects now, if that saves time later."""
        if self._many is None:
            return
        missing = [key for key in dict.fromkeys([*keys, *self._joined]) if key not in self._found]
        if len(missing) > 1:
            self._found |= zip(missing, self._many.read_many(missing), strict=True)
            self._joined = []

    def hold(self, contents: Mapping[str, bytes | None]) -> None:
        """Take over objects that were read for this reader; None stands for an absent one."""
        self._found |= contents

    def join(self, keys: Iterable[str]) -> None:
        """Read these objects with the next ones that are expected."""
        self._joined += keys

    def has(self, key: str) -> bool:
        """Tell whether the object was asked for, and not handed out yet."""
        return key in self._found

    def is_known_absent(self, key: str) -> bool:
        """Tell whether the object was asked for and is not there. False if it was not asked for."""
        return key in self._found and self._found[key] is None

    def found(self, key: str) -> bytes | None:
        """Return an object that was asked for, and keep it; None for an absent one."""
        return self._found.get(key)

    def read(self, key: str) -> bytes:
        """Return the object. Raises `ObjectNotFoundError`."""
        if key not in self._found:
            return self._storage.read(key)
        data = self._found.pop(key)
        if data is None:
            raise ObjectNotFoundError.of(url_of(self._storage, key))
        return data
