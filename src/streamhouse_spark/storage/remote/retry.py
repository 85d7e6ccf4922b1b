"""Failed requests of object stores: kinds, and one-line texts with a remedy and without credentials.

Retries of requests.

A client sends each request once. An unknown outcome of a conditional write therefore reaches the caller, which reads
the object back; all other requests are idempotent. With configured patience conditional writes are retried too: a retry
that finds the object of the first request reports that it exists, and the caller recognises its own.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Self, TypeVar

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import (
    InvalidOptionError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageRefusedError,
)

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


PATIENCE_SETTING: Final = "storage.patience-seconds"
RETRY_MS_MAX: Final = 60_000
"""Without this setting, no request is retried later than this after it was first sent."""
_UNCLEAR_ATTEMPTS_MAX: Final = 5
_BACKOFF_MS_MIN: Final = 50
_BACKOFF_MS_MAX: Final = 5_000
_BACKOFFS_MAX: Final = 10
"""Doublings of the delay, which exceed the longest delay."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long requests are retried."""

    retry_ms_max: int = RETRY_MS_MAX
    """No request is retried later than this after it was first sent."""
    waits_for_answers: bool = False
    """Whether this also holds for unknown outcomes. Otherwise such a request is retried a few times, a conditional
    write never.
    """

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> Self:
        """Parse `PATIENCE_SETTING`, a number of seconds. Raises `InvalidOptionError`."""
        text = settings.get(PATIENCE_SETTING)
        if text is None:
            return cls()
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < float("inf"):
            raise InvalidOptionError(f"{PATIENCE_SETTING}: found {text!r}, expected a number of seconds, at least 0")
        return cls(round(seconds * 1000), waits_for_answers=True)


USUAL: Final = RetryPolicy()


def send_with_retries(
    request: Callable[[], T],
    world: World,
    failures: tuple[type[Exception], ...],
    classify: Callable[[Exception], FailureKind],
    *,
    resend_unclear: bool = True,
    patience: RetryPolicy = USUAL,
) -> T:
    """Return the response of a request, with retries. Raises the last of its ``failures``.

    Without ``resend_unclear`` it is retried only if the store did nothing, or if ``patience`` was configured.
    """
    give_up_ms = world.clock.boot_ms() + patience.retry_ms_max
    attempts = 0
    while True:
        try:
            return request()
        except failures as error:
            attempts += 1
            kind = classify(error)
            again = kind is FailureKind.THROTTLED or (
                kind is FailureKind.TRANSIENT
                and (patience.waits_for_answers or (resend_unclear and attempts < _UNCLEAR_ATTEMPTS_MAX))
            )
            if not again or world.clock.boot_ms() >= give_up_ms:
                raise
        world.clock.sleep_ms(_backoff_ms(attempts) * (1 + world.ids.jitter()) / 2)


def _backoff_ms(attempts: int) -> int:
    return min(_BACKOFF_MS_MIN << min(attempts, _BACKOFFS_MAX), _BACKOFF_MS_MAX)
