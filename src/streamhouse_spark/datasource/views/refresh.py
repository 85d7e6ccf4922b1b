"""Refreshes of a view on Spark: SQL over Z-sets computes what changed, and the driver commits it.

The rows that a refresh changes pass through the driver. `streamhouse_spark.table.refreshing` has the commit point.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import PySparkException

from streamhouse_spark.config.view_definition import ViewDefinition
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.values import dataclass
from streamhouse_spark.datasource.views.compiled import (
    ParsedQuery,
    compiled,
    parse_query,
    plan_query,
    refusing,
    require_session,
)
from streamhouse_spark.datasource.views.relations import Relations
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.table.refreshing import RefreshStep, commit_step, next_step
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.connection import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from streamhouse_spark.zset.statements import Statements

RACES_MAX: Final = 10
_NO_LONGER_READ: Final = ("SNAPSHOT_EXPIRED", "OFFSETS_TRIMMED", "SnapshotExpiredError", "OffsetsTrimmedError")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """The outcome of a refresh."""

    changed: bool
    """Whether a commit was made: False where the sources have no rows that the view does not have."""
    rows_written: int = 0
    rows_deleted: int = 0
    whole_because: str | None = None
    """The reason for which the whole query was computed; None where the changes were."""
    versions: Mapping[str, int] | None = None
    """Source → the version that the view is at."""


def refresh(spark: SparkSession, connection: Connection, name: str) -> RefreshReport:
    """Bring a view to the newest versions of its sources.

    **Commit point:** the record of the view's table that has the rows and the versions. A crash before it changes
    nothing. Raises `InvalidOptionError` for a table that is no view, and where the session's settings are others;
    `TableNotFoundError` where a source is gone; `CommitConflictError` after too many races.
    """
    view = connection.table(name)
    definition = ViewDefinition.of(view.refresh().properties, view.name)
    require_session(spark, view.name, definition.session)
    parsed = parse_query(view.name, definition.query)
    because = None
    for _ in range(RACES_MAX):
        sources = {source: connection.table(source) for source in parsed.sources}
        step = next_step(view, sources, is_full=definition.mode == "full", because=because)
        if step is None:
            return RefreshReport(changed=False)
        run = _Run(spark, view, definition, parsed, sources, step)
        try:
            rows, gone = run.changes()
        except PySparkException as error:
            if because is not None or step.new.whole_because or not any(w in str(error) for w in _NO_LONGER_READ):
                raise
            because = "an older version of a source can no longer be read"
            continue
        finally:
            run.relations.drop()
        if step.new.whole_because not in (None, "mode is full"):
            logger.warning("%s: the whole query was computed: %s", view.name, step.new.whole_because)
        if commit_step(view, step, rows, gone):
            deleted = int(pa.compute.sum(gone).as_py() or 0)
            versions = {source.name: source.version for source in step.new.sources}
            return RefreshReport(True, len(rows) - deleted, deleted, step.new.whole_because, versions)
        because = None
    raise CommitConflictError(f"{view.name}: {RACES_MAX} other refreshes were faster; refresh it from one place")


class _Run:
    """The computation of one step."""

    def __init__(
        self,
        spark: SparkSession,
        view: Table,
        definition: ViewDefinition,
        parsed: ParsedQuery,
        sources: Mapping[str, Table],
        step: RefreshStep,
    ) -> None:
        keyed = {name: bool(source.state.primary_key) for name, source in sources.items()}
        prefix = f"streamhouse_{World().ids.new_uuid().replace('-', '')}_"
        self.relations = Relations(spark, prefix, parsed.sources, keyed)
        self.relations.begin(step)
        self._spark, self._view, self._definition, self._parsed = spark, view, definition, parsed
        self._sources, self._step = sources, step

    def changes(self) -> tuple[pa.Table, pa.ChunkedArray]:
        """Return the rows that are written, and which of them stand for keys that go."""
        from streamhouse_spark.zset.statements import GONE

        found = self._frame()
        if found is None:
            schema = self._view.state.schema.arrow
            return schema.empty_table(), pa.chunked_array([], pa.bool_())
        rows = found.toArrow()
        return rows.drop_columns([GONE]), rows[GONE]

    def _frame(self) -> DataFrame | None:
        relations, step = self.relations, self._step
        if self._definition.mode == "full":
            return self._difference(self._full_statements(), self._parsed_text())
        with refusing(self._view.name):
            statements = self._statements()
            from streamhouse_spark.zset.plan import Group
            from streamhouse_spark.zset.writer import Writer

            ids = relations.ids
            writer = Writer(relations.prefix, frozenset(ids[name] for name in step.changed))
            if step.new.whole_because is not None:
                return self._difference(statements, statements.whole(writer))
            root = statements.root
            if not isinstance(root, Group):
                if writer.delta(root) is None:
                    return None
                return relations.sql(statements.of_delta(writer, self._old_view()))
            touched = self._touched(writer.touched(root))
            return None if touched is None else relations.sql(statements.of_touched(writer, touched))

    def _touched(self, query: str | None) -> str | None:
        """Make a relation of the groups that a change touches; None if there are none."""
        if query is None:
            return None
        frame = self.relations.sql(query)
        rows = frame.toArrow()
        return self.relations.keep("touched", rows, frame) if rows.num_rows else None

    def _difference(self, statements: Statements, whole: str) -> DataFrame:
        return self.relations.sql(statements.difference(self._over_new(whole), self._old_view()))

    def _over_new(self, whole: str) -> str:
        self.relations.sql(whole)  # makes the relations that it names
        return whole

    def _old_view(self) -> str:
        return self.relations.at_version(self._view.name, self._view.state.version, "view")

    def _parsed_text(self) -> str:
        ids = self.relations.ids
        text = self._parsed.text_over({name: f"{self.relations.prefix}{ids[name]}_new" for name in ids})
        names = ", ".join(f"c{number}" for number in range(len(self._definition.names)))
        return self._full_statements().whole_of(f"SELECT * FROM ({text}) AS q({names})")

    def _full_statements(self) -> Statements:
        """Return statements that know the columns alone, of a query that is computed as it stands."""
        from streamhouse_spark.zset.plan import Scan
        from streamhouse_spark.zset.statements import Statements

        names = self._definition.names
        of = {f"c{number}": name for number, name in enumerate(names)}
        ids = self.relations.ids
        text = self._parsed.text_over({name: f"{self.relations.prefix}{ids[name]}_new" for name in ids})
        fields = self.relations.sql(text).schema.fields
        types = {column: field.dataType.simpleString() for column, field in zip(of, fields, strict=True)}
        return Statements(Scan("", of, None, frozenset()), names, types, "bag")

    def _statements(self) -> Statements:
        root = plan_query(self._parsed, self._sources)
        for name in self.relations.ids.values():
            self.relations.sql(f"SELECT * FROM {self.relations.prefix}{name}_new")
        return compiled(self._spark, root, self._definition.names, self.relations.prefix)


def begin(spark: SparkSession, view: str, parsed: ParsedQuery, sources: Mapping[str, Table]) -> Relations:
    """Return the relations of sources as they are now, for a view that is about to be made."""
    from streamhouse_spark.core.lineage import Lineage, SourceVersion

    keyed = {name: bool(source.state.primary_key) for name, source in sources.items()}
    prefix = f"streamhouse_{World().ids.new_uuid().replace('-', '')}_"
    relations = Relations(spark, prefix, parsed.sources, keyed)
    states = {name: source.refresh() for name, source in sources.items()}
    new = (SourceVersion(n, s.table_uuid, s.version, s.attempt, s.ends) for n, s in states.items())
    relations.begin(RefreshStep(1, None, Lineage(tuple(new), f"{view} is made")))
    return relations
