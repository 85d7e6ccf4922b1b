"""Requests that are sent again while that may help.

A client sends each request once. So the unclear outcome of a conditional write reaches the caller, who reads the object
back; all other requests are idempotent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.remote.failures import FailureKind

RETRY_MS_MAX: Final = 60_000
"""No request is sent again later than this after its first failure."""
_UNCLEAR_ATTEMPTS_MAX: Final = 5
_BACKOFF_MS_MIN: Final = 50
_BACKOFF_MS_MAX: Final = 5_000

T = TypeVar("T")


def sent(
    request: Callable[[], T],
    world: World,
    failures: tuple[type[Exception], ...],
    classify: Callable[[Exception], FailureKind],
    *,
    resend_unclear: bool = True,
) -> T:
    """Return the answer of a request, which is sent again while that may help. Raises the last of its ``failures``.

    Without ``resend_unclear`` it is sent again only where the store did nothing.
    """
    give_up_ms = world.clock.boot_ms() + RETRY_MS_MAX
    attempts = 0
    while True:
        try:
            return request()
        except failures as error:
            attempts += 1
            kind = classify(error)
            again = kind is FailureKind.THROTTLED or (
                kind is FailureKind.TRANSIENT and resend_unclear and attempts < _UNCLEAR_ATTEMPTS_MAX
            )
            if not again or world.clock.boot_ms() >= give_up_ms:
                raise
        world.clock.sleep_ms(min(_BACKOFF_MS_MIN << attempts, _BACKOFF_MS_MAX) * (1 + world.ids.jitter()) / 2)
