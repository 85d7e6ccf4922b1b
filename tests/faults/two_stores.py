"""Two stores within one, so that a fault can come at each call to either of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from streamhouse_spark.core.clock import World
from streamhouse_spark.log.catalog.log_locations import LogLocationResolver
from streamhouse_spark.storage.base import Bytes, ObjectInfo, Sink, Storage
from streamhouse_spark.storage.routing import RoutingStorage, make_routing_storage

HOT = "memory://hot/logs"


class Within:
    """The objects of a store below a folder, as a store."""

    def __init__(self, outer: Storage, folder: str, url: str) -> None:
        self._outer = outer
        self._folder = folder
        self.url = url

    def read(self, key: str) -> bytes:
        return self._outer.read(self._folder + key)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._outer.read_ranges(self._folder + key, ranges)

    def size_bytes(self, key: str) -> int:
        return self._outer.size_bytes(self._folder + key)

    def put_if_absent(self, key: str, data: Bytes) -> None:
        self._outer.put_if_absent(self._folder + key, data)

    def ensure_durable(self, key: str) -> None:
        self._outer.ensure_durable(self._folder + key)

    def put(self, key: str, data: Bytes) -> None:
        self._outer.put(self._folder + key, data)

    def create(self, key: str) -> AbstractContextManager[Sink]:
        return self._outer.create(self._folder + key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        found = self._outer.list(self._folder + prefix)
        return [replace(info, key=info.key.removeprefix(self._folder)) for info in found]

    def list_names(self, prefix: str) -> list[str]:
        return self._outer.list_names(self._folder + prefix)

    def delete(self, key: str) -> None:
        self._outer.delete(self._folder + key)

    def now_ms(self) -> int:
        return self._outer.now_ms()

    def local_path(self, key: str) -> str | None:
        return None

    def commit_lock(self, key: str) -> AbstractContextManager[None]:
        return self._outer.commit_lock(self._folder + key)

    def check_writable(self) -> None:
        self._outer.check_writable()


def two_stores(outer: Storage, world: World, url: str = "memory://cold/wh") -> RoutingStorage:
    """The warehouse's store within ``outer``, with the logs at `HOT` in another part of it."""
    home = Within(outer, "cold/", url)
    return make_routing_storage(
        home, LogLocationResolver(home, {}, world, lambda location: Within(outer, "hot/", location))
    )
