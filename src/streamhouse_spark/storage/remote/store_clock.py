"""A remote store's own time, learnt from the ``Date`` of its answers."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime

from streamhouse_spark.core.forks import new_lock

_DATE_RESOLUTION_MS = 1000


class StoreClock:
    """The store's time as a distance from a clock that never jumps.

    Each answer bounds the distance: its ``Date`` (whole seconds, cut off) was written between sending the request and
    receiving the answer. Bounds of many answers are intersected, so the error falls below a second; bounds that
    contradict the newest answer (the store's clock was set, another front end answered) are forgotten.
    """

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self._bounds: tuple[int, int] | None = None
        self._lock = new_lock()

    def observe(self, date: str | None, sent_boot_ms: int, received_boot_ms: int) -> None:
        """Take in the ``Date`` header of an answer; an absent or unreadable one tells nothing."""
        try:
            date_ms = int(parsedate_to_datetime(date or "").timestamp()) * 1000
        except ValueError:
            return
        low, high = date_ms - received_boot_ms, date_ms + _DATE_RESOLUTION_MS - sent_boot_ms
        with self._lock:
            if self._bounds is not None:
                both = max(low, self._bounds[0]), min(high, self._bounds[1])
                if both[0] <= both[1]:
                    low, high = both
            self._bounds = low, high

    def now_ms(self) -> int | None:
        """Return the store's time, or None before the first answer."""
        bounds = self._bounds
        return None if bounds is None else self._boot_ms() + (bounds[0] + bounds[1]) // 2
