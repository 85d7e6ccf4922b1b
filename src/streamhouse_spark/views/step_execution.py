"""Computation of a refresh step: the rows to write into the view's table, and the keys to delete.

Several plans lead to the same rows, and the number of changes determines the plan. If there are few changes, the driver
reads them without Spark. It looks up the other side of joins and the view's old rows by key, and merges the changes
into the old rows. If an old row does not determine the new row, Spark recomputes the group from the source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StructField, StructType

from streamhouse_spark.config.table_properties import ViewDefinition
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.log.state import TableState
from streamhouse_spark.table.refresh_commit import RefreshStep
from streamhouse_spark.table.table import Table
from streamhouse_spark.views import local_executor
from streamhouse_spark.views.ivm.aggregates import EXISTS, RECOMPUTE, IncrementalAggregate, group_column, old_name
from streamhouse_spark.views.ivm.delta_sql import ONE, DeltaSqlWriter, IndexedSide, find_indexed_sides
from streamhouse_spark.views.ivm.logical_plan import Group, Node, Scan, iter_scans
from streamhouse_spark.views.ivm.refresh_sql import COUNT, IS_DELETED, KEY, RefreshStatements, build_filter
from streamhouse_spark.views.local_reads import (
    LocalChanges,
    columns_to_read,
    count_equal_rows,
    lookup_joined_rows,
    lookup_view_rows,
    may_be_local,
    read_changes,
)
from streamhouse_spark.views.query_analysis import ParsedQuery, PlanCache, compile_statements, reject_unsupported
from streamhouse_spark.views.temp_views import TempViews

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ViewChanges = tuple[pa.Table, pa.ChunkedArray]
"""Rows of the view's table, and for each row whether its key is deleted instead of the row written."""

logger = logging.getLogger(__name__)


class StepExecution:
    """The computation of a refresh step. Call `close` to drop its temporary views."""

    def __init__(
        self,
        spark: SparkSession,
        view: Table,
        definition: ViewDefinition,
        plans: PlanCache,
        sources: Mapping[str, Table],
        step: RefreshStep,
    ) -> None:
        self._view, self._definition, self._plans = view, definition, plans
        self._sources, self._step = sources, step
        self._parsed = plans.parse(view.name, definition.query)
        self._relations = make_temp_views(spark, self._parsed, sources)
        self._relations.begin(step)

    def close(self) -> None:
        self._relations.drop()

    @property
    def read_by_name(self) -> Collection[str]:
        """Sources that Spark has read by name. A name may have referred to a recreated table."""
        return self._relations.read_by_name

    def compute_changes(self) -> ViewChanges:
        """Return the changed rows and the mask of deleted keys. Raises ``PySparkException``."""
        if self._definition.mode == "full":
            return self._compute_full_query()
        with reject_unsupported(self._view.name):
            states = {name: source.state for name, source in self._sources.items()}
            statements = self._plans.compile(self._view.name, self._definition, states, self._compile)
            if self._step.new.whole_because is not None:
                whole = statements.full_sql(DeltaSqlWriter(self._relations.prefix, frozenset()))
                return self._compute_difference(statements, whole)
            inputs = StepInputs(self._relations, self._sources, states, self._step, statements.root)
            if isinstance(statements.root, Group):
                return self._compute_groups(statements, statements.root, inputs)
            if inputs.writer.delta(statements.root) is None:
                return self._no_changes()
            return _split_deletes(self._compute_rows(statements, inputs.writer))

    def _compile(self) -> RefreshStatements:
        return compile_statements(self._relations, self._parsed, self._sources, self._definition.names)

    def _no_changes(self) -> ViewChanges:
        return self._to_view_schema(self._view.state.schema.arrow.empty_table()), pa.chunked_array([], pa.bool_())

    def _run_over_changes(self, write: Callable[..., str | None]) -> DataFrame | None:
        """Run a statement over changes, in one task if all rows are local. Returns None if nothing changed."""
        text = write()
        if text is None:
            return None
        return self._relations.sql(write(one_task=self._relations.is_local(text)) or text)

    def _to_view_schema(self, rows: pa.Table) -> pa.Table:
        """Return the columns of the view's table, with casts to its types."""
        fields = self._view.state.schema.arrow
        columns = [rows.column(field.name).cast(field.type) for field in fields]
        return pa.Table.from_arrays(columns, names=fields.names)

    # -- the whole query ------------------------------------------------------------------------------------------

    def _compute_full_query(self) -> ViewChanges:
        """Run the original text of the query, and return the difference from the view's rows."""
        names, prefix = self._definition.names, self._relations.prefix
        columns = {f"c{number}": name for number, name in enumerate(names)}
        text = self._parsed.text_over({name: f"{prefix}{id_}_new" for name, id_ in self._relations.ids.items()})
        fields = self._relations.sql(text).schema.fields
        types = {column: field.dataType.simpleString() for column, field in zip(columns, fields, strict=True)}
        statements = RefreshStatements(Scan("", columns, None, frozenset()), names, types, "bag", is_whole=True)
        rows = f"SELECT * FROM (\n{text}\n) AS q({', '.join(columns)})"
        return self._compute_difference(statements, statements.keyed_rows_sql(rows))

    def _compute_difference(self, statements: RefreshStatements, whole: str) -> ViewChanges:
        self._relations.sql(whole)  # creates the temporary views that the statement needs
        old = self._relations.at_version(self._view.name, self._view.state.version, "view")
        return _split_deletes(self._relations.sql(statements.difference_sql(whole, old)))

    # -- rows -----------------------------------------------------------------------------------------------------

    def _compute_rows(self, statements: RefreshStatements, writer: DeltaSqlWriter) -> DataFrame:
        write = statements.bag_net_sql if statements.identity == "bag" else statements.delta_sql
        frame = self._run_over_changes(partial(write, writer))
        assert frame is not None
        if statements.identity != "bag":
            return frame
        net = frame.toArrow()
        counts = pa.chunked_array([count_equal_rows(self._view, net[KEY])], pa.int64())
        schema = StructType([*frame.schema.fields, StructField(COUNT, LongType())])
        relation = self._relations.create("net", net.append_column(COUNT, counts), schema)
        return self._relations.sql(
            statements.bag_delta_sql(f"SELECT * FROM {relation}", f"SELECT {KEY}, {COUNT} FROM {relation}")
        )

    # -- groups ---------------------------------------------------------------------------------------------------

    def _compute_groups(self, statements: RefreshStatements, root: Group, inputs: StepInputs) -> ViewChanges:
        incremental = IncrementalAggregate.of(statements)
        if incremental is not None:
            try:
                return self._merge_groups(incremental, inputs)
            except PySparkException as error:  # a sum of only the inserted rows may overflow
                logger.info("%s: recomputing changed groups: %s", self._view.name, error)
        frame = self._run_over_changes(partial(inputs.writer.touched_groups, root))
        if frame is None:
            return self._no_changes()
        return self._recompute_groups(statements, inputs.writer, frame.toArrow(), frame.schema)

    def _merge_groups(self, incremental: IncrementalAggregate, inputs: StepInputs) -> ViewChanges:
        """Merge inserted and deleted rows into the view's rows. Recompute the groups for which this is not possible."""
        find_rows = partial(lookup_view_rows, self._view)
        merged = local_executor.merge_aggregates(incremental, inputs.local, find_rows)
        if merged is None:
            merged = self._merge_with_spark(incremental, inputs.writer)
        if merged is None or not merged.num_rows:
            return self._no_changes()
        recompute = merged.column(RECOMPUTE)
        determined = merged.filter(pc.invert(recompute))
        rows, is_delete = self._to_view_schema(determined), determined.column(IS_DELETED)
        if len(determined) == len(merged):
            return rows, is_delete
        groups = _select_groups(incremental, merged.filter(recompute))
        recomputed, is_also_delete = self._recompute_groups(
            incremental.statements, inputs.writer, groups, spark_versions.spark_schema_of(groups.schema)
        )
        is_delete = pa.chunked_array([*is_delete.chunks, *is_also_delete.chunks], pa.bool_())
        return pa.concat_tables([rows, recomputed]), is_delete

    def _merge_with_spark(self, incremental: IncrementalAggregate, writer: DeltaSqlWriter) -> pa.Table | None:
        """Return the rows of `IncrementalAggregate.merge_sql`, or None if nothing changed."""
        frame = self._run_over_changes(partial(incremental.changes_sql, writer))
        if frame is None or not (changes := frame.toArrow()).num_rows:
            return None
        keys = {name: changes.column(column) for name, column in incremental.key_columns.items()}
        stored_rows = lookup_view_rows(self._view, pa.table(keys))
        shown = zip(incremental.root.columns, incremental.statements.names, strict=True)
        old = pa.table({old_name(column): stored_rows.column(name) for column, name in shown})
        old = old.append_column(EXISTS, stored_rows.column(stored_rows.num_columns - 1))
        names = [*changes.column_names, *old.column_names]
        rows = pa.Table.from_arrays([*changes.columns, *old.columns], names=names)
        schema = StructType([*frame.schema.fields, *spark_versions.spark_schema_of(old.schema).fields])
        return self._relations.sql(incremental.merge_sql(self._relations.create("groups", rows, schema))).toArrow()

    def _recompute_groups(
        self, statements: RefreshStatements, writer: DeltaSqlWriter, groups: pa.Table, schema: StructType
    ) -> ViewChanges:
        if not groups.num_rows:
            return self._no_changes()
        relation = self._relations.create("touched", groups, schema)
        below = statements.touched_rows_sql(writer, relation, build_filter(groups))
        rows, is_delete = _split_deletes(self._relations.sql(statements.touched_groups_sql(writer, relation, below)))
        return self._to_view_schema(rows), is_delete


def make_temp_views(spark: SparkSession, parsed: ParsedQuery, sources: Mapping[str, Table]) -> TempViews:
    """Return temporary views whose names no other refresh uses."""
    keyed = {name: bool(source.state.primary_key) for name, source in sources.items()}
    prefix = f"streamhouse_{World().ids.new_uuid().replace('-', '')}_"
    return TempViews(spark, prefix, parsed.sources, keyed)


def _select_groups(incremental: IncrementalAggregate, rows: pa.Table) -> pa.Table:
    if not incremental.root.groups:
        return pa.table({ONE: pa.array([1], pa.int32())})
    return pa.table({name: rows.column(group_column(name)) for name in incremental.root.groups})


def _split_deletes(frame: DataFrame) -> ViewChanges:
    rows = frame.toArrow()
    return rows.drop_columns([IS_DELETED]), rows.column(IS_DELETED)


# -- inputs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SourceChanges:
    """Changes of a source that the driver has read."""

    all: LocalChanges
    """All changes in log order, including primary key columns."""
    net: pa.Table
    """Changes that do not cancel each other out, with the columns of the plan and weights."""


class StepInputs:
    """Inputs of a step. The driver reads small sets of changes and looks up rows, and Spark reads everything else."""

    writer: DeltaSqlWriter
    """Generates statements over all inputs."""
    local: local_executor.LocalInputs
    """The rows that the driver has read."""

    def __init__(
        self,
        relations: TempViews,
        sources: Mapping[str, Table],
        states: Mapping[str, TableState],
        step: RefreshStep,
        root: Node,
    ) -> None:
        """``states`` are the states of the sources, at the versions of the step or newer."""
        self._relations, self._sources, self._states, self._step = relations, sources, states, step
        self._ids = relations.ids
        changes = self._read_changes(root)
        for name, change in changes.items():
            relations.register_local(f"{self._ids[name]}_delta", change.net)
        unchanged = {name for name, change in changes.items() if not change.net.num_rows}
        changed = {self._ids[name] for name in step.changed - unchanged}
        looked_up = {
            use: rows
            for use, side in find_indexed_sides(root, changed, self._lookup_keys()).items()
            if (rows := self._look_up(use, side, changes)) is not None
        }
        net_changes = {self._ids[name]: change.net for name, change in changes.items()}
        self.local = local_executor.LocalInputs(changed, net_changes, looked_up)
        self.writer = DeltaSqlWriter(relations.prefix, frozenset(changed), frozenset(looked_up))

    def _read_changes(self, root: Node) -> dict[str, _SourceChanges]:
        """Read the changes of the sources that have few changes."""
        before = {source.name: source.ends for source in self._step.old.sources} if self._step.old is not None else {}
        new = {source.name: source.ends for source in self._step.new.sources}
        changes_by_source = {}
        for name in sorted(self._step.changed):
            state = self._states[name]
            scans = (scan for scan in iter_scans(root) if scan.table == self._ids[name])
            columns = {column for scan in scans for column in scan.of.values()}  # empty for an unused WITH clause
            if not columns or not self._is_at_step_version(name) or not may_be_local(state, columns):
                continue
            changes = read_changes(self._sources[name], state, before[name], new[name], columns_to_read(state, columns))
            if changes is not None:
                net = changes.net([column for column in state.schema.names if column in columns])
                changes_by_source[name] = _SourceChanges(changes, net)
        return changes_by_source

    def _lookup_keys(self) -> dict[str, tuple[str, ...]]:
        """Return source → primary key, for the sources in which the driver can look up rows."""
        return {
            self._ids[name]: state.primary_key
            for name, state in self._states.items()
            if state.primary_key and self._is_at_step_version(name) and may_be_local(state, state.primary_key)
        }

    def _look_up(self, use: str, side: IndexedSide, changes: Mapping[str, _SourceChanges]) -> pa.Table | None:
        """Look up the rows that match changes, and register them. Returns None if Spark must read them."""
        names = {id_: name for name, id_ in self._ids.items()}
        name, key_changes = names[side.table], changes.get(names[side.changed])
        own_changes, state = changes.get(name), self._states[name]
        if key_changes is None or (name in self._step.changed and own_changes is None):
            return None
        if not may_be_local(state, side.columns):
            return None
        rows = lookup_joined_rows(
            side, self._sources[name], state, key_changes.net, own_changes.all if own_changes is not None else None
        )
        if rows is None:
            return None
        self._relations.register_local(f"{side.table}_old_by_{use}", rows.old)
        self._relations.register_local(f"{side.table}_new_by_{use}", rows.new)
        return rows.new

    def _is_at_step_version(self, name: str) -> bool:
        """Return whether a source's state has the version of the step, because other threads may refresh the table."""
        versions = {source.name: source.version for source in self._step.new.sources}
        return versions[name] == self._states[name].version
