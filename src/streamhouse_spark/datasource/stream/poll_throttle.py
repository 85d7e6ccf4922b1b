"""Rate limit for a stream that polls a table on an object store.

Spark polls a source as soon as it has the last answer, hundreds of times a second, and each answer costs a request. A
cached answer would be wrong, because `processAllAvailable` relies on it. The answer therefore waits until a poll is
due. A query with other sources polls again only after it processed their rows, and is answered at once.
"""

from __future__ import annotations

from typing import Final

from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.read.log_poller import poller_of

SPIN_MS: Final = 50
"""Time within which Spark polls again if the query has nothing else to do."""
RESOLVE_MS: Final = 10_000
"""Time after which the table's name is resolved again even without changes."""


class PollThrottle:
    """A table and its state at the last poll. Not thread-safe: a stream has one thread."""

    def __init__(self, table: TableHandle, state: TableState, previous: PollThrottle | None) -> None:
        self.table = table
        self.state = state
        self._clock = table.world.clock
        self._poller = poller_of(table)
        self._resolved_ms = self._polled_ms = self._clock.boot_ms()
        self._was_quiet = previous is not None and previous.state is state

    def is_spinning(self) -> bool:
        """Return whether Spark polls again at once although the last poll found nothing new."""
        now_ms = self._clock.boot_ms()
        is_at_once = now_ms - self._polled_ms <= SPIN_MS
        return self._was_quiet and is_at_once and now_ms - self._resolved_ms < RESOLVE_MS

    def wait(self) -> None:
        """Wait until a poll is due."""
        while (wait_ms := self._poller.wait_ms()) > 0:
            self._clock.sleep_ms(wait_ms)

    def is_unchanged(self) -> bool:
        """Poll, and return whether the table is unchanged. Errors count as a change: the caller's own read raises
        them.
        """
        try:
            state = self._poller.look(self.state, self.table.refresh)
        except StreamhouseError:
            return False
        self._polled_ms = self._clock.boot_ms()
        return state is self.state
