"""Slots: numbered keys of a storage, each of which has one owner for good.

Records of a log, pointers of names, floors, versions of an Iceberg table and snapshots of a Paimon table are slots.

**Commit point** of taking one: put-if-absent of its key. Whatever the put reports, the slot itself is asked afterwards:
mine means that the put was done, another's means that the race was lost, empty means that nothing happened yet. The
kind of an exception decides nothing, because clients retry inside and report "exists" for an object of their own.

An empty slot may still be filled by a request that was given up. So a caller that tries again puts under the same
number, and compares again.
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
    """The owner of a slot, as far as a look at it tells."""

    WON = "mine"
    LOST = "another"
    NOT_STORED = "nobody"
    UNREADABLE = "unreadable"
    """The put failed, and so did the look: the slot is mine, another's or empty."""
    NOT_DURABLE = "unsure"
    """The slot is mine, and may be empty after a power loss."""


@dataclass(frozen=True, slots=True)
class PutResult(Generic[T]):
    """The outcome of one attempt to take a slot."""

    outcome: PutOutcome
    stored: T | None = None
    """The content that was read back. A put that was acknowledged is not looked at."""
    failure: StorageError | None = None
    """The error of the put."""
    read_error: StorageError | CorruptDataError | None = None
    """The error of the look, where the slot is unreadable or unsure."""

    def is_won(self) -> bool:
        """Tell whether the slot is mine, or another's. Raises `error` where it is neither for sure."""
        if self.outcome in (PutOutcome.WON, PutOutcome.LOST):
            return self.outcome is PutOutcome.WON
        raise self.error

    @property
    def error(self) -> StorageError | CorruptDataError:
        """The error that leaves the owner open."""
        error = self.read_error if self.outcome is PutOutcome.UNREADABLE else self.failure
        assert error is not None, "the owner is known"
        return error


@dataclass(frozen=True, slots=True)
class Slot(Generic[T]):
    """One key, with the way to compare its content."""

    storage: Storage
    key: str
    read: Callable[[], T]
    """Gives the content of the slot. Raises `ObjectNotFoundError` where it is empty."""
    is_mine: Callable[[T], bool]
    """Tells content that this attempt put from all content that others put."""

    def take(self, data: Bytes) -> PutResult[T]:
        """Put ``data`` into the slot unless it is taken, and tell who has it. One request where the put succeeds."""
        try:
            self.storage.put_if_absent(self.key, data)
        except StorageError as error:
            return self.look(error)
        return PutResult(PutOutcome.WON)

    def look(self, failure: StorageError) -> PutResult[T]:
        """Read the slot back after the ``failure`` of a put, and tell who has it."""
        try:
            stored = self.read()
        except ObjectNotFoundError:
            return PutResult(PutOutcome.NOT_STORED, failure=failure)
        except (StorageError, CorruptDataError) as error:
            return PutResult(PutOutcome.UNREADABLE, failure=failure, read_error=error)
        if not self.is_mine(stored):
            return PutResult(PutOutcome.LOST, stored, failure)
        if not isinstance(failure, ObjectExistsError):  # it is visible, and must stay before anybody builds on it
            try:
                self.storage.ensure_durable(self.key)
            except StorageError as error:
                return PutResult(PutOutcome.NOT_DURABLE, stored, failure, error)
        return PutResult(PutOutcome.WON, stored, failure)


def slot_of_bytes(storage: Storage, key: str, data: bytes) -> Slot[bytes]:
    """Make a slot whose content is mine where it equals ``data``, because no other attempt puts the same bytes."""
    return Slot(storage, key, lambda: storage.read(key), data.__eq__)


def fill(storage: Storage, key: str, data: Bytes) -> None:
    """Store ``data`` under a ``key`` unless there is an object, whoever put it.

    For a key whose content nobody puts otherwise, or that is read in any case afterwards. Raises `StorageError` where
    the outcome is unknown.
    """
    with suppress(ObjectExistsError):
        storage.put_if_absent(key, data)
