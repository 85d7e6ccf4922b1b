"""Every exception of streamhouse-spark.

::

    StreamhouseError
    ├── WarehouseNotFoundError     INVALID      no streamhouse.json where the warehouse should be
    ├── TableNotFoundError         INVALID      no such table (or it was dropped)
    ├── TableExistsError           INVALID      the name is taken
    ├── InvalidNameError           INVALID      an invalid database, table or suffix name
    ├── InvalidOptionError         INVALID      an invalid option, property or argument
    ├── SchemaMismatchError        INVALID      rows or schemas that do not fit the table
    │   └── ConstraintViolatedError             rows for which a CHECK constraint is false
    ├── MissingExtraError          INVALID      an optional dependency is not installed
    ├── OffsetsTrimmedError        INVALID      the requested offsets were trimmed
    ├── SnapshotExpiredError       INVALID      the requested snapshot has expired
    ├── NotAuthorizedError         INVALID      a client of `streamhouse serve` lacks a right on a table
    ├── DifferentHistoryError      INVALID      a position of another history of the table: it was restored or copied
    ├── IdempotencyKeyReusedError  INVALID      an idempotency key that belongs to another request
    ├── ProducerSequenceError      CONFLICT     a request of a producer is out of sequence
    ├── CommitConflictError        CONFLICT     lost a commit race; nothing was written
    ├── TransactionConflictError   CONFLICT     an application id is used by two queries
    ├── ProducerFencedError        FENCED       a newer writer has the producer id
    ├── ConsumerFencedError        FENCED       a newer follower has the consumer's name
    ├── WriterFullError            UNAVAILABLE  a writer's buffer is full; its rows were not accepted
    ├── WriterStoppedError         UNAVAILABLE  a writer no longer accepts rows
    ├── CommitStateUnknownError    UNAVAILABLE  a commit may or may not have happened
    ├── StorageError               UNAVAILABLE  the store failed or refused
    │   ├── StorageRefusedError    INVALID      a permanent refusal: read-only, or no permission
    │   ├── ObjectNotFoundError                 (internal) the object is absent
    │   └── ObjectExistsError                   (internal) put-if-absent found an object
    ├── LakeMismatchError          INVALID      the lake table does not belong to the table
    ├── LakeRolledBackError        FENCED       the lake was rolled back below the recorded offsets
    ├── WarehouseMovedError        FENCED       the warehouse was moved from its recorded location
    ├── CorruptDataError           CORRUPT      bytes that do not match their checksum
    └── FormatVersionError         INVALID      a file written by a newer version

The text is ``CONDITION_NAME: what happened, where, found and expected, what to do``, on one line, because Spark carries
only text from Python to the JVM and back. Branch on the class or on ``kind``, never on the text.
"""

from __future__ import annotations

import copy
import enum
import re
from typing import Self


class ErrorKind(enum.Enum):
    """Error kinds by the action that a caller can take."""

    CONFLICT = "conflict"
    """A concurrent writer won. Nothing was written; a retry is safe."""
    FENCED = "fenced"
    """This process or table was fenced. Stop and investigate; a retry does not help."""
    UNAVAILABLE = "unavailable"
    """The store failed temporarily. Retry later."""
    INVALID = "invalid"
    """The call, option, name or data is wrong. Change it."""
    CORRUPT = "corrupt"
    """Stored bytes are damaged. Restore them."""
    INTERNAL = "internal"
    """A defect of streamhouse-spark. Report it."""


class StreamhouseError(Exception):
    """Base of all errors of this package. ``kind`` shows what a caller can do."""

    kind: ErrorKind = ErrorKind.INTERNAL

    def __init__(self, message: str, *, condition: str | None = None) -> None:
        self.condition: str = condition or _condition_name(type(self).__name__)
        prefix = f"{self.condition}: "
        message = truncate_message(message)
        super().__init__(message if message.startswith(prefix) else prefix + message)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), str(self), self.condition))


def quote(value: object) -> str:
    """Return the repr of any value for an error text, at most a hundred characters long."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - of a foreign type, or a number too long for Python to print
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural: ``1 row``, ``2,000 rows``, ``3 queries``."""
    if number != 1:
        noun = re.sub(r"(?<=[^aeiou])y$", "ie", noun)
        noun += "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {noun}"


_SHOWN_CHARS_MAX = 100
_TEXT_CHARS_MAX = 2_500


def truncate_message(message: str) -> str:
    """Return a message on one line, printable and truncated in the middle, so that the remedy at its end remains."""
    message = " ".join(message.splitlines())  # a name or an Arrow error may contain line breaks
    message = message.encode("utf-8", "backslashreplace").decode()  # a name may contain lone surrogates
    if len(message) <= _TEXT_CHARS_MAX:
        return message
    return f"{message[: _TEXT_CHARS_MAX - 500]} … {message[-490:]}"


def copy_error(failure: Exception) -> Exception:
    """Return a copy of a failure that several threads or tasks raise: they must not share an exception object."""
    if not isinstance(failure, StreamhouseError):
        return failure
    copied = copy.copy(failure)
    copied.__cause__ = failure
    return copied


def _rebuild(cls: type[StreamhouseError], text: str, condition: str) -> StreamhouseError:
    return cls(text, condition=condition)


def _condition_name(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name.removesuffix("Error")).upper()


class WarehouseNotFoundError(StreamhouseError):
    kind = ErrorKind.INVALID


class TableNotFoundError(StreamhouseError):
    kind = ErrorKind.INVALID


class TableExistsError(StreamhouseError):
    kind = ErrorKind.INVALID


class InvalidNameError(StreamhouseError):
    kind = ErrorKind.INVALID


class InvalidOptionError(StreamhouseError):
    kind = ErrorKind.INVALID


class SchemaMismatchError(StreamhouseError):
    kind = ErrorKind.INVALID


class ConstraintViolatedError(SchemaMismatchError):
    """A CHECK constraint of the table is false for some rows. Nothing was written."""


class MissingExtraError(StreamhouseError):
    kind = ErrorKind.INVALID


class OffsetsTrimmedError(StreamhouseError):
    kind = ErrorKind.INVALID


class SnapshotExpiredError(StreamhouseError):
    kind = ErrorKind.INVALID


class NotAuthorizedError(StreamhouseError):
    kind = ErrorKind.INVALID


class DifferentHistoryError(StreamhouseError):
    """The record at a position of a stream, write, cache or lake is missing from this table's log.

    The table was restored, or is a copy. Nothing was written.
    """

    kind = ErrorKind.INVALID


class IdempotencyKeyReusedError(StreamhouseError):
    """A request's key, or its producer and sequence number, belongs to another request. Nothing was written."""

    kind = ErrorKind.INVALID


class ProducerSequenceError(StreamhouseError):
    """The sequence number of a producer's request does not follow the stored one. Nothing was written."""

    kind = ErrorKind.CONFLICT


class CommitConflictError(StreamhouseError):
    kind = ErrorKind.CONFLICT


class TransactionConflictError(StreamhouseError):
    kind = ErrorKind.CONFLICT


class ProducerFencedError(StreamhouseError):
    kind = ErrorKind.FENCED


class ConsumerFencedError(StreamhouseError):
    """Another process follows the table under this follower's name, or moved the consumer. Nothing was committed."""

    kind = ErrorKind.FENCED


class WriterFullError(StreamhouseError):
    """The writer's buffered rows have reached their limit. The rows of this call were not accepted."""

    kind = ErrorKind.UNAVAILABLE


class WriterStoppedError(StreamhouseError):
    """The writer was closed, or an earlier batch of its producer failed. None of these rows were written."""

    kind = ErrorKind.UNAVAILABLE


class CommitStateUnknownError(StreamhouseError):
    kind = ErrorKind.UNAVAILABLE


class StorageError(StreamhouseError):
    kind = ErrorKind.UNAVAILABLE


class StorageRefusedError(StorageError):
    """The store refused permanently: it is read-only, this user lacks permission, or this machine's clock is wrong.

    The request had no effect.
    """

    kind = ErrorKind.INVALID


class ObjectNotFoundError(StorageError):
    """The object is missing. Callers inside the package convert this to an error that the user can act on."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Return the error for a missing object."""
        return cls(f"{url} does not exist; restore it. streamhouse verify lists the missing files of a table")


class ObjectExistsError(StorageError):
    """Put-if-absent found an object. It may be the caller's own: read it and compare."""


class LakeMismatchError(StreamhouseError):
    kind = ErrorKind.INVALID


class LakeRolledBackError(StreamhouseError):
    kind = ErrorKind.FENCED


class WarehouseMovedError(StreamhouseError):
    kind = ErrorKind.FENCED


class CorruptDataError(StreamhouseError):
    kind = ErrorKind.CORRUPT


class FormatVersionError(StreamhouseError):
    kind = ErrorKind.INVALID
