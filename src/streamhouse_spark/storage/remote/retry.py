"""Failed requests and their retries.

A client sends each request once. An unknown outcome of a conditional write therefore reaches the caller, which reads
the object back. All other requests are idempotent and are retried. A configured retry policy also retries conditional
writes: if a retry finds the object of the first attempt, it reports that the object exists, whose content the caller
knows.
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
from streamhouse_spark.storage.request_metrics import RequestCounts

_MESSAGE_CHARS_MAX: Final = 200

UNKNOWN_OUTCOME: Final = "the outcome of a write is unknown: read the object back; retry"
SLOW_DOWN: Final = "the store limits the request rate: retry later, or use fewer writers and larger batches"


class FailureKind(enum.Enum):
    ABSENT = "absent"
    EXISTS = "exists"
    THROTTLED = "throttled"
    """The store rejected the request to limit its rate, and did nothing."""
    TRANSIENT = "transient"
    """The outcome is unknown. An idempotent request may be retried."""
    FINAL = "final"
    """A retry does not help."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A classified failure."""

    kind: FailureKind
    message: str
    """The message of the store or the client."""
    remedy: str
    is_refused: bool = False
    """Whether this user is unknown or has insufficient permissions."""

    def error(self, verb: str, where: str) -> StorageError:
        """Convert the failure to an exception of this package.

        ``verb`` names the failed action in its message, such as "write". ``where`` is the URL of the object.
        """
        if self.kind is FailureKind.ABSENT:
            return ObjectNotFoundError.of(where)
        if self.kind is FailureKind.EXISTS:
            return ObjectExistsError(f"{where} exists")
        kind = StorageRefusedError if self.is_refused else StorageError
        return kind(f"cannot {verb} {where}: {self.message}; {self.remedy}")


def counts_of_failure(kind: FailureKind, sent_bytes: int) -> RequestCounts:
    """Return the counts of a failed request. An absent or existing object is not counted as a failure."""
    is_expected = kind in (FailureKind.EXISTS, FailureKind.ABSENT)
    is_refused_put = kind is FailureKind.EXISTS
    return RequestCounts(refused_puts=int(is_refused_put), failures=int(not is_expected), sent_bytes=sent_bytes)


def to_one_line(text: str, secrets: Iterable[str]) -> str:
    """Return the start of a message on one line, with ``secrets`` masked."""
    text = " ".join(text.split())
    for secret in secrets:
        text = text.replace(secret, "***")
    return text[:_MESSAGE_CHARS_MAX].rstrip(" .")


PATIENCE_SETTING: Final = "storage.patience-seconds"
RETRY_MS_MAX: Final = 60_000
"""Default maximum time between the first attempt of a request and its last retry."""
_UNCLEAR_ATTEMPTS_MAX: Final = 5
_BACKOFF_MS_MIN: Final = 50
_BACKOFF_MS_MAX: Final = 5_000
_BACKOFFS_MAX: Final = 10
"""Maximum number of doublings of the delay. The delay reaches its maximum earlier."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which failed requests are retried, and for how long."""

    retry_ms_max: int = RETRY_MS_MAX
    """Maximum time between the first attempt and the last retry."""
    waits_for_answers: bool = False
    """Whether unknown outcomes are retried for that time too.

    Otherwise an unknown outcome is retried a few times, or never if the request is a conditional write.
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
    retry_unknown_outcome: bool = True,
    patience: RetryPolicy = USUAL,
) -> T:
    """Send a request with retries, and return its response. Raises the last of its ``failures``.

    Without ``retry_unknown_outcome``, an unknown outcome is retried only if the policy is ``waits_for_answers``.
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
                and (patience.waits_for_answers or (retry_unknown_outcome and attempts < _UNCLEAR_ATTEMPTS_MAX))
            )
            if not again or world.clock.boot_ms() >= give_up_ms:
                raise
        backoff_ms = min(_BACKOFF_MS_MIN << min(attempts, _BACKOFFS_MAX), _BACKOFF_MS_MAX)
        world.clock.sleep_ms(backoff_ms * (1 + world.ids.jitter()) / 2)
