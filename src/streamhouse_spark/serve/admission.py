"""Admission of requests: a valid token and a rate limit, for HTTP and Arrow Flight alike."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.serve.access import Access
from streamhouse_spark.serve.options import AccessOf
from streamhouse_spark.serve.refusal import Refusal
from streamhouse_spark.serve.rights import Client

_BURST_S: Final = 2.0
"""Seconds' worth of requests that a client may send at once after a pause."""
_CLIENTS_MAX: Final = 10_000
"""Number of clients that are remembered. A forgotten client starts with a full bucket."""


class RateLimit:
    """A token bucket (Turner 1986) per client. Safe for threads; counts in this process alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = new_lock()
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_s(self, client: str, requests_per_s: float) -> int:
        """Count a request of ``client``. Return 0 if it may proceed, else the whole seconds until a retry.

        A rejected request is not counted.
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


_WRONG_TOKENS_PER_S: Final = 5.0
"""Requests without a valid token that an address may send per second; more get status 429."""


class Admission:
    """Admits clients and counts their requests over all protocols. Safe for threads."""

    def __init__(self, access: AccessOf, clock: Clock) -> None:
        self._access = access
        self._limit = RateLimit(clock)

    @property
    def access(self) -> Access:
        """The current access rights."""
        return self._access()

    def authenticate(self, authorization: str | None, address: str) -> Client | Refusal:
        """Return the client of a request. May request keys from the identity provider. Raises `StorageError` like
        `Access`.
        """
        access = self.access
        return self.admit(access, access.client_of(authorization), address)

    def admit(self, access: Access, client: Client | None, address: str) -> Client | Refusal:
        """Count a request of an authenticated client, or of an address without a valid token."""
        if client is None:
            wait_s = self._limit.wait_s(f"wrong tokens of {address}", _WRONG_TOKENS_PER_S)
            if wait_s:
                return Refusal(429, "too many requests without a valid token came from this address", wait_s)
            return Refusal(401, "send a valid token: Authorization: Bearer TOKEN")
        rate = client.requests_per_s or access.requests_per_s
        key = f"{address} {client.name}" if access.is_open else client.name
        wait_s = self._limit.wait_s(key, rate) if rate else 0
        if rate and wait_s:
            return Refusal(429, f"the client {client.name} sends more than {rate:g} requests/s", wait_s)
        return client
