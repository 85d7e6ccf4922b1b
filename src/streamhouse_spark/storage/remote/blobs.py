"""The client interface of object stores: every method sends one request once, synchronously.

Names are complete: they start at the root of the bucket (for Azure the container, for HDFS the file system). Every
failed request raises one of the client's `failures`, which `judge` classifies.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Protocol

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.storage.base import Bytes
from streamhouse_spark.storage.remote.failures import Failure
from streamhouse_spark.storage.remote.store_clock import StoreClock
from streamhouse_spark.storage.remote.token_file import TokenFile


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
