"""Failed requests of object stores: kinds, and one-line texts with a remedy and without credentials."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import ObjectExistsError, ObjectNotFoundError, StorageError, StorageRefusedError

_MESSAGE_CHARS_MAX: Final = 200

UNKNOWN_OUTCOME: Final = "the outcome of a write is unknown: read it back; try again"
SLOW_DOWN: Final = "the store limits the request rate: try again later, or use fewer writers and larger batches"


class FailureKind(enum.Enum):
    ABSENT = "absent"
    EXISTS = "exists"
    THROTTLED = "throttled"
    """The store rejected the request because of its rate; nothing was done."""
    TRANSIENT = "transient"
    """The request may or may not have been done; an idempotent one may be retried."""
    FINAL = "final"
    """A retry does not help."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A classified failure."""

    kind: FailureKind
    message: str
    """The message of the store or of the client."""
    remedy: str
    is_refused: bool = False
    """Whether this user lacks a permission, or is unknown."""

    def error(self, doing: str, where: str) -> StorageError:
        """Return the package's error. ``doing`` is the verb, ``where`` the URL of the object."""
        if self.kind is FailureKind.ABSENT:
            return ObjectNotFoundError.of(where)
        if self.kind is FailureKind.EXISTS:
            return ObjectExistsError(f"{where} exists")
        kind = StorageRefusedError if self.is_refused else StorageError
        return kind(f"cannot {doing} {where}: {self.message}; {self.remedy}")


def to_one_line(text: str, secrets: Iterable[str]) -> str:
    """Return the start of a message in one line, with ``secrets`` masked."""
    text = " ".join(text.split())
    for secret in secrets:
        text = text.replace(secret, "***")
    return text[:_MESSAGE_CHARS_MAX].rstrip(" .")
