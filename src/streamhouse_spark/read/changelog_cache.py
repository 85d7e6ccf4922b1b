"""The newest changes of a bucket collapsed by key, made once for all tasks of a process that need them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import field

from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.keys.changelog_merge import MergedChangelog

CACHE_BYTES_MAX = 128 << 20
"""Bytes in memory that a process keeps. A larger result is kept only while its task runs."""


@dataclass(slots=True)
class _Entry:
    lock: threading.RLock = field(default_factory=new_lock)
    tail: MergedChangelog | None = None


class ChangelogCache:
    """Results, of which the least recently used goes first. Safe for use by several threads: one computes, the others
    wait for it.

    A range of offsets holds the same changes for ever in one history of a table, which keys name, because one that was
    restored may hold others there. So nothing that is kept can be out of date. A failed computation is tried again by
    the next caller.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = new_lock()

    def get(self, key: Hashable, make: Callable[[], MergedChangelog]) -> MergedChangelog:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.tail is None:
                entry.tail = make()
                self._drop_old()
            return entry.tail

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def _drop_old(self) -> None:
        with self._lock:
            size_bytes = sum(entry.tail.size_bytes for entry in self._entries.values() if entry.tail is not None)
            for key, entry in list(self._entries.items()):
                if size_bytes <= CACHE_BYTES_MAX:
                    return
                if entry.tail is not None:
                    size_bytes -= entry.tail.size_bytes
                    del self._entries[key]


changelog_cache = ChangelogCache()
"""The results of this process."""
