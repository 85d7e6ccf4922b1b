"""Cache of lake metadata files with names that are never reused; prefetches several at once.

In a restored or moved copy such a name has the same bytes, or does not exist. So a file is read once per store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final
from weakref import WeakKeyDictionary

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import ReadsMany

KEPT_BYTES_MAX: Final = 32 << 20
"""Byte limit of each store's cache, and of one prefetch."""


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


_stores: WeakKeyDictionary[Storage, _CachedFiles] = WeakKeyDictionary()
_lock = new_lock()


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
