"""Adaptive polling of a table's log, shared by all waiters of a process.

Polls are frequent while commits arrive and rare while none do, because every poll is a storage request with a cost. The
poll interval grows with the time since the last commit, to 1/`SHARE` of it: rows after a pause of a minute are seen
within four seconds, and the following ones within milliseconds. The interval affects latency only, since each poll
returns a state that was read.

If requests are slow, a caller that accepts any newer state gets the first new record in one round trip, and polls again
after it has used its rows. Only a caller that is far behind waits for all new records.
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
"""Records requested in one poll → records requested in the next, which is due at once if all were found. None stands
for all records.
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """Bounds of the poll interval."""

    busy_ms: float
    idle_ms: float

    def interval_ms(self, quiet_ms: float) -> float:
        """Return the poll interval if the latest commit is ``quiet_ms`` ago."""
        return min(self.idle_ms, max(self.busy_ms, quiet_ms / SHARE))


LOCAL: Final = Pace(busy_ms=1.0, idle_ms=10.0)
"""A poll is a system call."""
REMOTE: Final = Pace(busy_ms=20.0, idle_ms=2_000.0)
"""A poll is a request: 0.5 per second for a table that has been quiet for half a minute."""


class LogPoller:
    """Polls one table on behalf of all its followers. Safe for use by several threads."""

    def __init__(self, clock: Clock, pace: Pace) -> None:
        self._clock = clock
        self._pace = pace
        self._version = 0
        self._at_most: int | None = 1
        self._news_ms = self._polled_ms = clock.boot_ms()
        self._lock = new_lock()

    def wait_ms(self) -> float:
        """Return the time until the next poll, 0 if it is due."""
        if self._at_most != 1:
            return 0
        now_ms = self._clock.boot_ms()
        return max(0.0, self._polled_ms + self._pace.interval_ms(now_ms - self._news_ms) - now_ms)

    def look(
        self, state: TableState, refresh: Callable[[], TableState], first: Callable[[int], TableState] | None = None
    ) -> TableState:
        """Return the latest state: polled if a poll is due or another follower has seen a newer one, else ``state``.

        ``first`` reads at most that many records. It replaces ``refresh`` unless the caller is behind what the poller
        has seen. Raises the errors of both.
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
    """The pollers of this process: one per table while it has followers."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._pollers: weakref.WeakValueDictionary[tuple[str, str, int], LogPoller] = weakref.WeakValueDictionary()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        """Discard the parent's pollers, whose threads do not run in the child."""
        self._pollers = weakref.WeakValueDictionary()

    def get(self, table: TableHandle) -> LogPoller:
        clock = table.world.clock
        pace = LOCAL if table.storage.local_path(table_prefix(table.uuid)) is not None else REMOTE
        time = 0 if isinstance(clock, SystemClock) else id(clock)  # a simulated clock has its own time
        name = (table.storage.url, table.uuid, time)
        with self._lock:
            poller = self._pollers.get(name)
            if poller is None:
                poller = self._pollers[name] = LogPoller(clock, pace)
            return poller


_POLLERS: Final = _PollerRegistry()


def poller_of(table: TableHandle) -> LogPoller:
    """Return the table's poller, which all followers in this process share while one of them holds it."""
    return _POLLERS.get(table)
