"""A limit of requests a second for each client: a token bucket (Turner 1986) a client."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.fork_safety import new_lock

_BURST_S: Final = 2.0
"""Seconds of requests that a client may send at once behind a pause."""
_CLIENTS_MAX: Final = 10_000
"""Clients that are remembered. One that is forgotten begins with a full bucket."""


class RateLimit:
    """Tells whether a client may send another request now. Safe for threads; counts in this process alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = new_lock()
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_s(self, client: str, requests_per_s: float) -> int:
        """Count a request of ``client``. Return 0 where it may go on, else after how many whole seconds to try again.

        A request that is refused is not counted.
        """
        capacity = max(1.0, requests_per_s * _BURST_S)
        now_ms = self._clock.boot_ms()
        with self._lock:
            tokens, last_ms = self._buckets.pop(client, (capacity, now_ms))
            tokens = min(capacity, tokens + (now_ms - last_ms) / 1000 * requests_per_s)
            is_free = tokens >= 1
            self._buckets[client] = (tokens - is_free, now_ms)
            if len(self._buckets) > _CLIENTS_MAX:
                self._buckets.popitem(last=False)
        return 0 if is_free else max(1, math.ceil((1 - tokens) / requests_per_s))
