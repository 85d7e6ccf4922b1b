"""Retries of requests.

A client sends each request once. An unknown outcome of a conditional write therefore reaches the caller, which reads
the object back; all other requests are idempotent. With configured patience conditional writes are retried too: a retry
that finds the object of the first request reports that it exists, and the caller recognises its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Self, TypeVar

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.storage.remote.failures import FailureKind

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
