"""Looking for news of a table: often while rows come, seldom while none do, and once for all who wait in this process.

A look is one request that somebody pays for. The time to the next one grows with the time since the last news: a
`SHARE` of it, so that rows after a pause of a minute are seen within four seconds at most, and soon within milliseconds
again. Nothing rests on it but when storage is asked: each answer is a state that was read.

Where requests take long, one who takes any newer state has the first record of the news in one round trip, and looks
for those behind it at once, but behind the use of its rows. Only one who is far behind waits for all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final

from streamhouse_spark.core.clock import Clock, SystemClock
from streamhouse_spark.core.fork_safety import new_lock, renew_in_children
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.paths import table_prefix
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.state import TableState

SHARE: Final = 16
"""Part of the time without news that passes until the next look."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Bounds of the time between two looks."""

    busy_ms: float
    idle_ms: float

    def interval_ms(self, quiet_ms: float) -> float:
        """Return the time between two looks, when the newest news are so long ago."""
        return min(self.idle_ms, max(self.busy_ms, quiet_ms / SHARE))


LOCAL: Final = Pace(busy_ms=1.0, idle_ms=10.0)
"""A look is a system call."""
REMOTE: Final = Pace(busy_ms=20.0, idle_ms=2_000.0)
"""A look is a request: 0.5 a second of a table that has been quiet for half a minute."""


FEW: Final = {1: 4, 4: None}
"""Records that are asked for in one look, and how many in the next one, which is due at once, where all were there;
None for all that there are.
"""


class LogPoller:
    """Looks for news of one table on behalf of all who follow it. Safe for use by several threads."""

    def __init__(self, clock: Clock, pace: Pace) -> None:
        self._clock = clock
        self._pace = pace
        self._version = 0
        self._at_most: int | None = 1
        self._news_ms = self._polled_ms = clock.boot_ms()
        self._lock = new_lock()

    def wait_ms(self) -> float:
        """Return the time until the next look; 0 where it is due."""
        if self._at_most != 1:
            return 0
        now_ms = self._clock.boot_ms()
        return max(0.0, self._polled_ms + self._pace.interval_ms(now_ms - self._news_ms) - now_ms)

    def look(
        self, state: TableState, refresh: Callable[[], TableState], first: Callable[[int], TableState] | None = None
    ) -> TableState:
        """Return the state that follows: after a look where one is due, or somebody saw news; else ``state`` again.

        ``first`` reads that many records at most, and is asked in place of ``refresh`` but by those who are behind
        what was seen already. Raises the errors of both.
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
    """The lookouts of this process: one a table, while somebody follows it."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._pollers: weakref.WeakValueDictionary[tuple[str, str, int], LogPoller] = weakref.WeakValueDictionary()
        renew_in_children(self)

    def renew_in_child(self) -> None:
        """Forget the parent's: its threads do not look on behalf of a child."""
        self._pollers = weakref.WeakValueDictionary()

    def get(self, table: TableHandle) -> LogPoller:
        clock = table.world.clock
        pace = LOCAL if table.storage.local_path(table_prefix(table.uuid)) is not None else REMOTE
        time = 0 if isinstance(clock, SystemClock) else id(clock)  # a simulated clock has a time of its own
        name = (table.storage.url, table.uuid, time)
        with self._lock:
            poller = self._pollers.get(name)
            if poller is None:
                poller = self._pollers[name] = LogPoller(clock, pace)
            return poller


_POLLERS: Final = _PollerRegistry()


def lookout_of(table: TableHandle) -> LogPoller:
    """Return the table's lookout, which all who follow it in this process share, while one of them holds it."""
    return _POLLERS.get(table)
