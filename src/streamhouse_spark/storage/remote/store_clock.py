"""A remote store's own time, derived from the ``Date`` of its responses."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime

from streamhouse_spark.core.fork_safety import new_lock

_DATE_RESOLUTION_MS = 1000


class StoreClock:
    """The store's time as an offset from a monotonic clock.

    Each response bounds the offset: its ``Date`` (truncated to whole seconds) was written between sending the request
    and receiving the response. Bounds of many responses are intersected, so the error falls below a second. Bounds that
    contradict the latest response (the store's clock was set, or another front end responded) are dropped.

    The returned time decreases only then. A narrower bound may lie before a time that was returned already, and two
    commits of one process would have decreasing times.
    """

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self._bounds: tuple[int, int] | None = None
        self._store_ms = 0
        """The latest time that was returned since the bounds were last dropped."""
        self._lock = new_lock()

    def observe(self, date: str | None, sent_boot_ms: int, received_boot_ms: int) -> None:
        """Process the ``Date`` header of a response; an absent or invalid one is ignored."""
        try:
            date_ms = int(parsedate_to_datetime(date or "").timestamp()) * 1000
        except ValueError:
            return
        low, high = date_ms - received_boot_ms, date_ms + _DATE_RESOLUTION_MS - sent_boot_ms
        with self._lock:
            if self._bounds is not None:
                overlap = max(low, self._bounds[0]), min(high, self._bounds[1])
                if overlap[0] <= overlap[1]:
                    low, high = overlap
                else:
                    self._store_ms = 0
            self._bounds = low, high

    def now_ms(self) -> int | None:
        """Return the store's time; None before the first response."""
        with self._lock:
            if self._bounds is None:
                return None
            self._store_ms = max(self._store_ms, self._boot_ms() + sum(self._bounds) // 2)
            return self._store_ms
