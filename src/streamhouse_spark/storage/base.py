"""The storage interface: exactly the operations that the protocols need.

Keys are relative, with ``/`` between their parts; the root is the warehouse. Objects are immutable, except hints.
Implementations: `streamhouse_spark.storage.local.LocalStorage`, `streamhouse_spark.storage.s3.storage.S3Storage` and
`streamhouse_spark.storage.memory.MemoryStorage` (one process, for tests).

Errors: `ObjectNotFoundError` and `ObjectExistsError` where a method says so. After any other failure, a `StorageError`,
the outcome of a write is **unknown**. `ObjectExistsError` is only a hint too: clients retry inside, and report "exists"
for an object of their own. A caller that must know reads the object back.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import ObjectNotFoundError

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it. Listings may lag and never decide correctness."""

    key: str
    size_bytes: int
    modified_ms: int
    """Store time at which the object was stored."""


Names = list[str]  # inside the classes below, `list` is a method
Objects = list[ObjectInfo]


class Sink(Protocol):
    """An object that is being written. `write` takes any contiguous buffer; nothing is visible before the
    context ends.
    """

    def write(self, data: Bytes) -> int: ...


class Storage(Protocol):
    @property
    def url(self) -> str:
        """The root as the user wrote it, without credentials."""

    def read(self, key: str) -> bytes:
        """Read the whole object. Raises `ObjectNotFoundError`."""

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read half-open byte ranges of one object, in the given order. A range is cut at the end of the object.

        Raises `ObjectNotFoundError`.
        """

    def size_bytes(self, key: str) -> int:
        """Return the size of the object. Raises `ObjectNotFoundError`."""

    def put_if_absent(self, key: str, data: Bytes) -> None:
        """Store the object durably and atomically, unless one exists. Of racing writers exactly one wins.

        Raises `ObjectExistsError`.
        """

    def ensure_durable(self, key: str) -> None:
        """Make a visible object whose put failed survive a power loss, or raise `StorageError`."""

    def put(self, key: str, data: Bytes) -> None:
        """Store or replace the object atomically. For hints only: the last writer wins."""

    def create(self, key: str) -> AbstractContextManager[Sink]:
        """Write a large object under a key that no other writer uses. Durable and visible when the context ends without
        error.
        """

    def list(self, prefix: str) -> list[ObjectInfo]:
        """List all objects whose key begins with ``prefix``, in no order."""

    def list_names(self, prefix: str) -> Names:
        """Return the distinct next path parts after ``prefix`` (which ends with ``/`` or is empty), sorted."""

    def delete(self, key: str) -> None:
        """Delete the object, if it exists."""

    def now_ms(self) -> int:
        """Return the store's own time, in milliseconds since 1970-01-01 UTC."""

    def local_path(self, key: str) -> str | None:
        """Return a path on this machine that can be memory-mapped; None if there is none."""

    def commit_lock(self, key: str) -> AbstractContextManager[None]:
        """Wait a short while for other processes of this host that are about to commit next to ``key``. Only saves
        lost races; correctness rests on `put_if_absent`.
        """

    def check_writable(self) -> None:
        """Prove that this store honours put-if-absent. Raises `StorageError` with the remedy. Runs once per store."""


def read_or_none(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.read(key)
    except ObjectNotFoundError:
        return None


def object_exists(storage: Storage, key: str) -> bool:
    try:
        storage.size_bytes(key)
    except ObjectNotFoundError:
        return False
    return True


def url_of(storage: Storage, key: str) -> str:
    """Return the URL of an object for messages, in the store that holds it if there are several."""
    placed = getattr(storage, "url_of", None)
    return str(placed(key)) if placed is not None else f"{storage.url}/{key}"
