"""Tiering service: tiers the tables of a warehouse in rounds, and maintains them, until it is stopped.

Rounds create small files. So the service compacts a table after every `ROUNDS_TO_COMPACT` rounds and expires snapshots
after every `ROUNDS_TO_EXPIRE` rounds, unless the table's properties disable it. The other maintenance, also of the log,
runs every ten minutes. Orphan files are removed once an hour, because the search reads the metadata of all snapshots.

The failure of a round is also recorded next to the table, where other tools show it. The record is a hint: if it cannot
be written, rounds continue.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Literal

from streamhouse_spark.config.table_properties import TableProperties
from streamhouse_spark.core.clock import Clock, host_name
from streamhouse_spark.core.concurrency import new_event, new_lock, reinit_after_fork
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, StreamhouseError, TableNotFoundError
from streamhouse_spark.lake.tiering.job import TieringReport
from streamhouse_spark.lake.tiering.plan import TieringTask
from streamhouse_spark.lake.tiering.round import RunTasks
from streamhouse_spark.lake.types import LakeFile
from streamhouse_spark.log.catalog.claims import release_claim, try_claim
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.tiering_failures import Work, describe_failure, record_failure, record_success
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.service.openlineage import LineageListener, RoundEventEmitter
from streamhouse_spark.service.table_discovery import TableDiscovery
from streamhouse_spark.storage.prefetch import map_with_store_concurrency
from streamhouse_spark.table.maintenance.lake import LakeMaintainReport, LakeStep, maintain_lake
from streamhouse_spark.table.maintenance.log import maintain
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection

logger = logging.getLogger(__name__)
ROUNDS_TO_COMPACT = 10
ROUNDS_TO_EXPIRE = 50
MAINTENANCE_MS = 10 * 60_000
ORPHANS_MS = 60 * 60_000
POLL_MS = 500
POLL_MS_MAX = 30_000
"""Maximum time between two polls of an idle table's log, for any freshness."""
TABLES_AT_ONCE = 4
_BACKOFF_MS = 1_000
_BACKOFF_MS_MAX = 300_000
Doing = Literal["waiting", "tiering", "maintaining", "elsewhere", "failed"]


class FailureRecorder:
    """Records failures next to the tables. A table must be used by one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._host = host_name()
        self._has_failure_note: dict[tuple[str, Work], bool] = {}
        """Whether the note of a table may contain a failure of this work."""

    def record_failure(self, table: Table, work: Work, error: BaseException, began_ms: int) -> None:
        """Record a failure of work that began at a boot time. The failure of a dropped table is not recorded."""
        self._has_failure_note[table.uuid, work] = True
        if isinstance(error, TableNotFoundError):
            return
        duration_ms = self._clock.boot_ms() - began_ms
        try:
            rows, now_ms = sum(bucket_lags(table.state).values()), table.storage.now_ms()
            failure = describe_failure(work, error, host=self._host, rows=rows, now_ms=now_ms, duration_ms=duration_ms)
            record_failure(table.storage, table.uuid, failure)
        except Exception as problem:  # noqa: BLE001 - the note is a hint
            logger.info("cannot record the failed round of %s: %s", table.name, problem)

    def note_success(self, table: Table, work: Work) -> None:
        """Record a success after failures of this process.

        The first success of maintenance is always recorded, because an earlier process may have failed. This is not
        needed for tiering, because the log shows that rows were tiered.
        """
        if not self._has_failure_note.get((table.uuid, work), work == "maintenance"):
            return
        with log_post_commit_errors(logger, "the note that rounds succeed", table.name):
            record_success(table.storage, table.uuid, work, table.storage.now_ms())
            self._has_failure_note[table.uuid, work] = False

    @contextmanager
    def note_failure(self, table: Table) -> Iterator[None]:
        """Record the error that ends the block as the failure of a tiering round."""
        began_ms = self._clock.boot_ms()
        try:
            yield
        except Exception as error:
            self.record_failure(table, "tiering", error, began_ms)
            raise


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """The maintenance of a table since the service's start."""

    compactions: int = 0
    """Lake snapshots of compactions."""
    compacted_files: int = 0
    """Lake files that compaction replaced."""
    expired_snapshots: int = 0
    deleted_files: int = 0
    """Lake files that were deleted with expired snapshots or as orphan files."""
    conflicts: int = 0
    """Steps that lost a commit race and are deferred to the next run."""
    error: str | None = None
    """First line of the last maintenance error; None after a success. Tiering continues after errors."""
    failures: int = 0
    """Maintenance errors since the last success."""

    def after(self, report: LakeMaintainReport) -> MaintenanceStatus:
        return replace(
            self,
            compactions=self.compactions + (report.compacted.snapshot is not None),
            compacted_files=self.compacted_files + report.compacted.files_removed,
            expired_snapshots=self.expired_snapshots + len(report.expired.snapshots),
            deleted_files=self.deleted_files + len(report.expired.files) + len(report.orphans),
            conflicts=self.conflicts + len(report.conflicts),
        )


@dataclass(slots=True)
class MaintenanceRunner:
    """Runs the maintenance of a table when it is due. Other threads than the table's worker may call `is_due` only."""

    began_ms: int
    """Boot time of the start. At the start no maintenance is due, because services may start together."""
    maintenance_ms: int = MAINTENANCE_MS
    maintained_ms: int | None = None
    orphans_ms: int | None = None
    uncompacted_rounds: int = 0
    unexpired_rounds: int = 0

    def is_due(self, now_ms: int) -> bool:
        """Return whether maintenance is due by time, whatever the number of rounds."""
        return now_ms - (self.began_ms if self.maintained_ms is None else self.maintained_ms) >= self.maintenance_ms

    def add_rounds(self, num_rounds: int) -> None:
        self.uncompacted_rounds += num_rounds
        self.unexpired_rounds += num_rounds

    def run(self, table: Table, now_ms: int) -> LakeMaintainReport | None:
        """Run the maintenance that is due; returns None if none is due. A failed step is due after the next interval.

        Raises the errors of maintenance.
        """
        if self.is_due(now_ms):
            steps = self._all_steps(now_ms)
            return maintain(table, grace_ms=GRACE_MS, dry_run=False, lake_steps=steps).lake
        steps = self._steps_after_rounds(table.properties)
        return maintain_lake(table, table.open_lake(), GRACE_MS, steps=steps) if steps else None

    def _all_steps(self, now_ms: int) -> tuple[LakeStep, ...]:
        self.maintained_ms = now_ms
        self.uncompacted_rounds = self.unexpired_rounds = 0
        if now_ms - (self.began_ms if self.orphans_ms is None else self.orphans_ms) < ORPHANS_MS:
            return ("compact", "expire", "metadata")
        self.orphans_ms = now_ms
        return ("compact", "expire", "orphans", "metadata")

    def _steps_after_rounds(self, properties: TableProperties) -> tuple[LakeStep, ...]:
        steps: list[LakeStep] = []
        if self.uncompacted_rounds >= ROUNDS_TO_COMPACT:
            self.uncompacted_rounds = 0
            steps += ["compact"] if properties.datalake_auto_compaction else []
        if self.unexpired_rounds >= ROUNDS_TO_EXPIRE:
            self.unexpired_rounds = 0
            steps += ["expire"] if properties.datalake_auto_expire_snapshot else []
        return tuple(steps)


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The status of a table. ``elsewhere`` means that another service is working on the table."""

    table: str
    doing: Doing = "waiting"
    lag_rows: int = 0
    """Rows that are not tiered, as of the last poll."""
    lag_ms: int = 0
    """Age of the oldest row that is not tiered."""
    freshness_ms: int = 0
    """Target for the maximum of ``lag_ms``: ``table.datalake.freshness``."""
    rounds: int = 0
    rows: int = 0
    """Rows that this service has tiered."""
    healed_rows: int = 0
    """Duplicate rows of keys, written by other engines, that rounds and compactions of this service removed."""
    last_report: TieringReport | None = None
    error: str | None = None
    """First line of the last error; None after a success."""
    failures: int = 0
    """Errors since the last success."""
    maintenance: MaintenanceStatus = field(default_factory=MaintenanceStatus)


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """The health of the service."""

    turned_ms_ago: int | None
    """Milliseconds since the last iteration of the service's loop began; None before the first."""
    tables: int | None
    """Number of tables, including tables that cannot be opened; None before the first listing."""
    listing_error: str | None
    """First line of the error of the last listing; None if it succeeded."""
    stopping: bool


@dataclass
class _Entry:
    """The loop's entry of a table, which the loop and the table's worker change."""

    table: Table
    status: TableStatus
    maintenance: MaintenanceRunner
    work: Future[None] | None = None
    not_before_ms: int = 0
    last_duration_ms: int = 0
    overdue_ms: int = -1
    """`Service._overdue_ms` as of the last poll."""
    poll_at_ms: int = 0

    @property
    def is_busy(self) -> bool:
        return self.work is not None and not self.work.done()


class StopRequested(Exception):  # noqa: N818 - not an error
    """The service is stopping, and ends the current catch-up between two rounds."""


class Service:
    """The loop of `streamhouse_spark.TieringService`. ``run_tasks`` runs the tasks of a round on Spark or locally."""

    def __init__(
        self,
        run_tasks: RunTasks,
        connection: Connection,
        tables: Sequence[str] | None = None,
        *,
        on_report: Callable[[TieringReport], None] | None = None,
        on_lineage: LineageListener | None = None,
        maintenance_ms: int = MAINTENANCE_MS,
    ) -> None:
        self._connection = connection
        self._names = list(tables) if tables is not None else None
        self._on_report = on_report
        self._on_lineage = on_lineage
        self._maintenance_ms = maintenance_ms
        self._clock = connection.warehouse().world.clock
        self._service_id = connection.warehouse().world.ids.new_uuid()
        self._run_tasks = run_tasks
        self._discovery = TableDiscovery(connection)
        self._notes = FailureRecorder(self._clock)
        self._entries: dict[str, _Entry] = {}
        self._unopened: dict[str, TableStatus] = {}
        self._lock = new_lock()
        self._stop = new_event()
        self._terminated = False
        self._running = new_lock()
        self._listed_ms: int | None = None
        self._listing_error: str | None = None
        self._turned_ms: int | None = None
        self._dropped_cleaned_ms = self._clock.boot_ms()
        reinit_after_fork(self)

    def renew_in_child(self) -> None:
        """Create a new service id after a fork, and drop the rounds in progress, which belong to the parent."""
        self._service_id = self._connection.warehouse().world.ids.new_uuid()
        self._entries = {}
        self._discovery = TableDiscovery(self._connection)
        self._notes = FailureRecorder(self._clock)

    def stop(self) -> None:
        """End `run` after the rounds in progress. Safe for threads; idempotent."""
        self._stop.set()

    def status(self) -> list[TableStatus]:
        """Return the status of each table, by name. Safe for threads."""
        with self._lock:
            statuses = [*(entry.status for entry in self._entries.values()), *self._unopened.values()]
            return sorted(statuses, key=lambda status: status.table)

    def health(self) -> ServiceHealth:
        """Return the health of the service. Sends no storage request. Safe for threads."""
        with self._lock:
            tables = len(self._entries) + len(self._unopened)
            listed = tables if self._listed_ms is not None and (tables or self._listing_error is None) else None
            turned_ms_ago = None if self._turned_ms is None else self._clock.boot_ms() - self._turned_ms
            return ServiceHealth(turned_ms_ago, listed, self._listing_error, self._stop.is_set() or self._terminated)

    def run(self, stop: threading.Event | None = None) -> None:
        """Tier until stopped. Raises `TableNotFoundError` at the start if a named table does not exist."""
        with self._running, self._stop_on_sigterm(), ThreadPoolExecutor(TABLES_AT_ONCE) as pool:
            for name in self._names or ():
                self._require_table(name)
            try:
                while not self._is_stopping(stop):
                    self._turned_ms = self._clock.boot_ms()
                    self._discover_tables()
                    for entry in self._find_due():
                        num_busy = sum(entry.is_busy for entry in self._entries.values())
                        if num_busy >= TABLES_AT_ONCE or self._is_stopping(stop):
                            break
                        entry.work = pool.submit(self._work, entry)
                    self._stop.wait(POLL_MS / 1000) if stop is None else stop.wait(POLL_MS / 1000)
            finally:
                self._stop.set()

    # -- the loop -------------------------------------------------------------------------------------------------

    def _is_stopping(self, stop: threading.Event | None) -> bool:
        return self._terminated or self._stop.is_set() or (stop is not None and stop.is_set())

    @contextmanager
    def _stop_on_sigterm(self) -> Iterator[None]:
        """In the main thread, let SIGTERM stop the service after the rounds in progress."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def terminate(*_: object) -> None:
            self._terminated = True  # the interrupted thread may hold the event's lock

        previous = signal.signal(signal.SIGTERM, terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)

    def _require_table(self, name: str) -> None:
        try:
            self._connection.table(name)
        except (CorruptDataError, FormatVersionError) as error:  # the status reports it, and other tables continue
            logger.warning("cannot open table %s: %s", name, error)

    def _discover_tables(self) -> None:
        """Discover new and dropped tables if the listing interval has passed."""
        now_ms = self._clock.boot_ms()
        if self._listed_ms is not None and now_ms - self._listed_ms < self._discovery.interval_ms:
            return
        self._listed_ms = now_ms
        try:
            listing = self._discovery.discover(self._names)
        except StreamhouseError as error:
            logger.warning("cannot list the tables of %s, retrying: %s", self._connection.location, error)
            with self._lock:
                self._listing_error = _first_line(error)
            return
        unopened = {name: self._record_unopened(name, error) for name, error in listing.failures.items()}
        tables = {table.uuid: table for table in listing.tables if table.properties.datalake_enabled}
        with self._lock:
            self._listing_error = None
            retained = {
                u: e for u, e in self._entries.items() if u in tables or e.is_busy or e.status.table in unopened
            }
            new = {u: self._new_entry(t) for u, t in tables.items() if u not in retained}
            self._entries = {**retained, **new}
            named = {entry.status.table for entry in self._entries.values()}
            self._unopened = {name: status for name, status in unopened.items() if name not in named}

    def _record_unopened(self, name: str, error: StreamhouseError) -> TableStatus:
        """Return the status of a table that cannot be opened, and log its error if the error is new."""
        previous, text = self._unopened.get(name), _first_line(error)
        if previous is None or previous.error != text:
            logger.error("cannot open table %s, other tables continue: %s", name, text)
        return TableStatus(name, "failed", error=text, failures=previous.failures + 1 if previous is not None else 1)

    def _new_entry(self, table: Table) -> _Entry:
        return _Entry(table, TableStatus(table.name), MaintenanceRunner(self._clock.boot_ms(), self._maintenance_ms))

    def _find_due(self) -> list[_Entry]:
        """Return the tables with due work, the most overdue table first."""
        now_ms = self._clock.boot_ms()
        free = [e for e in self._entries.values() if not e.is_busy and now_ms >= e.not_before_ms]
        storage = self._connection.warehouse().storage
        polled = [entry for entry in free if now_ms >= entry.poll_at_ms]
        for entry, succeeded in zip(polled, map_with_store_concurrency(storage, self._poll, polled), strict=True):
            if not succeeded:
                self._discovery.forget(entry.table)
        due = [e for e in free if e.overdue_ms >= 0 or (e.maintenance.is_due(now_ms) and now_ms >= e.not_before_ms)]
        return sorted(due, key=lambda entry: -entry.overdue_ms)

    def _poll(self, entry: _Entry) -> bool:
        """Update how overdue a table is, and schedule its next poll. Returns False after an error.

        A new row of an idle table is noticed after at most half the freshness.
        """
        try:
            overdue_ms = self._overdue_ms(entry)
        except StreamhouseError as error:
            self._record_failure(entry, error)
            return False
        entry.overdue_ms = overdue_ms
        entry.poll_at_ms = self._clock.boot_ms() + max(POLL_MS, min(POLL_MS_MAX, -overdue_ms // 2))
        return True

    def _overdue_ms(self, entry: _Entry) -> int:
        """Return the milliseconds since the time at which a round must start to meet the freshness; negative before."""
        table = entry.table
        state = table.refresh()
        oldest_ms = oldest_waiting_ms(state)
        lag_ms = max(0, table.storage.now_ms() - oldest_ms) if oldest_ms is not None else 0
        lag_rows = sum(log.end - min(log.end, state.lake_offset(bucket)) for bucket, log in state.buckets.items())
        freshness_ms = table.properties.datalake_freshness_ms
        self._update_status(entry, table=table.name, lag_rows=lag_rows, lag_ms=lag_ms, freshness_ms=freshness_ms)
        head_start_ms = min(entry.last_duration_ms + 2 * POLL_MS, freshness_ms)
        overdue_ms = lag_ms - (freshness_ms - head_start_ms)
        return min(overdue_ms, -1) if oldest_ms is None or state.dropped else overdue_ms

    # -- one table, in a worker thread ----------------------------------------------------------------------------

    def _work(self, entry: _Entry) -> None:
        table, began_ms = entry.table, self._clock.boot_ms()
        entry.overdue_ms, entry.poll_at_ms = -1, 0  # poll again after the round
        try:
            if not try_claim(table.storage, table.uuid, self._service_id):
                entry.not_before_ms = self._clock.boot_ms() + POLL_MS
                self._update_status(entry, doing="elsewhere")
                return
            try:
                self._tier(entry)
                self._notes.note_success(table, "tiering")
                self._maintain(entry)
            finally:
                release_claim(table.storage, table.uuid, self._service_id)
            self._update_status(entry, doing="waiting", error=None, failures=0)
        except StopRequested:
            self._update_status(entry, doing="waiting")
        except Exception as error:  # noqa: BLE001 - logged; other tables continue
            self._record_failure(entry, error)
            self._notes.record_failure(table, "tiering", error, began_ms)

    def _tier(self, entry: _Entry) -> None:
        self._update_status(entry, doing="tiering")
        report = self._run_round(entry)
        entry.last_duration_ms = report.duration_ms
        done = 1 if report.snapshots else 0
        entry.maintenance.add_rounds(len(report.snapshots))
        status = entry.status
        self._update_status(
            entry,
            rounds=status.rounds + done,
            rows=status.rows + report.rows,
            healed_rows=status.healed_rows + report.healed_rows,
            last_report=report,
        )
        if report.snapshots:
            of = {name: getattr(report, name) for name in ("table", "rows", "files", "size_bytes", "duration_ms")}
            extra = {f"streamhouse_{name}": value for name, value in of.items()}
            logger.info("table %s: tiered %d rows", report.table, report.rows, extra=extra)
        if report.snapshots and self._on_report is not None:
            self._on_report(report)

    def _run_round(self, entry: _Entry) -> TieringReport:
        """Tier the table and emit lineage events."""
        if self._on_lineage is None:
            return tier_table(entry.table, self._stoppable_tasks(entry, None))
        events = RoundEventEmitter(self._on_lineage, entry.table, self._connection.warehouse().world)
        try:
            report = tier_table(entry.table, self._stoppable_tasks(entry, events))
        except StopRequested:
            events.emit_abort()
            raise
        except BaseException as error:
            events.emit_failure(error)
            raise
        events.emit_end(report)
        return report

    def _stoppable_tasks(self, entry: _Entry, events: RoundEventEmitter | None) -> RunTasks:
        def run(tasks: Sequence[TieringTask]) -> Sequence[Sequence[LakeFile]]:
            if self._stop.is_set():
                raise StopRequested
            if tasks and events is not None:
                events.emit_start()
            try_claim(entry.table.storage, entry.table.uuid, self._service_id)  # renewed for a long round
            return self._run_tasks(tasks)

        return run

    def _maintain(self, entry: _Entry) -> None:
        """Run the maintenance that is due. Its errors do not stop tiering."""
        maintained, began_ms = entry.status.maintenance, self._clock.boot_ms()
        self._update_status(entry, doing="maintaining")
        try:
            try_claim(entry.table.storage, entry.table.uuid, self._service_id)  # renewed for long maintenance
            report = entry.maintenance.run(entry.table, self._clock.boot_ms())
            self._clean_dropped()
        except Exception as error:
            text = _first_line(error)
            logger.exception("maintenance of %s failed, tiering continues: %s", entry.table.name, text)
            self._update_status(entry, maintenance=replace(maintained, error=text, failures=maintained.failures + 1))
            self._notes.record_failure(entry.table, "maintenance", error, began_ms)
            return
        if report is not None:
            self._notes.note_success(entry.table, "maintenance")
            healed = entry.status.healed_rows + report.compacted.healed_rows
            self._update_status(
                entry, healed_rows=healed, maintenance=replace(maintained.after(report), error=None, failures=0)
            )

    def _clean_dropped(self) -> None:
        now_ms = self._clock.boot_ms()
        if now_ms - self._dropped_cleaned_ms >= self._maintenance_ms:
            self._dropped_cleaned_ms = now_ms
            self._connection.warehouse().clean_dropped()

    def _record_failure(self, entry: _Entry, error: Exception) -> None:
        failures = entry.status.failures + 1
        backoff_ms = min(_BACKOFF_MS_MAX, _BACKOFF_MS * 2 ** min(failures - 1, 16))
        entry.not_before_ms = self._clock.boot_ms() + backoff_ms
        text = _first_line(error)
        logger.error("tiering %s failed, retrying in %d ms: %s", entry.table.name, backoff_ms, text, exc_info=error)
        self._update_status(entry, doing="failed", error=text, failures=failures)

    def _update_status(self, entry: _Entry, **changed: object) -> None:
        with self._lock:
            entry.status = replace(entry.status, **changed)  # type: ignore[arg-type]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def oldest_waiting_ms(state: TableState) -> int | None:
    """Return the commit time of the oldest row, truncation or deletion that is not tiered, or None."""
    waiting = [
        next((s.first_time_ms for s in log.segments if s.end_offset > state.lake_offset(bucket)), None)
        for bucket, log in state.buckets.items()
    ]
    if state.truncation is not None and state.lake_is_outdated:
        waiting.append(state.truncation.time_ms)
    lake = state.lake
    if lake is not None:
        waiting += [deletion.time_ms for deletion in state.deletions if deletion.commit > lake.applied_through]
    return min((time_ms for time_ms in waiting if time_ms is not None), default=None)
