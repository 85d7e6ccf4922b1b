"""Batched reads: many small objects, or many byte ranges of an object, in the time of one request.

The cost of reads from an object store is the number of sequential round trips. Thirty records read one by one take
thirty round trips; a batch takes one. A local disk gains nothing, so nothing is prefetched from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from streamhouse_spark.core.concurrency import THREADS_MAX, parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.storage.base import Storage, url_of

WINDOW: Final = 42
"""Records in a batch: the maximum number after a checkpoint, plus one record that must be absent."""
FIRST: Final = 8
"""Records that are read together with a checkpoint, before the others. Many tables have no more."""
DELETES_MAX: Final = 48
"""Maximum number of concurrent deletes. Each is a short request that holds no memory."""
T = TypeVar("T")
R = TypeVar("R")


class SupportsBatchReads(ABC):
    """A store with slow requests that supports many concurrent ones. Any class with ``read_many`` is a subclass.

    A runtime-checkable protocol would inspect the attributes of each object, which takes 10 % of an append.
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return hasattr(other, "read_many")

    @abstractmethod
    def read_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects concurrently, as `Storage.read` does. Returns None for an absent object."""


def map_with_store_concurrency(storage: Storage, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Return the results of ``work`` in the order of the items. Calls are concurrent on a store with slow requests."""
    return (
        parallel_map(work, items, threads_max=THREADS_MAX)
        if isinstance(storage, SupportsBatchReads)
        else map(work, items)
    )


def call_both(storage: Storage, first: Callable[[], T], second: Callable[[], R]) -> tuple[T, R]:
    """Return the results of two calls. The calls are concurrent on a store with slow requests."""
    calls: list[Callable[[], Any]] = [first, second]
    first_result, second_result = map_with_store_concurrency(storage, lambda call: call(), calls)
    return first_result, second_result


def delete_all(storage: Storage, keys: Sequence[str]) -> None:
    """Delete objects in any order. Deletes are concurrent on a store with slow requests. Absent objects are ignored."""
    if isinstance(storage, SupportsBatchReads):
        for _ in parallel_map(storage.delete, keys, threads_max=DELETES_MAX):
            pass
    else:
        for key in keys:
            storage.delete(key)


def expect_together(storage: Storage, requests: Sequence[tuple[Prefetch, Sequence[str]]]) -> None:
    """Prefetch the objects of several readers in one batch."""
    keys = [key for _, own_keys in requests for key in own_keys]
    if keys and isinstance(storage, SupportsBatchReads):
        contents = iter(storage.read_many(keys))
        for ahead, own_keys in requests:
            ahead.hold({key: next(contents) for key in own_keys})


class Prefetch:
    """Prefetched objects of one store, for one thread and one pass over the store.

    A prefetched object shows its state at that time: an absent object may exist now. Each prefetched object is returned
    once. Later reads send a request.
    """

    def __init__(self, storage: Storage, first: int = FIRST) -> None:
        """``first`` is the number of records that are read together with the checkpoint of a log."""
        self._storage = storage
        self.first = first
        self._many = storage if isinstance(storage, SupportsBatchReads) else None
        self._results: dict[str, bytes | None] = {}
        self._joined: list[str] = []

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def is_useful(self) -> bool:
        """Whether prefetching saves time on this store."""
        return self._many is not None

    def expect(self, keys: Iterable[str]) -> None:
        """Prefetch these objects, unless the store is local."""
        if self._many is None:
            return
        missing = [key for key in dict.fromkeys([*keys, *self._joined]) if key not in self._results]
        if len(missing) > 1:
            self._results |= zip(missing, self._many.read_many(missing), strict=True)
            self._joined = []

    def hold(self, contents: Mapping[str, bytes | None]) -> None:
        """Add objects that were already read. None marks an absent object."""
        self._results |= contents

    def join(self, keys: Iterable[str]) -> None:
        """Add these objects to the next prefetched batch."""
        self._joined += keys

    def has(self, key: str) -> bool:
        """Return whether the object was prefetched and has not been returned."""
        return key in self._results

    def is_known_absent(self, key: str) -> bool:
        """Return whether the object was prefetched and is absent."""
        return key in self._results and self._results[key] is None

    def peek(self, key: str) -> bytes | None:
        """Return a prefetched object without removing it, or None if it is absent or was not prefetched."""
        return self._results.get(key)

    def read(self, key: str) -> bytes:
        """Return the prefetched object, or read it with a request. Raises `ObjectNotFoundError`."""
        if key not in self._results:
            return self._storage.read(key)
        data = self._results.pop(key)
        if data is None:
            raise ObjectNotFoundError.of(url_of(self._storage, key))
        return data


# -- byte ranges ------------------------------------------------------------------------------------------------------

GAP_BYTES_MAX = 64 << 10
"""Ranges with smaller gaps are fetched together: reading the gap costs less than another request."""
PIECE_BYTES_MAX = 16 << 20
"""Longer ranges are fetched in concurrent pieces, because one connection is slower than the network."""


@dataclass(frozen=True, slots=True)
class RangePlan:
    """The sorted, disjoint pieces to fetch. None is longer than `PIECE_BYTES_MAX`."""

    requested: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Sequence[tuple[int, int]]) -> RangePlan:
        for start, end in ranges:
            if not 0 <= start <= end:
                raise ValueError(f"not a byte range: [{start}, {end})")
        pieces: list[tuple[int, int]] = []
        for start, end in merge_ranges(ranges):
            pieces.extend((at, min(at + PIECE_BYTES_MAX, end)) for at in range(start, end, PIECE_BYTES_MAX))
        return cls(tuple(ranges), tuple(pieces))

    def assemble(self, fetched: Mapping[tuple[int, int], bytes]) -> list[bytes]:
        """Return the requested ranges in their order. Pieces may be short at the end of the object."""
        starts = [start for start, _ in self.pieces]
        return [self._one(start, end, starts, fetched) for start, end in self.requested]

    def _one(self, start: int, end: int, starts: list[int], fetched: Mapping[tuple[int, int], bytes]) -> bytes:
        if start == end:
            return b""
        if (whole := fetched.get((start, end))) is not None:
            return whole
        parts = []
        for piece in self.pieces[bisect_right(starts, start) - 1 :]:
            if piece[0] >= end:
                break
            parts.append(memoryview(fetched[piece])[max(start - piece[0], 0) : end - piece[0]])
        return b"".join(parts)


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sorted ranges, merged if the gap between them is at most `GAP_BYTES_MAX`."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and start - merged[-1][1] <= GAP_BYTES_MAX:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged
