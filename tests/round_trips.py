"""A store in memory that counts requests and round trips: requests that are sent together are one round trip."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.storage.base import Storage


@dataclass
class Cost:
    """Requests of some work, and how many of them followed one another."""

    requests: int = 0
    depth: int = 0
    """Round trips in sequence of the thread that needed the most."""
    kinds: dict[str, int] = field(default_factory=dict)


class RemoteStorage:
    """A store whose every request takes a round trip, and which can send several at once."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._of_thread: dict[int, int] = {}
        self._cost = Cost()

    @contextmanager
    def measured(self) -> Iterator[Cost]:
        """Count what is asked within. Work that it hands to threads counts as deep as the deepest of these threads, and
        comes on top of what the caller asked itself.
        """
        with self._lock:
            self._cost, self._of_thread = Cost(), {}
        cost = self._cost
        yield cost
        own = self._of_thread.pop(threading.get_ident(), 0)
        cost.depth = own + max(self._of_thread.values(), default=0)

    def read_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self._note("read", len(keys))
        return [self._found(key) for key in keys]

    def _found(self, key: str) -> bytes | None:
        try:
            return self._inner.read(key)
        except ObjectNotFoundError:
            return None

    def _note(self, kind: str, requests: int = 1) -> None:
        with self._lock:
            self._cost.requests += requests
            self._cost.kinds[kind] = self._cost.kinds.get(kind, 0) + requests
            thread = threading.get_ident()
            self._of_thread[thread] = self._of_thread.get(thread, 0) + 1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in _REQUESTS:

            def call(*arguments: Any) -> Any:
                self._note(name)
                return found(*arguments)

            return call
        return found


_REQUESTS = {"read", "read_ranges", "size_bytes", "put_if_absent", "put", "create", "list", "list_names", "delete"}
