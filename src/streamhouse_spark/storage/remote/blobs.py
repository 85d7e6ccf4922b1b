"""The requests of a store whose client is synchronous, each sent once.

Names are whole: they begin at the root of the bucket (of Azure, the container; of HDFS, the file system). Every failed
request is one of the client's `failures`, which `judge` understands.
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
    """An object of a listing."""

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
    """The mark of the next page."""


class LargeBlob(Protocol):
    """An object that is sent in parts."""

    def send(self, number: int, body: io.BytesIO, *, is_last: bool) -> None:
        """Send a part. Numbers begin at 1."""

    def finish(self) -> None:
        """Make the object visible, unless there is one."""

    def abort(self) -> None:
        """Remove the parts that were sent."""


class BlobClient(Protocol):
    """A connected client of a store: the requests that every store has. Safe for threads, for one process."""

    clock: StoreClock
    failures: tuple[type[Exception], ...]
    """Every exception that a request can raise, except defects."""
    condition: str
    """The store's word for put-if-absent."""
    is_known: bool
    """Whether the store is known to decide between writers."""
    token_file: TokenFile | None
    """The secret that requests carry, where it is one in a file."""

    def judge(self, error: Exception) -> Failure:
        """Tell what a failure means."""

    def get(self, name: str) -> bytes: ...

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """Read bytes, fewer where the object ends."""

    def size_bytes(self, name: str) -> int: ...

    def delete(self, name: str) -> None: ...

    def ask_time(self) -> None:
        """Send a small request, whose answer tells `clock` the store's time."""


class Blobs(BlobClient, Protocol):
    """A connected client of one bucket of an object store."""

    parts_in_flight_max: int

    def attempt(self, name: str) -> str | None:
        """Return the attempt that an object carries."""

    def put(self, name: str, body: Bytes, *, is_absent: bool, attempt: str | None = None) -> None:
        """Store an object. With ``is_absent`` only where there is none."""

    def begin(self, name: str, attempt: str) -> LargeBlob: ...

    def page(self, prefix: str, delimiter: str | None, following: str | None) -> Page: ...
