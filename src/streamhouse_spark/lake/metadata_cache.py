"""Caches of lake metadata: files by name, parsed values, and the state that one round reads.

File names are never reused: in a restored or moved copy, a name has the same bytes or does not exist. So each file is
read once per store.
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
from streamhouse_spark.storage.prefetch import SupportsBatchReads

CACHE_BYTES_MAX: Final = 32 << 20
"""Maximum bytes of the cache of a store, and of one prefetch."""

_stores: WeakKeyDictionary[Storage, _CachedFiles] = WeakKeyDictionary()
_lock = new_lock()


K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """An LRU cache of ``num_max`` values of this process."""

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

    A commit writes the successor of that state, and fails if the table changed concurrently.
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
        """Clear the cache, so that the next step reads the state."""
        if self._values:
            self._values.clear()


class _CachedFiles:
    """An LRU cache of the files of one store."""

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
            while self._size_bytes > CACHE_BYTES_MAX:
                self._size_bytes -= len(self._files.popitem(last=False)[1])


def prefetch_metadata(storage: Storage, files: Iterable[tuple[str, int]]) -> dict[str, bytes]:
    """Return metadata files, which are given by key and size, from the cache or from one batch of reads.

    Omits missing files and those beyond `CACHE_BYTES_MAX`. Returns nothing for a local store.
    """
    if not isinstance(storage, SupportsBatchReads):
        return {}
    with _lock:
        cached = _stores.setdefault(storage, _CachedFiles())
    contents: dict[str, bytes] = {}
    missing: list[str] = []
    left_bytes = CACHE_BYTES_MAX
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
    """Cache metadata files that this process has stored, because it probably reads them next."""
    if isinstance(storage, SupportsBatchReads):
        with _lock:
            cached = _stores.setdefault(storage, _CachedFiles())
        for key, data in written.items():
            if len(data) <= CACHE_BYTES_MAX // 8:
                cached.keep(key, data)
