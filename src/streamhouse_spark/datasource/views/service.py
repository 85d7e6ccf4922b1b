"""A loop that refreshes views as often as their freshness says, one after the other, the longest due first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from streamhouse_spark.config.view_definition import VIEW, ViewDefinition
from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.forks import new_event, new_lock
from streamhouse_spark.core.values import dataclass
from streamhouse_spark.datasource.views.refresh import RefreshReport
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.warehouse.connection import Connection

POLL_MS: Final = 200
LISTED_EACH_MS: Final = 5_000
PAUSE_MAX_MS: Final = 300_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """A view as the service knows it."""

    name: str
    freshness_ms: int
    due_ms: int
    """Time of the service's clock at which it is refreshed next."""
    refreshes: int = 0
    """Refreshes that made a commit."""
    failures: int = 0
    """Failures in a row. The pause before the next try doubles with each, up to five minutes."""
    error: str | None = None
    last: RefreshReport | None = None


class ViewService:
    """Refreshes the views of a warehouse. An error of one view is logged and tried again later; the others go on."""

    def __init__(
        self, run: Callable[[str], RefreshReport], connection: Connection, clock: Clock, names: Sequence[str] | None
    ) -> None:
        self._refresh, self._connection, self._clock = run, connection, clock
        self._names = names
        self._views: dict[str, ViewStatus] = {}
        self._listed_ms: int | None = None
        self._stop = new_event()
        self._lock = new_lock()

    def run(self, stop: threading.Event | None = None) -> None:
        """Refresh until stopped. Returns when the refresh under way has ended."""
        while not self._stop.is_set() and not (stop is not None and stop.is_set()):
            if not self.turn():
                (stop or self._stop).wait(POLL_MS / 1000)

    def stop(self) -> None:
        self._stop.set()

    def status(self) -> list[ViewStatus]:
        with self._lock:
            return sorted(self._views.values(), key=lambda view: view.name)

    def turn(self) -> bool:
        """Refresh the view that is due for the longest. Returns whether there was one."""
        now_ms = self._clock.boot_ms()
        if self._listed_ms is None or now_ms - self._listed_ms >= LISTED_EACH_MS:
            self._listed_ms = now_ms
            self._list(now_ms)
        due = [view for view in self.status() if view.due_ms <= now_ms]
        if not due:
            return False
        view = min(due, key=lambda found: found.due_ms)
        self._note(self._refreshed(view, now_ms))
        return True

    def _refreshed(self, view: ViewStatus, now_ms: int) -> ViewStatus:
        try:
            report = self._refresh(view.name)
        except Exception as error:  # noqa: BLE001 - of Spark, of storage, of the query: the other views go on
            failures = view.failures + 1
            pause_ms = min(max(view.freshness_ms, 1_000) * 2**failures, PAUSE_MAX_MS)
            logger.warning("refreshing %s failed %d times in a row: %s", view.name, failures, error)
            return replace(view, failures=failures, error=str(error), due_ms=self._clock.boot_ms() + pause_ms)
        count = view.refreshes + report.changed
        return replace(
            view, failures=0, error=None, last=report, refreshes=count, due_ms=now_ms + max(view.freshness_ms, POLL_MS)
        )

    def _list(self, now_ms: int) -> None:
        """Look for new and dropped views. One that cannot be opened is tried again at the next look."""
        found = {}
        for name in self._names if self._names is not None else self._connection.warehouse().tables():
            try:
                state = self._connection.table(name).state
                if VIEW in state.properties:
                    freshness_ms = ViewDefinition.of(state.properties, name).freshness_ms
                    known = self._views.get(name)
                    found[name] = known or ViewStatus(name, freshness_ms, now_ms)
            except StreamhouseError as error:
                logger.warning("%s cannot be looked at: %s", name, error)
        with self._lock:
            self._views = found

    def _note(self, view: ViewStatus) -> None:
        with self._lock:
            if view.name in self._views:
                self._views[view.name] = view
