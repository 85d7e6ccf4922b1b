"""Adaptive polling of a log, shared by all tails of a process.

Every poll is a request to the store, so polls are rare while no commits arrive. The poll interval is 1/`SHARE` of the
time since the last commit, within the bounds of a `PollInterval`. It affects latency only, because each poll reads the
state.

On a remote store, a poll reads only the first new record, in one round trip, and the next poll follows when its rows
were returned. Only a tail that lags far behind waits for all new records.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final

from streamhouse_spark.core.clock import Clock, SystemClock
from streamhouse_spark.core.concurrency import new_lock, reinit_after_fork
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import table_prefix
from streamhouse_spark.log.state import TableState
from streamhouse_spark.table_handle import TableHandle

SHARE: Final = 16
"""The poll interval is this fraction of the time without commits."""
FEW: Final = {1: 4, 4: None}
"""Number of records in a poll → number of records in the next poll if all were found. None means all records. The next
poll is then due immediately.
"""


@dataclass(frozen=True, slots=True)
class PollInterval:
    """Bounds of the poll interval."""

    busy_ms: float
    idle_ms: float

    def interval_ms(self, quiet_ms: float) -> float:
        """Return the poll interval if the latest commit is ``quiet_ms`` ago."""
        return min(self.idle_ms, max(self.busy_ms, quiet_ms / SHARE))


LOCAL: Final = PollInterval(busy_ms=1.0, idle_ms=10.0)
"""Polls are system calls."""
REMOTE: Final = PollInterval(busy_ms=20.0, idle_ms=2_000.0)
"""Polls are requests, one per two seconds after half a minute without commits."""


class LogPoller:
    """Polls one table on behalf of all of its tails. Thread-safe."""

    def __init__(self, clock: Clock, pace: PollInterval) -> None:
        self._clock = clock
        self._pace = pace
        self._version = 0
        self._at_most: int | None = 1
        self._news_ms = self._polled_ms = clock.boot_ms()
        self._lock = new_lock()

    def wait_ms(self) -> float:
        """Return the time until the next poll; 0 if it is due."""
        if self._at_most != 1:
            return 0
        now_ms = self._clock.boot_ms()
        return max(0.0, self._polled_ms + self._pace.interval_ms(now_ms - self._news_ms) - now_ms)

    def poll(
        self, state: TableState, refresh: Callable[[], TableState], first: Callable[[int], TableState] | None = None
    ) -> TableState:
        """Return the latest state if a poll is due or another tail has read a newer state, else ``state``.

        ``first`` reads a limited number of records. It replaces ``refresh`` unless another tail has read a newer state.
        Raises the errors of both.
        """
        with self._lock:
            has_newer_commits = self._version > state.version
            if not has_newer_commits and self.wait_ms() > 0:
                return state
            self._polled_ms = self._clock.boot_ms()
            at_most, self._at_most = self._at_most, 1
            if first is None or at_most is None or has_newer_commits:
                latest = refresh()
            else:
                latest = first(at_most)
                if latest.version - state.version >= at_most:
                    self._at_most = FEW[at_most]
            if latest.version > max(self._version, state.version):
                self._news_ms = self._clock.boot_ms()
            self._version = max(self._version, latest.version)
            return latest


class _PollerRegistry:
    """The pollers of this process, one per table with tails."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._pollers: weakref.WeakValueDictionary[tuple[str, str, int], LogPoller] = weakref.WeakValueDictionary()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        """Discard the pollers of the parent process."""
        self._pollers = weakref.WeakValueDictionary()

    def get(self, table: TableHandle) -> LogPoller:
        clock = table.world.clock
        pace = LOCAL if table.storage.local_path(table_prefix(table.uuid)) is not None else REMOTE
        time = 0 if isinstance(clock, SystemClock) else id(clock)  # a simulated clock has another time
        name = (table.storage.url, table.uuid, time)
        with self._lock:
            poller = self._pollers.get(name)
            if poller is None:
                poller = self._pollers[name] = LogPoller(clock, pace)
            return poller


_POLLERS: Final = _PollerRegistry()


def poller_of(table: TableHandle) -> LogPoller:
    """Return the poller of a table, which all of its tails in this process share."""
    return _POLLERS.get(table)
