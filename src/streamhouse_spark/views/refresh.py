"""Refresh of a view with Spark: SQL over Z-sets computes the changed rows, and the driver commits them.

All changed rows of a refresh pass through the driver. The commit point is in `streamhouse_spark.table.refresh_commit`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import PySparkException

from streamhouse_spark.config.table_properties import ViewDefinition
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.errors import CommitConflictError, TableNotFoundError, count_of
from streamhouse_spark.log.transactions import Lineage
from streamhouse_spark.table.refresh_commit import RefreshStep, commit_step, make_next_step
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.local_reads import is_mostly_changed
from streamhouse_spark.views.query_analysis import PlanCache
from streamhouse_spark.views.step_execution import StepExecution
from streamhouse_spark.views.step_planning import choose_step, covers
from streamhouse_spark.warehouse.process_cache import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RACES_MAX: Final = 10
MOSTLY_CHANGED: Final = "most rows of a source changed"
_NO_LONGER_READ: Final = ("SNAPSHOT_EXPIRED", "OFFSETS_TRIMMED", "SnapshotExpiredError", "OffsetsTrimmedError")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """The outcome of a refresh."""

    changed: bool
    """Whether the refresh committed. False if the view already contains all rows of its sources."""
    rows_written: int = 0
    """Number of rows written by all steps. ``rows_deleted`` is also a sum over all steps."""
    rows_deleted: int = 0
    whole_because: str | None = None
    """Reason why a step recomputed the full query, for the first such step. None if the refresh was incremental."""
    versions: Mapping[str, int] | None = None
    """Source → version that the view reflects."""
    steps: int = 0
    """Number of commits; more than one only for a view with ``step_rows``."""
    goal: Lineage | None = None
    """The source versions at the end of the remaining steps; None if no step remains."""


class Refresher:
    """Refreshes views with a Spark session, and caches their compiled queries."""

    def __init__(self, spark: SparkSession, connection: Connection) -> None:
        self._spark, self._connection = spark, connection
        self._plans = PlanCache()

    def __call__(self, name: str) -> RefreshReport:
        """Refresh a view to the latest versions of its sources; see `refresh`."""
        return refresh(self._spark, self._connection, name, self._plans)

    def step(self, name: str, before: RefreshReport) -> RefreshReport:
        """Run the next step of the refresh in ``before``, and return a report that includes this step."""
        return refresh(self._spark, self._connection, name, self._plans, before, 1)


def refresh(
    spark: SparkSession,
    connection: Connection,
    name: str,
    plans: PlanCache,
    before: RefreshReport | None = None,
    steps_max: int | None = None,
) -> RefreshReport:
    """Refresh a view to the latest versions of its sources; with ``step_rows`` in steps.

    The refresh processes at least the rows that the sources had when it began. With ``steps_max`` it stops after that
    many steps, and the report contains the goal of the remaining steps. Pass that report as ``before`` to continue; the
    new report includes all steps.

    **Commit point:** for each step, the record of the view's table that contains the rows and the source versions.
    After a crash before the commit point, the next refresh continues after the last committed step.

    Raises `InvalidOptionError` for a table that is not a view, `TableNotFoundError` if a source was dropped, and
    `CommitConflictError` after too many lost races.
    """
    view = connection.table(name)
    definition = ViewDefinition.of(view.refresh().properties, view.name)
    spark = plans.session(spark, view.name, definition.session)
    parsed = plans.parse(view.name, definition.query)
    done = before or RefreshReport(changed=False)
    goal, done = done.goal, replace(done, goal=None)
    last_step = None if steps_max is None else done.steps + steps_max
    step_rows, whole_because, races = definition.step_rows, None, 0
    while races < RACES_MAX:
        sources = {source: connection.table(source) for source in parsed.sources}
        to_newest = make_next_step(view, sources, is_full=definition.mode == "full", because=whole_because)
        if to_newest is None:
            return done
        goal = goal or to_newest.new
        if done.changed and to_newest.old is not None and covers(to_newest.old, goal):
            return done  # the view contains all rows that its sources had when the refresh began
        chosen = choose_step(to_newest, sources, step_rows, goal)
        step = chosen.step
        is_last = not chosen.rows_left
        if is_last and not done.changed and _is_mostly_changed(step, sources):
            step = step.full_refresh(MOSTLY_CHANGED)
        run = StepExecution(spark, view, definition, plans, sources, step)
        races += 1
        try:
            rows, is_delete = run.compute_changes()
            if _are_replaced(connection, step, run.read_by_name):
                continue
            if step.new.whole_because not in (None, "mode is full", MOSTLY_CHANGED):
                logger.warning("%s: the full query was recomputed: %s", view.name, step.new.whole_because)
            if commit_step(view, step, rows, is_delete):
                done = _add_step(done, step, rows, is_delete)
                if is_last:
                    return done
                report_step(view.name, done.steps, chosen.rows_left)
                races = 0
                if done.steps == last_step:
                    return done if covers(step.new, goal) else replace(done, goal=goal)
        except (PySparkException, TableNotFoundError) as error:
            if not is_last and any(word in str(error) for word in _NO_LONGER_READ):
                logger.warning(
                    "%s: one step reads all remaining rows, because an older version has expired: %s", view.name, error
                )
                step_rows = None
                continue
            whole_because = _recompute_reason(connection, step, error, whole_because)
            continue
        finally:
            run.close()
        whole_because = None
    raise CommitConflictError(
        f"{view.name}: the refresh lost {RACES_MAX} commit races to other refreshes; refresh it from one place"
    )


def _is_mostly_changed(step: RefreshStep, sources: Mapping[str, Table]) -> bool:
    return step.new.whole_because is None and is_mostly_changed(step, {n: s.state for n, s in sources.items()})


def report_step(view: str, number: int, rows_left: int) -> None:
    """Report a finished step that is not the last step, to the log and to a terminal."""
    text = f"{view}: step {number} is done, {count_of(rows_left, 'row')} of its sources remain"
    logger.info("%s", text)
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")


def _add_step(done: RefreshReport, step: RefreshStep, rows: pa.Table, is_delete: pa.ChunkedArray) -> RefreshReport:
    deleted = int(pa.compute.sum(is_delete).as_py() or 0)
    versions = {source.name: source.version for source in step.new.sources}
    return RefreshReport(
        changed=True,
        rows_written=done.rows_written + len(rows) - deleted,
        rows_deleted=done.rows_deleted + deleted,
        whole_because=done.whole_because or step.new.whole_because,
        versions=versions,
        steps=done.steps + 1,
    )


def _recompute_reason(
    connection: Connection, step: RefreshStep, error: Exception, whole_because: str | None
) -> str | None:
    """Return why the retry must recompute the full query, or None if it can be incremental.

    Raises ``error`` if a retry would fail again.
    """
    if _are_replaced(connection, step, [source.name for source in step.new.sources]):
        return whole_because
    if isinstance(error, TableNotFoundError) or not any(word in str(error) for word in _NO_LONGER_READ):
        raise error
    if whole_because is None and not step.new.whole_because:
        return "an older version of a source can no longer be read"
    has_newer_source = any(connection.table(new.name).state.version > new.version for new in step.new.sources)
    if not has_newer_source:  # the files that the step reads may be deleted
        raise error
    return whole_because


def _are_replaced(connection: Connection, step: RefreshStep, names: Collection[str]) -> bool:
    """Return whether a name no longer refers to the table of the step.

    A recreated table has other rows at the same version, so Spark may have read wrong rows.
    """
    uuids = {source.name: source.uuid for source in step.new.sources}
    tables = ((name, connection.find_table(name)) for name in sorted(names))
    return any(table is None or table.uuid != uuids[name] for name, table in tables)
