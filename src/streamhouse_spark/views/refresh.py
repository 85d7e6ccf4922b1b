"""Refreshes of a view on Spark: SQL over Z-sets computes what changed, and the driver commits it.

The rows that a refresh changes pass through the driver. `streamhouse_spark.table.refresh_commit` has the commit point.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import PySparkException

from streamhouse_spark.config.view_definition import ViewDefinition
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.errors import CommitConflictError, TableNotFoundError
from streamhouse_spark.log.commits.source_versions import Lineage, SourceVersion
from streamhouse_spark.table.refresh_commit import RefreshStep, commit_step, next_step
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.local_changes import is_mostly_changed
from streamhouse_spark.views.plan_cache import PlanCache
from streamhouse_spark.views.query_analysis import ParsedQuery
from streamhouse_spark.views.refresh_step import RefreshStepRun, new_relations
from streamhouse_spark.views.step_planning import choose_step, covers
from streamhouse_spark.views.temp_views import TempViews
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
    """Whether a commit was made: False where the sources have no rows that the view does not have."""
    rows_written: int = 0
    """Rows of all steps together, as also ``rows_deleted``."""
    rows_deleted: int = 0
    whole_because: str | None = None
    """The reason for which the whole query was computed; None where the changes were. Of steps the first one's."""
    versions: Mapping[str, int] | None = None
    """Source → the version that the view is at."""
    steps: int = 0
    """Commits that were made; more than one only of a view with ``step_rows``."""
    goal: Lineage | None = None
    """The versions that the steps lead to which are left, where it was ended between two; None where none is left."""


class Refresher:
    """Refreshes views of one session, and remembers their compiled queries."""

    def __init__(self, spark: SparkSession, connection: Connection) -> None:
        self._spark, self._connection = spark, connection
        self._plans = PlanCache()

    def __call__(self, name: str) -> RefreshReport:
        """Bring a view to the newest versions of its sources; see `refresh`."""
        return refresh(self._spark, self._connection, name, self._plans)

    def step(self, name: str, before: RefreshReport) -> RefreshReport:
        """Make the next step of a refresh behind those of a report, and return the report of all of them."""
        return refresh(self._spark, self._connection, name, self._plans, before, 1)


def refresh(
    spark: SparkSession,
    connection: Connection,
    name: str,
    plans: PlanCache,
    before: RefreshReport | None = None,
    steps_max: int | None = None,
) -> RefreshReport:
    """Bring a view to the newest versions of its sources; with ``step_rows`` in steps, at least as far as the sources
    were when it began.

    With ``steps_max`` it ends behind so many steps, and the report has the goal of those that are left. A refresh that
    is given this report as ``before`` goes on to the same goal, and its report is of all steps together.

    **Commit point:** of each step, the record of the view's table that has the rows and the versions. A crash before it
    changes nothing, and the next refresh goes on behind the last step. Raises `InvalidOptionError` for a table that is
    no view; `TableNotFoundError` where a source is gone;
    `CommitConflictError` after too many races.
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
        to_newest = next_step(view, sources, is_full=definition.mode == "full", because=whole_because)
        if to_newest is None:
            return done
        goal = goal or to_newest.new
        if done.changed and _is_done(to_newest, goal):
            return done
        chosen = choose_step(to_newest, sources, step_rows, goal)
        step = chosen.step
        is_last = not chosen.rows_left
        if is_last and not done.changed and _is_mostly_changed(step, sources):
            step = step.anew(MOSTLY_CHANGED)
        run = RefreshStepRun(spark, view, definition, plans, sources, step)
        races += 1
        try:
            rows, is_delete = run.compute_changes()
            if _are_replaced(connection, step, run.read_by_name):
                continue
            if step.new.whole_because not in (None, "mode is full", MOSTLY_CHANGED):
                logger.warning("%s: the whole query was computed: %s", view.name, step.new.whole_because)
            if commit_step(view, step, rows, is_delete):
                run.save_cache()
                done = _add_step(done, step, rows, is_delete)
                if is_last:
                    return done
                report_step(view.name, done.steps, chosen.rows_left)
                races = 0
                if done.steps == last_step:
                    return done if covers(step.new, goal) else replace(done, goal=goal)
        except (PySparkException, TableNotFoundError) as error:
            if not is_last and any(word in str(error) for word in _NO_LONGER_READ):
                logger.warning("%s: the rest is one step, as it is no longer read in several: %s", view.name, error)
                step_rows = None
                continue
            whole_because = _recompute_reason(connection, step, error, whole_because)
            continue
        finally:
            run.close()
        whole_because = None
    raise CommitConflictError(f"{view.name}: {RACES_MAX} other refreshes were faster; refresh it from one place")


def _is_done(step: RefreshStep, goal: Lineage) -> bool:
    """Tell whether the view has the rows that its sources had when the refresh began."""
    return step.old is not None and covers(step.old, goal)


def _is_mostly_changed(step: RefreshStep, sources: Mapping[str, Table]) -> bool:
    return step.new.whole_because is None and is_mostly_changed(step, {n: s.state for n, s in sources.items()})


def report_step(view: str, number: int, rows_left: int) -> None:
    """Tell that a step is done which is not the last one: the log, and people at a terminal."""
    text = f"{view}: step {number} is done, {rows_left:,} rows of its sources are left"
    logger.info("%s", text)
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")


def _add_step(done: RefreshReport, step: RefreshStep, rows: pa.Table, is_delete: pa.ChunkedArray) -> RefreshReport:
    """Return the report with one step more."""
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
    """Return the reason for which another try computes the whole query, None where it need not. Raises the error where
    another try would meet it again.
    """
    if _are_replaced(connection, step, [source.name for source in step.new.sources]):
        return whole_because
    if isinstance(error, TableNotFoundError) or not any(word in str(error) for word in _NO_LONGER_READ):
        raise error
    if whole_because is None and not step.new.whole_because:
        return "an older version of a source can no longer be read"
    if not _has_newer_source(connection, step):
        raise error
    return whole_because


def _are_replaced(connection: Connection, step: RefreshStep, names: Collection[str]) -> bool:
    """Tell whether one of these names means another table than the step's by now, so that its rows may have been read:
    a version of a table that was made again is not the old one's version of that number.
    """
    uuids = {source.name: source.uuid for source in step.new.sources}
    tables = ((name, connection.find_table(name)) for name in sorted(names))
    return any(table is None or table.uuid != uuids[name] for name, table in tables)


def _has_newer_source(connection: Connection, step: RefreshStep) -> bool:
    """Tell whether a source is newer than the version that the step reads, of which files may be gone."""
    return any(connection.table(source.name).state.version > source.version for source in step.new.sources)


def begin_creation(spark: SparkSession, view: str, parsed: ParsedQuery, sources: Mapping[str, Table]) -> TempViews:
    """Return the relations of sources as they are now, for a view that is about to be made."""
    relations = new_relations(spark, parsed, sources)
    states = {name: source.refresh() for name, source in sources.items()}
    new = (SourceVersion(n, s.table_uuid, s.version, s.attempt, s.ends) for n, s in states.items())
    relations.begin(RefreshStep(1, None, Lineage(tuple(new), f"{view} is made")))
    return relations
