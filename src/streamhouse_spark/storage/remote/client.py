"""The client interface of object stores: every method sends one request once, synchronously.

Names are complete: they start at the root of the bucket, of the Azure container or of the HDFS file system. Every
failed request raises one of the client's `failures`, which `classify` classifies.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from streamhouse_spark.core.concurrency import new_lock, reinit_after_fork
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import StorageRefusedError
from streamhouse_spark.storage.base import Bytes
from streamhouse_spark.storage.remote.retry import Failure
from streamhouse_spark.storage.remote.setting_parsers import list_secrets_to_mask

_DATE_RESOLUTION_MS = 1000


class StoreClock:
    """The clock of the store, as an offset from a monotonic clock.

    The ``Date`` of a response was written between sending the request and receiving the response, and is truncated to
    whole seconds. So each response bounds the offset. Intersecting the bounds of many responses reduces the error below
    a second. If a response contradicts the bounds, because the store's clock was set or another front end responded,
    its bounds replace them.

    Times never decrease between two such replacements: a narrower bound may imply an earlier time than a returned one,
    and two commits of one process would have decreasing times.
    """

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self._bounds: tuple[int, int] | None = None
        self._store_ms = 0
        """The latest returned time since the bounds were last replaced."""
        self._lock = new_lock()

    def observe(self, date: str | None, sent_boot_ms: int, received_boot_ms: int) -> None:
        """Process the ``Date`` header of a response. An absent or invalid header is ignored."""
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
        """Return the time of the store's clock, or None before the first response."""
        with self._lock:
            if self._bounds is None:
                return None
            self._store_ms = max(self._store_ms, self._boot_ms() + sum(self._bounds) // 2)
            return self._store_ms


_CLIENTS_MAX: Final = 8

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ClientCache(Generic[K, V]):
    """Creates a client at its first use, and caches a few.

    A forked child creates its own clients, because it must not use the connections of its parent.
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
class ListedBlob:
    """An object in a listing."""

    name: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ListingPage:
    """A page of a listing."""

    blobs: Sequence[ListedBlob]
    prefixes: Sequence[str]
    """Names of folders, with the trailing delimiter."""
    next_token: str | None
    """The continuation token of the next page, or None for the last page."""


class TokenFile:
    """A secret in a file, which is read again when a store rejects it. Thread-safe."""

    def __init__(self, path: str, setting: str) -> None:
        """``setting`` is the setting that names the file. Raises `StorageRefusedError` if the file cannot be read."""
        self._path = path
        self._setting = setting
        self._lock = new_lock()
        self.text = self._read()
        self.version = 0
        """Number of renewals."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never appear in a message."""
        return list_secrets_to_mask(self.text)

    def renew(self, version: int) -> bool:
        """Read the file again, and return whether the secret differs from that of ``version``.

        Raises `StorageRefusedError` if the file cannot be read.
        """
        with self._lock:
            if version == self.version and (text := self._read()) != self.text:
                self.text = text
                self.version += 1
            return version != self.version

    def _read(self) -> str:
        try:
            text = Path(self._path).read_text().strip()
        except (OSError, ValueError) as error:
            raise StorageRefusedError(
                f"cannot read the file of {self._setting}: {error}; write the secret to the file, and make it "
                "readable for this process"
            ) from error
        if not text:
            raise StorageRefusedError(f"the file of {self._setting}, {self._path}, is empty: write the secret into it")
        return text


def open_token_file(path: str | None, setting: str) -> TokenFile | None:
    return TokenFile(path, setting) if path else None


class MultipartUpload(Protocol):
    """A multipart upload in progress."""

    def send(self, number: int, body: io.BytesIO, *, is_last: bool) -> None:
        """Send a part. Numbers start at 1."""

    def finish(self) -> None:
        """Make the object visible if the key is absent."""

    def abort(self) -> None:
        """Remove the uploaded parts."""


class StoreClient(Protocol):
    """A connected client with the requests that every store supports. Thread-safe, for one process."""

    clock: StoreClock
    failures: tuple[type[Exception], ...]
    """Every exception that a request can raise, except bugs."""
    condition: str
    """The store's mechanism for put-if-absent, for messages."""
    is_known: bool
    """Whether concurrent puts of this store are known to be atomic."""
    token_file: TokenFile | None
    """The file with the secret of requests, if configured."""

    def classify_failure(self, error: Exception) -> Failure:
        """Classify a failure."""

    def get(self, name: str) -> bytes: ...

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """Read a byte range, which the end of the object truncates."""

    def size_bytes(self, name: str) -> int: ...

    def delete(self, name: str) -> None: ...

    def request_time(self) -> None:
        """Send a small request, so that `clock` reads the time from the response."""


class BucketClient(StoreClient, Protocol):
    """A connected client of one bucket of an object store."""

    parts_in_flight_max: int

    def attempt(self, name: str) -> str | None:
        """Return the attempt id in an object's metadata."""

    def put(self, name: str, body: Bytes, *, is_absent: bool, attempt: str | None = None) -> None:
        """Store an object. With ``is_absent``, only if the key is absent."""

    def begin(self, name: str, attempt: str) -> MultipartUpload: ...

    def page(self, prefix: str, delimiter: str | None, page_token: str | None) -> ListingPage: ...
