"""Put-if-absent with a known outcome: the one commit protocol of the package.

A *slot* is a key that is written once and never replaced: a commit record, a name pointer, a low watermark, a version
of an Iceberg table, or a snapshot of a Paimon table. Writers race for a slot, and exactly one of them wins.

Protocol:

1. Put if absent. If the store acknowledges the put, the writer has won.
2. After any error, read the slot back. The writer's own content: won. Other content: lost. No object: not stored. The
   kind of error does not matter, because HTTP clients retry internally and may report "exists" for the writer's object.
3. If the slot holds the writer's content after a failed put, ensure that the content is durable before using it.

A request that is still in flight may fill an empty slot after a failed put. A writer that retries must therefore put
into the same slot and compare again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CorruptDataError, ObjectExistsError, ObjectNotFoundError, StorageError
from streamhouse_spark.storage.base import Bytes, Storage

T = TypeVar("T")


class PutOutcome(enum.Enum):
    """Which writer owns a slot after a put, as far as known."""

    WON = "mine"
    LOST = "another"
    NOT_STORED = "nobody"
    UNREADABLE = "unreadable"
    """The put failed, and so did reading the slot back. The slot may be won, lost or empty."""
    NOT_DURABLE = "unsure"
    """The slot was won, but its content may not survive a power loss."""


@dataclass(frozen=True, slots=True)
class PutResult(Generic[T]):
    """The outcome of one put into a slot."""

    outcome: PutOutcome
    stored: T | None = None
    """The content that was read back, or None if the put was acknowledged."""
    failure: StorageError | None = None
    """The error of the put."""
    read_error: StorageError | CorruptDataError | None = None
    """The error of reading the slot back, or of making its content durable."""

    def won(self) -> bool:
        """Return whether the put won. Raise `error` if the outcome is neither won nor lost."""
        if self.outcome in (PutOutcome.WON, PutOutcome.LOST):
            return self.outcome is PutOutcome.WON
        raise self.error

    @property
    def error(self) -> StorageError | CorruptDataError:
        """The error because of which the outcome is unknown."""
        error = self.read_error if self.outcome is PutOutcome.UNREADABLE else self.failure
        assert error is not None, "the outcome is known"
        return error


@dataclass(frozen=True, slots=True)
class Slot(Generic[T]):
    """A key that is written once, with functions to read and recognise its content."""

    storage: Storage
    key: str
    read: Callable[[], T]
    """Returns the content. Raises `ObjectNotFoundError` if the slot is empty."""
    is_mine: Callable[[T], bool]
    """Returns whether this attempt put the content. Must return False for the content of any other attempt."""

    def take(self, data: Bytes) -> PutResult[T]:
        """Put ``data`` if the slot is empty, and return the outcome. Sends one request if the put succeeds."""
        try:
            self.storage.put_if_absent(self.key, data)
        except StorageError as error:
            return self.read_back(error)
        return PutResult(PutOutcome.WON)

    def read_back(self, failure: StorageError) -> PutResult[T]:
        """Read the slot back, and return the outcome of a put that failed with ``failure``."""
        try:
            stored = self.read()
        except ObjectNotFoundError:
            return PutResult(PutOutcome.NOT_STORED, failure=failure)
        except (StorageError, CorruptDataError) as error:
            return PutResult(PutOutcome.UNREADABLE, failure=failure, read_error=error)
        if not self.is_mine(stored):
            return PutResult(PutOutcome.LOST, stored, failure)
        if not isinstance(failure, ObjectExistsError):
            try:
                self.storage.ensure_durable(self.key)
            except StorageError as error:
                return PutResult(PutOutcome.NOT_DURABLE, stored, failure, error)
        return PutResult(PutOutcome.WON, stored, failure)


def slot_for_bytes(storage: Storage, key: str, data: bytes) -> Slot[bytes]:
    """Return the slot of ``data``. Its content, which should contain a uuid, must be unique to this attempt."""
    return Slot(storage, key, lambda: storage.read(key), data.__eq__)


def ensure_stored(storage: Storage, key: str, data: Bytes) -> None:
    """Store ``data`` under ``key`` if the key is absent.

    For keys that every writer gives equal content, or that the caller reads back anyway. Raises `StorageError` if the
    outcome is unknown.
    """
    with suppress(ObjectExistsError):
        storage.put_if_absent(key, data)
