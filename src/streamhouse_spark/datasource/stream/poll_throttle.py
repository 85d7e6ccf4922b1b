"""A stream that waits for rows of a table on an object store.

Spark asks a source for its end as soon as it has the last answer, some hundred times a second, and each answer is a
request. An answer of the past would be wrong: `processAllAvailable` trusts it. So the answer waits until a look is due.
A query that has other sources asks again only once it is done with their rows, and is answered at once.
"""

from __future__ import annotations

from typing import Final

from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.read.log_poller import lookout_of

SPIN_MS: Final = 50
"""Time within which Spark asks again where the query has nothing else to do."""
RESOLVE_MS: Final = 10_000
"""Time after which the table's name is looked up again although nothing happened."""


class PollThrottle:
    """A table and the state of the last look at it. For the one thread of a stream."""

    def __init__(self, table: TableHandle, state: TableState, previous: PollThrottle | None) -> None:
        self.table = table
        self.state = state
        self._clock = table.world.clock
        self._poller = lookout_of(table)
        self._resolved_ms = self._polled_ms = self._clock.boot_ms()
        self._was_quiet = previous is not None and previous.state is state

    def is_spinning(self) -> bool:
        """Tell whether Spark asks again at once although the last look found nothing new."""
        now_ms = self._clock.boot_ms()
        is_at_once = now_ms - self._polled_ms <= SPIN_MS
        return self._was_quiet and is_at_once and now_ms - self._resolved_ms < RESOLVE_MS

    def wait(self) -> None:
        """Wait until a look is due."""
        while (wait_ms := self._poller.wait_ms()) > 0:
            self._clock.sleep_ms(wait_ms)

    def is_unchanged(self) -> bool:
        """Look, and tell whether all is as it was. Errors are for the caller's own look."""
        try:
            state = self._poller.look(self.state, self.table.refresh)
        except StreamhouseError:
            return False
        self._polled_ms = self._clock.boot_ms()
        return state is self.state
