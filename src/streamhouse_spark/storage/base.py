"""The storage interface: the operations that the protocols need.

Keys are relative to the warehouse root and use ``/`` as separator. Objects are immutable, except hints.

Each method documents when it raises `ObjectNotFoundError` and `ObjectExistsError`. After any other failure, a
`StorageError`, the outcome of a write is **unknown**. Even `ObjectExistsError` is only a hint: HTTP clients retry
internally and may report "exists" for an object that the caller stored. A caller that must know reads the object back.
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
    """An entry of a listing. Listings may lag and never decide correctness."""

    key: str
    size_bytes: int
    modified_ms: int
    """Time by the store's clock at which the object was stored."""


Names = list[str]  # inside the classes below, `list` is a method
Objects = list[ObjectInfo]


class Sink(Protocol):
    """An object that is being written. It becomes visible when the context ends."""

    def write(self, data: Bytes) -> int:
        """Append the bytes of any contiguous buffer."""


class Storage(Protocol):
    @property
    def url(self) -> str:
        """The root as the user wrote it, without credentials."""

    def read(self, key: str) -> bytes:
        """Read the whole object. Raises `ObjectNotFoundError`."""

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read half-open byte ranges of one object, in the given order. The end of the object truncates a range.

        Raises `ObjectNotFoundError`.
        """

    def size_bytes(self, key: str) -> int:
        """Return the size of the object. Raises `ObjectNotFoundError`."""

    def put_if_absent(self, key: str, data: Bytes) -> None:
        """Store the object durably and atomically if the key is absent. Exactly one of several concurrent writers wins.

        Raises `ObjectExistsError`.
        """

    def ensure_durable(self, key: str) -> None:
        """Ensure that a visible object whose put failed survives a power loss, or raise `StorageError`."""

    def put(self, key: str, data: Bytes) -> None:
        """Store or replace the object atomically. For hints only: the last write wins."""

    def create(self, key: str) -> AbstractContextManager[Sink]:
        """Write a large object under a key that no other writer uses.

        The object is durable and visible when the context ends without error.
        """

    def list(self, prefix: str) -> list[ObjectInfo]:
        """List all objects whose key starts with ``prefix``, in no particular order."""

    def list_names(self, prefix: str) -> Names:
        """Return the sorted, distinct path parts directly below ``prefix``, which ends with ``/`` or is empty."""

    def delete(self, key: str) -> None:
        """Delete the object, if it exists."""

    def now_ms(self) -> int:
        """Return the time of the store's clock, in milliseconds since 1970-01-01 UTC."""

    def local_path(self, key: str) -> str | None:
        """Return a local path that can be memory-mapped, or None if the store is remote."""

    def commit_lock(self, key: str) -> AbstractContextManager[None]:
        """Wait briefly for other processes of this host that are about to commit next to ``key``.

        This only avoids lost races. Correctness depends on `put_if_absent` alone.
        """

    def check_writable(self) -> None:
        """Verify that the store honours put-if-absent. Raises `StorageError` with the remedy. Runs once per store."""


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
    """Return the URL of an object for messages. A routing store returns the URL in the store that holds the object."""
    placed = getattr(storage, "url_of", None)
    return str(placed(key)) if placed is not None else f"{storage.url}/{key}"
