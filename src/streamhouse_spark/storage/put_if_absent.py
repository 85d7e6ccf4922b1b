"""Put-if-absent with a known outcome: the one commit protocol of the package.

A *slot* is a key that is written once and never replaced: a numbered record of a log, a name pointer, a watermark, a
version of an Iceberg table or a snapshot of a Paimon table. Writers race for the same slot, and exactly one wins.

Protocol:

1. Put if absent. If the store acknowledges the put, the writer has won.
2. On any error, read the slot back and compare its content. Own content: won. Other content: lost. No object: not
   stored. The kind of the error decides nothing, because clients of a store retry inside and report "exists" for an
   object of their own.
3. If own content was read back after a failed put, make sure that it is durable before anything builds on it.

A slot that is empty after a failed put may still be filled by a request in flight. A writer that retries must therefore
put into the same slot and compare again.
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
    """Who owns a slot after a put, as far as the writer can tell."""

    WON = "mine"
    LOST = "another"
    NOT_STORED = "nobody"
    UNREADABLE = "unreadable"
    """The put failed and the slot cannot be read back: it was won or lost, or is empty."""
    NOT_DURABLE = "unsure"
    """The slot was won, but its content may not survive a power loss."""


@dataclass(frozen=True, slots=True)
class PutResult(Generic[T]):
    """The outcome of one put into a slot."""

    outcome: PutOutcome
    stored: T | None = None
    """The content that was read back; None if the put was acknowledged."""
    failure: StorageError | None = None
    """The error of the put."""
    read_error: StorageError | CorruptDataError | None = None
    """The error of reading back, or of making the content durable."""

    def won(self) -> bool:
        """Return whether the put won. Raise `error` if the outcome is neither won nor lost."""
        if self.outcome in (PutOutcome.WON, PutOutcome.LOST):
            return self.outcome is PutOutcome.WON
        raise self.error

    @property
    def error(self) -> StorageError | CorruptDataError:
        """The error that leaves the outcome unknown."""
        error = self.read_error if self.outcome is PutOutcome.UNREADABLE else self.failure
        assert error is not None, "the outcome is known"
        return error


@dataclass(frozen=True, slots=True)
class Slot(Generic[T]):
    """A key that is written once, and how to read and compare its content."""

    storage: Storage
    key: str
    read: Callable[[], T]
    """Returns the content. Raises `ObjectNotFoundError` if the slot is empty."""
    is_mine: Callable[[T], bool]
    """Returns whether this attempt put the content. No other attempt may put content that this accepts."""

    def take(self, data: Bytes) -> PutResult[T]:
        """Put ``data`` if the slot is empty, and return the outcome. One request if the put succeeds."""
        try:
            self.storage.put_if_absent(self.key, data)
        except StorageError as error:
            return self.look(error)
        return PutResult(PutOutcome.WON)

    def look(self, failure: StorageError) -> PutResult[T]:
        """Return the outcome of a put that reported ``failure``, by reading the slot back."""
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
    """Return a slot for ``data`` that no other attempt puts, such as bytes with a uuid."""
    return Slot(storage, key, lambda: storage.read(key), data.__eq__)


def ensure_stored(storage: Storage, key: str, data: Bytes) -> None:
    """Store ``data`` under ``key`` unless an object exists there.

    For keys whose content is the same whoever puts it, or that the caller reads back in any case. Raises `StorageError`
    if the outcome is unknown.
    """
    with suppress(ObjectExistsError):
        storage.put_if_absent(key, data)
