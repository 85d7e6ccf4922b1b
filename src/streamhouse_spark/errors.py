"""Every exception of streamhouse-spark.

::

    StreamhouseError
    ├── WarehouseNotFoundError     INVALID      no streamhouse.json where the warehouse should be
    ├── TableNotFoundError         INVALID      no such table (or it was dropped)
    ├── TableExistsError           INVALID      the name is taken
    ├── InvalidNameError           INVALID      a database, table or suffix that cannot be
    ├── InvalidOptionError         INVALID      an option, property or argument that cannot be
    ├── SchemaMismatchError        INVALID      rows or schemas that do not fit the table
    │   └── ConstraintViolatedError             rows for which a CHECK constraint is false
    ├── MissingExtraError          INVALID      an optional dependency is not installed
    ├── OffsetsTrimmedError        INVALID      the offsets asked for are no longer kept
    ├── SnapshotExpiredError       INVALID      the snapshot asked for is no longer kept
    ├── NotAuthorizedError         INVALID      a client of `streamhouse serve` lacks a right on a table
    ├── DifferentHistoryError      INVALID      a position of another history of the table: it was restored or copied
    ├── IdempotencyKeyReusedError  INVALID      an idempotency key that belongs to another request
    ├── ProducerSequenceError      CONFLICT     a request of a producer is out of sequence
    ├── CommitConflictError        CONFLICT     another writer won; nothing was written
    ├── TransactionConflictError   CONFLICT     an application id is used by two queries
    ├── ProducerFencedError        FENCED       a newer writer has the producer id
    ├── WriterFullError            UNAVAILABLE  a writer's rows wait for the store; nothing was taken
    ├── WriterStoppedError         UNAVAILABLE  a writer takes no rows any more
    ├── CommitStateUnknownError    UNAVAILABLE  a commit may or may not have happened
    ├── StorageError               UNAVAILABLE  the store failed or refused
    │   ├── StorageRefusedError    INVALID      it refuses for good: read-only, or no permission
    │   ├── ObjectNotFoundError                 (internal) the object is absent
    │   └── ObjectExistsError                   (internal) put-if-absent found an object
    ├── LakeMismatchError          INVALID      the lake table is not the one that is needed
    ├── LakeRolledBackError        FENCED       the lake went back behind the recorded offsets
    ├── WarehouseMovedError        FENCED       the warehouse is opened elsewhere than it was written
    ├── CorruptDataError           CORRUPT      bytes that do not match their checksum
    └── FormatVersionError         INVALID      a file written by a newer version

Text is ``CONDITION_NAME: what happened, where, found and expected, what to do``, all on the first line, because Spark
carries only text from Python to the JVM and back. Branch on the class or on ``kind``, never on the text.
"""

from __future__ import annotations

import enum
import re
from typing import Self


class ErrorKind(enum.Enum):
    """Kinds of errors by the action that a caller can take."""

    CONFLICT = "conflict"
    """Somebody else won. Nothing was written; trying again is safe."""
    FENCED = "fenced"
    """This process or table was fenced off. Stop and look; trying again does not help."""
    UNAVAILABLE = "unavailable"
    """The store did not answer as it should. Try again later."""
    INVALID = "invalid"
    """The call, option, name or data is wrong. Change it."""
    CORRUPT = "corrupt"
    """Stored bytes are damaged. Restore them."""
    INTERNAL = "internal"
    """A defect of streamhouse-spark. Report it."""


class StreamhouseError(Exception):
    """Base of all errors of this package; ``kind`` says what a caller can do."""

    kind = ErrorKind.INTERNAL

    def __init__(self, message: str, *, condition: str | None = None) -> None:
        self.condition = condition or _condition_name(type(self).__name__)
        prefix = f"{self.condition}: "
        message = fit_to_show(message)
        super().__init__(message if message.startswith(prefix) else prefix + message)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), str(self), self.condition))


def quote(value: object) -> str:
    """Return a value as errors show it: at most a hundred characters, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - of someone else's type, or a number too long for Python to show
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


_SHOWN_CHARS_MAX = 100
_TEXT_CHARS_MAX = 2_500


def fit_to_show(message: str) -> str:
    """Return a message on one line, printable and short enough, with its end, which has the remedy."""
    message = " ".join(message.splitlines())  # a name or an Arrow error in it may hold line breaks
    message = message.encode("utf-8", "backslashreplace").decode()  # and a name halves of letters
    if len(message) <= _TEXT_CHARS_MAX:
        return message
    return f"{message[: _TEXT_CHARS_MAX - 500]} … {message[-490:]}"


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
    """Rows for which a CHECK constraint of the table is false. Nothing was written."""


class MissingExtraError(StreamhouseError):
    kind = ErrorKind.INVALID


class OffsetsTrimmedError(StreamhouseError):
    kind = ErrorKind.INVALID


class SnapshotExpiredError(StreamhouseError):
    kind = ErrorKind.INVALID


class NotAuthorizedError(StreamhouseError):
    kind = ErrorKind.INVALID


class DifferentHistoryError(StreamhouseError):
    """The record at a position of a stream, write, cache or lake is absent from this table's log: it was restored, or
    is a copy. Nothing was written.
    """

    kind = ErrorKind.INVALID


class IdempotencyKeyReusedError(StreamhouseError):
    """The key of a request, or its producer and sequence number, belong to a request with another body. Nothing was
    written.
    """

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


class WriterFullError(StreamhouseError):
    """The rows of a writer that wait for the store are as many as it may hold. The rows of this call were not taken."""

    kind = ErrorKind.UNAVAILABLE


class WriterStoppedError(StreamhouseError):
    """The writer was closed, or an earlier batch of its producer failed. Nothing of these rows was written."""

    kind = ErrorKind.UNAVAILABLE


class CommitStateUnknownError(StreamhouseError):
    kind = ErrorKind.UNAVAILABLE


class StorageError(StreamhouseError):
    kind = ErrorKind.UNAVAILABLE


class StorageRefusedError(StorageError):
    """The store refused for good: it is read-only, this user lacks the permission, or this machine's clock is wrong.
    Nothing was done by this request.
    """

    kind = ErrorKind.INVALID


class ObjectNotFoundError(StorageError):
    """The object is absent. Callers inside the package turn this into the error that the user can act on."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Return the error for the absent object at a URL."""
        return cls(f"{url} does not exist; restore it. streamhouse verify says which files a table lacks")


class ObjectExistsError(StorageError):
    """Put-if-absent found an object. It may be the caller's own: read it back and compare."""


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
