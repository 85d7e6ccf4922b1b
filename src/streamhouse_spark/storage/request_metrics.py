"""Counts the requests of this process to object stores by folder, as stores bill them.

Retries and rejected requests count, because stores bill them too. Not counted are local disks and requests of other
clients, such as Spark's own reader and readers of lake tables outside the warehouse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from operator import add, attrgetter, sub
from typing import Final, Literal

from streamhouse_spark.core.concurrency import new_lock, reinit_after_fork
from streamhouse_spark.core.lazy_dataclass import dataclass

Kind = Literal["gets", "heads", "puts", "lists", "deletes"]

_FOLDER_PARTS: Final = 3
"""Path parts that identify a folder. The log of a table, or a lake table, has this many."""
_FOLDERS_MAX: Final = 50_000


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Numbers of requests and bytes. Bytes are those of objects, without headers."""

    gets: int = 0
    """Reads of objects and of byte ranges."""
    heads: int = 0
    """Requests for the size of an object."""
    puts: int = 0
    """Writes of objects and parts, including the start and the end of multipart uploads."""
    lists: int = 0
    """Pages of listings."""
    deletes: int = 0
    refused_puts: int = 0
    """The part of ``puts`` that found an existing object, because another writer won."""
    failures: int = 0
    """Failed requests of any kind: throttled, denied or interrupted."""
    sent_bytes: int = 0
    received_bytes: int = 0

    @property
    def total(self) -> int:
        return self.gets + self.heads + self.puts + self.lists + self.deletes

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(*map(add, _counts_of(self), _counts_of(other)))

    def __sub__(self, earlier: RequestCounts) -> RequestCounts:
        """Return the requests since the ``earlier`` count."""
        return RequestCounts(*map(sub, _counts_of(self), _counts_of(earlier)))


_counts_of: Final = attrgetter(*(f.name for f in fields(RequestCounts)))
NO_REQUESTS: Final = RequestCounts()


class _RequestCounter:
    """Counts the requests of this process by store and folder. A forked child starts at zero."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._counts: dict[tuple[str, str], RequestCounts] = {}

    def renew_in_child(self) -> None:
        self._counts = {}

    def note(self, url: str, key: str, requests: RequestCounts) -> None:
        """Count requests for an object, or for the objects whose keys start with ``key``."""
        folder = (url, "/".join(key.split("/")[:-1][:_FOLDER_PARTS]))
        with self._lock:
            if folder not in self._counts and len(self._counts) >= _FOLDERS_MAX:
                folder = (url, "")
            self._counts[folder] = self._counts.get(folder, NO_REQUESTS) + requests

    def of(self, url: str, prefixes: Iterable[str] = ("",)) -> RequestCounts:
        """Return the requests in folders of a store that start with one of the prefixes.

        Each prefix ends with ``/`` or is empty.
        """
        chosen = tuple(prefixes)
        with self._lock:
            counts = list(self._counts.items())
        counters = (n for (of_url, folder), n in counts if of_url == url and f"{folder}/".startswith(chosen))
        return sum(counters, NO_REQUESTS)

    def total(self) -> RequestCounts:
        """Return the requests to all stores."""
        with self._lock:
            return sum(self._counts.values(), NO_REQUESTS)


METER = _RequestCounter()
reinit_after_fork(METER)
