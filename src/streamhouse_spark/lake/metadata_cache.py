"""Caches of lake metadata: of files with names that are never reused, of parsed values, and of one round.

In a restored or moved copy such a name has the same bytes, or does not exist. So a file is read once per store.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import ReadsMany

KEPT_BYTES_MAX: Final = 32 << 20
"""Byte limit of each store's cache, and of one prefetch."""

_stores: WeakKeyDictionary[Storage, _CachedFiles] = WeakKeyDictionary()
_lock = new_lock()


K = TypeVar("K")
V = TypeVar("V")


class RecentValues(Generic[K, V]):
    """The ``num_max`` values of this process that were used last, by key."""

    def __init__(self, num_max: int) -> None:
        self._num_max = num_max
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = new_lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if (value := self._values.get(key)) is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._num_max:
                self._values.popitem(last=False)

    def pop(self, key: K) -> V | None:
        with self._lock:
            return self._values.pop(key, None)


class RoundCache(threading.local, Generic[V]):
    """The first state of each table that this thread reads within `LakeTable.cache_metadata_for_round`.

    A commit writes the successor of that state, and fails if the table changed.
    """

    _values: dict[tuple[str, str], V] | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        before = self._values
        self._values = {} if before is None else before
        try:
            yield
        finally:
            self._values = before

    def get(self, storage: Storage, key: str) -> V | None:
        return self._values.get((storage.url, key)) if self._values else None

    def put(self, storage: Storage, key: str, value: V) -> None:
        if self._values is not None:
            self._values[storage.url, key] = value

    def forget(self) -> None:
        """Make the next step read the state itself."""
        if self._values:
            self._values.clear()


class _CachedFiles:
    """Files of one store; the oldest are evicted."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._size_bytes = 0
        self._lock = new_lock()

    def find(self, key: str) -> bytes | None:
        with self._lock:
            if (data := self._files.get(key)) is not None:
                self._files.move_to_end(key)
            return data

    def keep(self, key: str, data: bytes) -> None:
        with self._lock:
            self._size_bytes += len(data) - len(self._files.pop(key, b""))
            self._files[key] = data
            while self._size_bytes > KEPT_BYTES_MAX:
                self._size_bytes -= len(self._files.popitem(last=False)[1])


def prefetch_metadata(storage: Storage, files: Iterable[tuple[str, int]]) -> dict[str, bytes]:
    """Return metadata files, given by key and size, that are about to be read: cached or fetched concurrently.

    Returns none on a local store. Leaves out missing files, and those beyond `KEPT_BYTES_MAX`.
    """
    if not isinstance(storage, ReadsMany):
        return {}
    with _lock:
        cached = _stores.setdefault(storage, _CachedFiles())
    contents: dict[str, bytes] = {}
    missing: list[str] = []
    left_bytes = KEPT_BYTES_MAX
    for key, size_bytes in files:
        left_bytes -= size_bytes
        if (data := cached.find(key)) is not None:
            contents[key] = data
        elif left_bytes >= 0:
            missing.append(key)
    for key, read in zip(missing, storage.read_many(missing) if missing else (), strict=True):
        if read is not None:
            cached.keep(key, read)
            contents[key] = read
    return contents


def cache_metadata(storage: Storage, written: Mapping[str, bytes]) -> None:
    """Cache metadata files that this process has just stored, because it probably reads them next."""
    if isinstance(storage, ReadsMany):
        with _lock:
            cached = _stores.setdefault(storage, _CachedFiles())
        for key, data in written.items():
            if len(data) <= KEPT_BYTES_MAX // 8:
                cached.keep(key, data)
