"""Service that refreshes views as often as their freshness requires. It refreshes one view at a time, the longest
overdue first.

The service checks a view when it is due, with one check per source for new commits. If there are any, the service
claims the view for one refresh step, so that several services share the views of a warehouse. If two services refresh a
view concurrently anyway, only one of them commits.

A turn runs at most one step. If more steps remain, the view is due after all views that are already due. So a long
refresh delays other views by at most one step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.core.clock import Clock, SystemClock
from streamhouse_spark.core.concurrency import new_event, new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.session import connect_catalog
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError, TableNotFoundError, quote
from streamhouse_spark.log.catalog.claims import CLAIM_MS, claim_work
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import REFRESHES, Lineage
from streamhouse_spark.metrics import Metric
from streamhouse_spark.service.endpoint import Definitions, doing_metric, table_metrics
from streamhouse_spark.service.table_discovery import TableDiscovery
from streamhouse_spark.storage.prefetch import map_with_store_concurrency
from streamhouse_spark.table.refresh_commit import compute_lag, last_refresh
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.refresh import Refresher, RefreshReport
from streamhouse_spark.warehouse.process_cache import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_MS: Final = 200
ELSEWHERE_MS: Final = 5_000
"""Time until the next check of a view that another service refreshes, unless its freshness is shorter."""
PAUSE_MAX_MS: Final = 300_000

Doing = Literal["waiting", "refreshing", "between steps", "elsewhere", "paused", "failed"]
RunStep: TypeAlias = Callable[[str, RefreshReport], RefreshReport]
"""Runs the next step of the refresh in a report, and returns a report that includes this step."""
_SourceVersions: TypeAlias = Mapping[str, tuple[str, int, str | None]]
"""Source → its table uuid, version and commit attempt."""

logger = logging.getLogger(__name__)
_NO_REFRESH: Final = RefreshReport(changed=False)
POOL: Final = "streamhouse-views"
"""Pool of Spark's scheduler for refreshes. In FAIR mode they run concurrently with tiering rounds."""
GAUGES: Final[Definitions[ViewStatus]] = {
    "streamhouse_view_commits_behind": ("Commits of its sources that it does not contain.", lambda v: v.commits_behind),
    "streamhouse_view_rows_behind": (
        "Rows or changes of its sources that it does not contain.",
        lambda v: v.rows_behind,
    ),
    "streamhouse_view_lag_seconds": ("Age of the oldest change that it does not contain.", lambda v: v.lag_ms / 1000),
    "streamhouse_view_freshness_seconds": ("Time between two refreshes: freshness.", lambda v: v.freshness_ms / 1000),
    "streamhouse_view_failures": ("Failures since the last successful refresh.", lambda v: v.failures),
    "streamhouse_view_last_refresh_seconds": (
        "Duration of the last successful refresh.",
        lambda v: v.last_duration_ms / 1000,
    ),
    "streamhouse_view_refreshing_seconds": (
        "Time since the current step began; 0 without one.",
        lambda v: v.refreshing_ms / 1000,
    ),
    "streamhouse_view_paused": ("1 while it is paused.", lambda v: v.doing == "paused"),
}
COUNTERS: Final[Definitions[ViewStatus]] = {
    "streamhouse_view_refreshes": ("Refreshes that committed.", lambda v: v.refreshes),
    "streamhouse_view_rows_written": ("Rows that refreshes wrote.", lambda v: v.rows_written),
    "streamhouse_view_rows_deleted": ("Rows that refreshes deleted.", lambda v: v.rows_deleted),
    "streamhouse_view_whole_computations": ("Refreshes that recomputed the full query.", lambda v: v.whole),
}


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """The status of a view in this service.

    ``elsewhere`` means that another service is refreshing the view. ``between steps`` means that its refresh has more
    steps, and other views are refreshed first.
    """

    name: str
    freshness_ms: int
    due_ms: int
    """Clock time of the next check. A paused view is checked but not refreshed."""
    refreshes: int = 0
    """Number of refreshes by this service that committed. A refresh in several steps counts once, at its first step."""
    failures: int = 0
    """Number of consecutive failures. Each failure doubles the delay before the retry, up to five minutes."""
    error: str | None = None
    """First line of the last error; None after a success."""
    last: RefreshReport | None = None
    """The last completed refresh, with all of its steps."""
    doing: Doing = "waiting"
    steps: int = 0
    """Number of completed steps of the refresh in progress; 0 if none is in progress."""
    refreshing_ms: int = 0
    """Milliseconds since the step in progress began; 0 if none is in progress."""
    last_duration_ms: int = 0
    """Duration of the last successful refresh, without the time between its steps."""
    rows_written: int = 0
    """Number of rows written by refreshes of this service, including completed steps."""
    rows_deleted: int = 0
    """Number of rows deleted by refreshes of this service, including completed steps."""
    whole: int = 0
    """Number of refreshes by this service that recomputed the full query."""
    commits_behind: int = 0
    """Number of source commits that the view did not contain completely at the last check."""
    rows_behind: int = 0
    """Number of source rows missing from the view at the last check; of changes for primary-key tables."""
    lag_ms: int = 0
    """Age of the oldest missing change at the last check."""


@dataclass(frozen=True, slots=True)
class _RefreshProgress:
    """A refresh in progress, some of whose steps are completed."""

    sources: _SourceVersions
    """Source versions before the first step. The refresh ends when the view contains their rows."""
    began_ms: int
    """Clock time at which the first step began."""
    duration_ms: int = 0
    """Duration of the steps, without the time between them."""
    report: RefreshReport = _NO_REFRESH


@dataclass
class _Entry:
    """A view that the service refreshes. Only the service's loop changes it."""

    table: Table
    status: ViewStatus
    began_ms: int | None = None
    """Clock time at which the step in progress began."""
    steps: _RefreshProgress | None = None
    """The refresh in progress with remaining steps; None if there is none."""
    number: int | None = None
    """Number of the last refresh at the last check."""
    last_sources: _SourceVersions | None = None
    """Source versions before this service's last refresh. If no other service refreshed the view since, the view
    contains the rows of these versions.
    """


class ViewService:
    """Refreshes the views of a warehouse. An error of a view is logged and retried, and other views are still
    refreshed.

    ``run`` runs one step. ``on_view`` receives the status of a view when a step begins and ends. A thread that the
    service starts calls ``begin`` first.
    """

    def __init__(
        self,
        run: RunStep,
        connection: Connection,
        clock: Clock,
        names: Sequence[str] | None,
        *,
        on_view: Callable[[ViewStatus], None] | None = None,
        begin: Callable[[], object] | None = None,
    ) -> None:
        self._begin = begin
        self._run_step, self._connection, self._clock = run, connection, clock
        self._names, self._on_view = names, on_view
        self._service_id = connection.warehouse().world.ids.new_uuid()
        self._discovery = TableDiscovery(connection)
        self._entries: dict[str, _Entry] = {}
        self._unopened: dict[str, str] = {}
        self._listed_ms: int | None = None
        self._stop = new_event()
        self._lock = new_lock()

    def run(self, stop: threading.Event | None = None) -> None:
        """Refresh until stopped. Returns when the step in progress has ended."""
        while not self._is_stopping(stop):
            try:
                was_due = self.run_once()
            except Exception:  # a service logs and survives any error
                logger.exception("views of %s could not be checked, retrying", self._connection.location)
                was_due = False
            if not was_due:
                (stop or self._stop).wait(POLL_MS / 1000)

    def _is_stopping(self, stop: threading.Event | None) -> bool:
        return self._stop.is_set() or (stop is not None and stop.is_set())

    @contextmanager
    def run_in_background(self, stop: threading.Event | None = None) -> Iterator[None]:
        """Refresh in a background thread until the block ends, and wait for the step in progress."""

        def work() -> None:
            try:
                if self._begin is not None:
                    self._begin()
            except Exception:  # a failure of a Spark setting must not stop refreshes
                logger.exception("refreshes run without their own scheduler pool")
            self.run(stop)

        thread = threading.Thread(target=work, name="streamhouse-views")
        thread.start()
        try:
            yield
        finally:
            self.stop()
            thread.join()

    def stop(self) -> None:
        self._stop.set()

    def status(self) -> list[ViewStatus]:
        """Return the status of each view, sorted by name. Thread-safe."""
        now_ms = self._clock.boot_ms()
        with self._lock:
            statuses = [
                entry.status
                if (began_ms := entry.began_ms) is None
                else replace(entry.status, refreshing_ms=now_ms - began_ms)
                for entry in self._entries.values()
            ]
        return sorted(statuses, key=lambda view: view.name)

    def run_once(self) -> bool:
        """Check the longest overdue view and run a step of its refresh. Returns whether a view was due."""
        now_ms = self._clock.boot_ms()
        if self._listed_ms is None or now_ms - self._listed_ms >= self._discovery.interval_ms:
            self._listed_ms = now_ms
            self._discover_views(now_ms)
        due = [entry for entry in self._entries.values() if entry.status.due_ms <= now_ms]
        if not due:
            return False
        self._process_view(min(due, key=lambda entry: entry.status.due_ms), now_ms)
        return True

    # -- one view -------------------------------------------------------------------------------------------------

    def _process_view(self, entry: _Entry, now_ms: int) -> None:
        """Check a view. Run a step if it is behind its sources, not paused, and not claimed by another service."""
        try:
            states = self._check_view(entry, now_ms)
            if states is None:
                return
            table = entry.table
            with claim_work(table.storage, table.uuid, self._service_id, work="refresh") as is_ours:
                if is_ours:
                    self._refresh_step(entry, states)
                else:
                    due_ms = now_ms + max(POLL_MS, min(entry.status.freshness_ms, ELSEWHERE_MS))
                    self._update_status(entry, doing="elsewhere", due_ms=due_ms)
        except Exception as error:  # noqa: BLE001 - an error of Spark, storage or the query must not affect other views
            self._record_failure(entry, error)

    def _check_view(self, entry: _Entry, now_ms: int) -> Mapping[str, TableState] | None:
        """Return the source states if a view needs a refresh. Otherwise schedule its next check, and return None."""
        state = entry.table.refresh()
        definition = ViewDefinition.of(state.properties, state.name)
        freshness_ms = definition.freshness_ms
        later_ms = now_ms + max(freshness_ms, POLL_MS)
        self._update_status(entry, name=state.name, freshness_ms=freshness_ms)
        number, lineage = last_refresh(state)
        states = self._source_states(lineage)
        versions = _source_versions(states)
        is_changed_elsewhere = entry.number not in (None, number)
        if is_changed_elsewhere:
            entry.last_sources = None
        entry.number = number
        is_done = bool(states) and lineage is not None and versions in (entry.last_sources, _lineage_versions(lineage))
        self._update_lag(entry, None if is_done else lineage, states)
        if definition.paused or is_done:
            entry.steps = None
            doing: Doing = "paused" if definition.paused else "waiting"
            self._update_status(entry, doing=doing, due_ms=later_ms, error=None, failures=0, steps=0)
            return None
        if (
            is_changed_elsewhere
            and (left_ms := _last_refresh_ms(state) + freshness_ms - entry.table.storage.now_ms()) > 0
        ):
            is_between_steps = lineage is not None and _ends_within_commit(lineage)
            due_ms = now_ms + (min(left_ms, CLAIM_MS) if is_between_steps else left_ms)
            self._update_status(
                entry, doing="elsewhere" if is_between_steps else "waiting", due_ms=due_ms, error=None, failures=0
            )
            return None
        return states

    def _source_states(self, lineage: Lineage | None) -> Mapping[str, TableState]:
        """Return source → state. Empty if a source was dropped or cannot be opened; the refresh raises the error."""
        states: dict[str, TableState] = {}
        for source in lineage.sources if lineage is not None else ():
            try:
                table = self._connection.find_table(source.name)
            except StreamhouseError:
                return {}
            if table is None:
                return {}
            states[source.name] = table.state
        return states

    def _update_lag(self, entry: _Entry, lineage: Lineage | None, states: Mapping[str, TableState]) -> None:
        if lineage is None or not states:
            self._update_status(entry, commits_behind=0, rows_behind=0, lag_ms=0)
            return
        lag = compute_lag(lineage, states)
        lag_ms = 0 if lag.oldest_ms is None else max(0, entry.table.storage.now_ms() - lag.oldest_ms)
        commits, rows = sum(lag.commits.values()), sum(lag.rows.values())
        self._update_status(entry, commits_behind=commits, rows_behind=rows, lag_ms=lag_ms)

    def _refresh_step(self, entry: _Entry, states: Mapping[str, TableState]) -> None:
        """Run a step of the refresh in progress, or the first step of a new refresh.

        Between two steps, ``last_sources`` is None, because rows are missing from the view even if its sources did not
        change.
        """
        began_ms = entry.began_ms = self._clock.boot_ms()
        self._update_status(entry, doing="refreshing")
        self._notify(entry)
        versions = _source_versions(states)
        before = entry.steps or _RefreshProgress(versions, began_ms)
        report = self._run_step(entry.status.name, before.report)
        now_ms, entry.began_ms = self._clock.boot_ms(), None
        steps = replace(before, report=report, duration_ms=before.duration_ms + now_ms - began_ms)
        entry.number, lineage = last_refresh(entry.table.state)
        self._update_status(entry, failures=0, error=None, **_add_counts(entry.status, before.report, report))
        if report.goal is not None:
            entry.steps, entry.last_sources = steps, None
            self._update_status(entry, doing="between steps", due_ms=now_ms, steps=report.steps)
            self._update_lag(entry, lineage, states or self._source_states(lineage))
        else:
            self._finish_refresh(entry, steps, now_ms if entry.steps is not None else 0)
            self._update_lag(entry, None if versions == steps.sources else lineage, states)
        self._notify(entry)

    def _finish_refresh(self, entry: _Entry, steps: _RefreshProgress, earliest_ms: int) -> None:
        """Record the end of a refresh, and schedule the next refresh."""
        entry.steps, entry.last_sources = None, steps.sources
        due_ms = max(earliest_ms, steps.began_ms + max(entry.status.freshness_ms, POLL_MS))
        report, duration_ms = steps.report, steps.duration_ms
        self._update_status(entry, doing="waiting", due_ms=due_ms, steps=0, last=report, last_duration_ms=duration_ms)
        if report.changed:
            numbers = {"written": report.rows_written, "deleted": report.rows_deleted, "duration_ms": duration_ms}
            log_fields = {
                "streamhouse_view": entry.status.name,
                **{f"streamhouse_{name}": n for name, n in numbers.items()},
            }
            logger.info("view %s: %d rows written", entry.status.name, report.rows_written, extra=log_fields)

    def _record_failure(self, entry: _Entry, error: Exception) -> None:
        was_refreshing, entry.began_ms = entry.began_ms is not None, None
        failures = entry.status.failures + 1
        pause_ms = min(max(entry.status.freshness_ms, 1_000) * 2 ** min(failures, 16), PAUSE_MAX_MS)
        text = _first_line(error)
        logger.warning("refreshing %s failed %d times in a row: %s", entry.status.name, failures, text)
        due_ms = self._clock.boot_ms() + pause_ms
        self._update_status(entry, doing="failed", failures=failures, error=text, due_ms=due_ms)
        if was_refreshing:
            self._notify(entry)

    def _notify(self, entry: _Entry) -> None:
        if self._on_view is None:
            return
        try:
            self._on_view(entry.status)
        except Exception:  # a failing listener must not stop refreshes
            logger.exception("on_view failed, refreshes continue")

    def _update_status(self, entry: _Entry, **changed: object) -> None:
        with self._lock:
            entry.status = replace(entry.status, **changed)  # type: ignore[arg-type]

    # -- all views ------------------------------------------------------------------------------------------------

    def _discover_views(self, now_ms: int) -> None:
        """List the views, and update the entries of new, dropped, paused and resumed views."""
        try:
            listing = self._discovery.discover(self._names)
        except StreamhouseError as error:
            logger.warning("views of %s could not be listed, retrying: %s", self._connection.location, error)
            return
        for name, problem in listing.failures.items():
            if self._unopened.get(name) != str(problem):
                logger.warning("%s cannot be checked: %s", name, problem)
        self._unopened = {name: str(problem) for name, problem in listing.failures.items()}
        entries: dict[str, _Entry] = {}
        views = [table for table in listing.tables if VIEW in table.state.properties]
        storage = self._connection.warehouse().storage
        for table, definition in zip(views, map_with_store_concurrency(storage, _read_definition, views), strict=True):
            if (entry := self._update_entry(table, definition, now_ms)) is not None:
                entries[table.uuid] = entry
        retained = {u: e for u, e in self._entries.items() if u not in entries and e.status.name in self._unopened}
        with self._lock:
            self._entries = {**entries, **retained}

    def _update_entry(self, table: Table, definition: ViewDefinition | StreamhouseError, now_ms: int) -> _Entry | None:
        """Return the entry of a view, or None if the view was dropped. A new or resumed view is due immediately."""
        entry = self._entries.get(table.uuid)
        if isinstance(definition, TableNotFoundError):
            self._discovery.forget(table)
            return None
        if isinstance(definition, StreamhouseError):
            logger.warning("%s cannot be checked: %s", table.name, definition)
            return entry
        if entry is None:
            return _Entry(table, ViewStatus(table.name, definition.freshness_ms, now_ms))
        is_paused = entry.status.doing == "paused"
        if definition.paused and not is_paused:
            entry.steps = None
            self._update_status(entry, doing="paused", error=None, failures=0, steps=0)
        elif is_paused and not definition.paused:
            self._update_status(entry, doing="waiting", due_ms=now_ms)
        return entry


def _add_counts(status: ViewStatus, before: RefreshReport, after: RefreshReport) -> dict[str, int]:
    """Return the counts of a view after another step. Each report includes all steps of its refresh."""
    return {
        "refreshes": status.refreshes + after.changed - before.changed,
        "rows_written": status.rows_written + after.rows_written - before.rows_written,
        "rows_deleted": status.rows_deleted + after.rows_deleted - before.rows_deleted,
        "whole": status.whole + _is_whole(after) - _is_whole(before),
    }


def _is_whole(report: RefreshReport) -> bool:
    return report.changed and report.whole_because is not None


def _read_definition(table: Table) -> ViewDefinition | StreamhouseError:
    try:
        state = table.refresh()
        return ViewDefinition.of(state.properties, state.name)
    except StreamhouseError as error:
        return error


def _first_line(error: Exception) -> str:
    """Return the first line of an error's text. For a JVM error, skip the generic first line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling "):
        lines = lines[1:]
    return lines[0].strip(": ") if lines else type(error).__name__


def _source_versions(states: Mapping[str, TableState]) -> _SourceVersions:
    return {name: (state.table_uuid, state.version, state.attempt) for name, state in states.items()}


def _ends_within_commit(lineage: Lineage) -> bool:
    return any(source.is_cut for source in lineage.sources)


def _lineage_versions(lineage: Lineage) -> _SourceVersions:
    """Return the source versions of a lineage. Empty if it ends within a commit, so that the refresh continues."""
    if _ends_within_commit(lineage):
        return {}
    return {source.name: (source.uuid, source.version, source.attempt) for source in lineage.sources}


def _last_refresh_ms(state: TableState) -> int:
    """Return the store time of the view's last refresh; 0 if unknown."""
    last = state.transactions.get(REFRESHES)
    return 0 if last is None else last.time_ms


def make_view_service(
    spark: SparkSession,
    warehouse: str,
    names: Sequence[str] | None,
    on_view: Callable[[ViewStatus], None] | None = None,
) -> ViewService:
    """Return the service that refreshes the named views, or all views, with a Spark session.

    Raises `InvalidOptionError` if the session's catalog ``streamhouse`` has another warehouse.
    """
    connection = connect_catalog(spark)
    if connection.location != warehouse:
        raise InvalidOptionError(
            f"warehouse is {quote(warehouse)}, expected {quote(connection.location)}, the warehouse of the session's "
            "catalog streamhouse"
        )
    begin = partial(_enter_pool, spark)
    run = Refresher(spark, connection).step
    return ViewService(run, connection, SystemClock(), names, on_view=on_view, begin=begin)


def _enter_pool(spark: SparkSession) -> None:
    """Run the jobs of this thread in a separate scheduler pool, so that long jobs do not delay them."""
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is not None:
        context.setLocalProperty("spark.scheduler.pool", POOL)


def make_view_metrics(views: Sequence[ViewStatus]) -> list[Metric]:
    """Return the metrics of views. Counters start at 0 when the service starts."""
    return [
        *table_metrics(GAUGES, COUNTERS, {view.name: view for view in views}),
        doing_metric("streamhouse_view_doing", [(view.name, view.doing) for view in views]),
    ]
