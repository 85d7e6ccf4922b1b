"""A remote store's own time, derived from the ``Date`` of its responses.

The connected clients of this process, by settings.

The client interface of object stores: every method sends one request once, synchronously.

Names are complete: they start at the root of the bucket (for Azure the container, for HDFS the file system). Every
failed request raises one of the client's `failures`, which `judge` classifies.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable, Sequence
from email.utils import parsedate_to_datetime
from typing import Final, Generic, Protocol, TypeVar

from streamhouse_spark.core.concurrency import new_lock, reinit_after_fork
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.storage.base import Bytes
from streamhouse_spark.storage.remote.retry import Failure
from streamhouse_spark.storage.remote.settings import TokenFile

_DATE_RESOLUTION_MS = 1000


class StoreClock:
    """The store's time as an offset from a monotonic clock.

    Each response bounds the offset: its ``Date`` (truncated to whole seconds) was written between sending the request
    and receiving the response. Bounds of many responses are intersected, so the error falls below a second. Bounds that
    contradict the latest response (the store's clock was set, or another front end responded) are dropped.

    The returned time decreases only then. A narrower bound may lie before a time that was returned already, and two
    commits of one process would have decreasing times.
    """

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self._bounds: tuple[int, int] | None = None
        self._store_ms = 0
        """The latest time that was returned since the bounds were last dropped."""
        self._lock = new_lock()

    def observe(self, date: str | None, sent_boot_ms: int, received_boot_ms: int) -> None:
        """Process the ``Date`` header of a response; an absent or invalid one is ignored."""
        try:
            date_ms = int(parsedate_to_datetime(date or "").timestamp()) * 1000
        except ValueError:
            return
        low, high = date_ms - received_boot_ms, date_ms + _DATE_RESOLUTION_MS - sent_boot_ms
        with self._lock:
            if self._bounds is not None:
                overlap = max(low, self._bounds[0]), min(high, self._bounds[1])
                if overlap[0] <= overlap[1]:
                    low, high = overlap
                else:
                    self._store_ms = 0
            self._bounds = low, high

    def now_ms(self) -> int | None:
        """Return the store's time; None before the first response."""
        with self._lock:
            if self._bounds is None:
                return None
            self._store_ms = max(self._store_ms, self._boot_ms() + sum(self._bounds) // 2)
            return self._store_ms


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


@dataclass(frozen=True, slots=True)
class Blob:
    """An object in a listing."""

    name: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a listing."""

    blobs: Sequence[Blob]
    prefixes: Sequence[str]
    """Names of folders, which end with the delimiter."""
    following: str | None
    """The continuation token of the next page."""


class MultipartUpload(Protocol):
    """A multipart upload in progress."""

    def send(self, number: int, body: io.BytesIO, *, is_last: bool) -> None:
        """Send a part. Numbers start at 1."""

    def finish(self) -> None:
        """Make the object visible, unless one exists."""

    def abort(self) -> None:
        """Remove the parts that were sent."""


class BlobClient(Protocol):
    """A connected client with the requests that every store has. Thread-safe, for one process."""

    clock: StoreClock
    failures: tuple[type[Exception], ...]
    """Every exception that a request can raise, except bugs."""
    condition: str
    """The store's name for put-if-absent."""
    is_known: bool
    """Whether the store is known to decide between racing writers."""
    token_file: TokenFile | None
    """The file with the secret of requests, if there is one."""

    def judge(self, error: Exception) -> Failure:
        """Classify a failure."""

    def get(self, name: str) -> bytes: ...

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """Read bytes; fewer at the end of the object."""

    def size_bytes(self, name: str) -> int: ...

    def delete(self, name: str) -> None: ...

    def ask_time(self) -> None:
        """Send a small request, so that `clock` learns the store's time from the response."""


class Blobs(BlobClient, Protocol):
    """A connected client of one bucket of an object store."""

    parts_in_flight_max: int

    def attempt(self, name: str) -> str | None:
        """Return the attempt id in an object's metadata."""

    def put(self, name: str, body: Bytes, *, is_absent: bool, attempt: str | None = None) -> None:
        """Store an object. With ``is_absent`` only if none exists."""

    def begin(self, name: str, attempt: str) -> MultipartUpload: ...

    def page(self, prefix: str, delimiter: str | None, following: str | None) -> Page: ...
