"""Storage that routes the keys of some folders to other stores.

Each call is sent to the store of its key. Keys are the same in every store, so callers need not know which store holds
an object. A listing covers only the store of its prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.storage.base import Bytes, Names, ObjectInfo, Objects, Sink, Storage, read_or_none
from streamhouse_spark.storage.prefetch import SupportsBatchReads

ReadResults = list[bytes | None]


class StoreResolver(Protocol):
    """Maps keys of some folders to other stores."""

    def place(self, key: str) -> Storage | None:
        """Return the store of an object, or of all objects with a prefix. Returns None for the home store."""

    def writable_place(self, key: str) -> Storage | None:
        """Return the store for a write or delete of an object. Raises if the write is not allowed."""

    def look_up(self, keys: Sequence[str]) -> None:
        """Resolve the stores of many objects concurrently, so that `place` need not resolve them one by one."""

    def is_hidden(self, key: str) -> bool:
        """Return whether an object in another store is the routing metadata, which listings omit."""


class RoutingStorage:
    """The store ``home``, except for folders in other stores. Its clock is that of ``home``."""

    def __init__(self, home: Storage, places: StoreResolver) -> None:
        self.home = home
        self.places = places

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.home.url!r})"

    @property
    def url(self) -> str:
        return self.home.url

    def url_of(self, key: str) -> str:
        """Return the URL of an object in the store that holds it."""
        return f"{self._at(key).url}/{key}"

    def read(self, key: str) -> bytes:
        return self._at(key).read(key)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._at(key).read_ranges(key, ranges)

    def size_bytes(self, key: str) -> int:
        return self._at(key).size_bytes(key)

    def put_if_absent(self, key: str, data: Bytes) -> None:
        self._to(key).put_if_absent(key, data)

    def ensure_durable(self, key: str) -> None:
        self._to(key).ensure_durable(key)

    def put(self, key: str, data: Bytes) -> None:
        self._to(key).put(key, data)

    def create(self, key: str) -> AbstractContextManager[Sink]:
        return self._to(key).create(key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        place = self.places.place(prefix)
        if place is None:
            return self.home.list(prefix)
        return [info for info in place.list(prefix) if not self.places.is_hidden(info.key)]

    def list_temporary(self, prefix: str) -> Objects:
        """List the temporary files that crashed writers left behind. Stores without such files return none."""
        list_temporary = getattr(self._at(prefix), "list_temporary", None)
        objects: Objects = [] if list_temporary is None else list_temporary(prefix)
        return objects

    def list_names(self, prefix: str) -> Names:
        return self._at(prefix).list_names(prefix)

    def delete(self, key: str) -> None:
        self._to(key).delete(key)

    def now_ms(self) -> int:
        return self.home.now_ms()

    def local_path(self, key: str) -> str | None:
        return self._at(key).local_path(key)

    def commit_lock(self, key: str) -> AbstractContextManager[None]:
        return self._to(key).commit_lock(key)

    def check_writable(self) -> None:
        self.home.check_writable()

    def _at(self, key: str) -> Storage:
        return self.places.place(key) or self.home

    def _to(self, key: str) -> Storage:
        return self.places.writable_place(key) or self.home


class BatchRoutingStorage(RoutingStorage):
    """A routing store whose home store has slow requests. Objects of all stores are read concurrently."""

    def read_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects, with one batch per store. Returns None for an absent object."""
        self.places.look_up(keys)
        keys_by_store: dict[int, tuple[Storage, list[str]]] = {}
        for key in keys:
            store = self._at(key)
            keys_by_store.setdefault(id(store), (store, []))[1].append(key)
        if len(keys_by_store) == 1:
            return _read_all(*keys_by_store.popitem()[1])
        groups = list(keys_by_store.values())
        contents_by_key: dict[str, bytes | None] = {}
        for (_, store_keys), contents in zip(
            groups, parallel_map(lambda group: _read_all(*group), groups), strict=True
        ):
            contents_by_key.update(zip(store_keys, contents, strict=True))
        return [contents_by_key[key] for key in keys]


def make_routing_storage(home: Storage, places: StoreResolver) -> RoutingStorage:
    """Return a routing store, with batched reads if ``home`` has them."""
    return (BatchRoutingStorage if isinstance(home, SupportsBatchReads) else RoutingStorage)(home, places)


def _read_all(store: Storage, keys: Sequence[str]) -> ReadResults:
    if isinstance(store, SupportsBatchReads):
        return store.read_many(keys)
    return [read_or_none(store, key) for key in keys]
