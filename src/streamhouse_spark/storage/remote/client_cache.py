"""The connected clients of this process, by settings."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from streamhouse_spark.core.fork_safety import new_lock, reinit_after_fork

_CLIENTS_MAX: Final = 8

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ClientCache(Generic[K, V]):
    """Creates a client at its first use, and caches a few. A forked child creates its own.

    It must not use its parent's connections.
    """

    def __init__(self, connect: Callable[[K], V]) -> None:
        self._connect = connect
        self._clients: dict[K, V] = {}
        self._lock = new_lock()
        self._inherited: list[dict[K, V]] = []
        reinit_after_fork(self)

    def get(self, settings: K) -> V:
        client = self._clients.get(settings)
        if client is not None:
            return client
        with self._lock:
            if (client := self._clients.get(settings)) is None:
                client = self._connect(settings)
                while len(self._clients) >= _CLIENTS_MAX:
                    self._clients.pop(next(iter(self._clients)))
                self._clients[settings] = client
            return client

    def renew_in_child(self) -> None:
        """Drop the clients without closing them: their sockets belong to the parent."""
        self._inherited.append(self._clients)
        self._clients = {}
