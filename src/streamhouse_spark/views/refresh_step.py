"""Computation of one refresh step: the rows that the view's table gets, and the keys that are deleted.

Several plans lead to the same rows, and sizes choose among them. The driver reads few changes itself and looks up by
key what else it needs: the other side of joins, and the view's old rows, into which it merges the changes. Where the
old row does not determine the new one, Spark recomputes the group from the source.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StructField, StructType

from streamhouse_spark.config.table_properties import ViewDefinition
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import Lineage
from streamhouse_spark.table.refresh_commit import RefreshStep, full_refresh_reason
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.aggregate_merge import AggregateMerge, SparkValues
from streamhouse_spark.views.local_reads import (
    LOCAL_ROWS_MAX,
    LocalChanges,
    columns_to_read,
    count_equal_rows,
    lookup_joined_rows,
    max_num_rows,
    may_be_local,
    read_changes,
)
from streamhouse_spark.views.query_analysis import ParsedQuery, PlanCache, compile_statements, reject_unsupported
from streamhouse_spark.views.temp_views import TempViews

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from streamhouse_spark.views.ivm.aggregates import IncrementalAggregate
    from streamhouse_spark.views.ivm.delta_sql import IndexedSide, Writer
    from streamhouse_spark.views.ivm.logical_plan import Group, Node
    from streamhouse_spark.views.ivm.min_max import ChangesOf
    from streamhouse_spark.views.ivm.refresh_sql import Statements
    from streamhouse_spark.views.local_executor import LocalRows
    from streamhouse_spark.views.min_max_cache import MinMaxCache


@dataclass(frozen=True, slots=True)
class _Changes:
    """Changes of a source that the driver has read."""

    all: LocalChanges
    """With the primary key, in log order."""
    net: pa.Table
    """The plan's columns of the changes that do not cancel out, with their weights."""


class StepInputs:
    """Inputs of one step. `writer` and the statements that it writes read everything."""

    def __init__(self, relations: TempViews, sources: Mapping[str, Table], step: RefreshStep) -> None:
        self._relations = relations
        self._sources, self.step = sources, step
        self._states = {name: source.state for name, source in sources.items()}
        self._ids = relations.ids
        self._looked_up_rows: dict[str, pa.Table] = {}
        self.local: LocalRows | None = None
        """Rows that the driver has read; set by `writer`."""

    @property
    def states(self) -> Mapping[str, TableState]:
        """States of the sources, at the step's versions or newer."""
        return self._states

    def writer(self, root: Node) -> Writer:
        """Return the writer of the step's statements, and register the driver's rows as relations."""
        from streamhouse_spark.views.ivm.delta_sql import Writer, find_indexed_sides
        from streamhouse_spark.views.local_executor import LocalRows

        changes = self._read_changes(root)
        for name, change in changes.items():
            self._relations.register_local(f"{self._ids[name]}_delta", change.net)
        unchanged = {name for name, change in changes.items() if not change.net.num_rows}
        changed = {self._ids[name] for name in self.step.changed - unchanged}
        uses = {
            use: side
            for use, side in find_indexed_sides(root, changed, self._lookup_keys()).items()
            if self._look_up(use, side, changes)
        }
        of_sources = {self._ids[name]: change.net for name, change in changes.items()}
        self.local = LocalRows(changed, of_sources, {use: self._looked_up_rows[use] for use in uses})
        return Writer(self._relations.prefix, frozenset(changed), frozenset(uses))

    def _read_changes(self, root: Node) -> dict[str, _Changes]:
        """Read the changes of the sources that have few."""
        from streamhouse_spark.views.ivm.delta_sql import iter_scans

        before = {source.name: source.ends for source in self.step.old.sources} if self.step.old is not None else {}
        new = {source.name: source.ends for source in self.step.new.sources}
        changes_by_source = {}
        for name in sorted(self.step.changed):
            state = self._states[name]
            scans = (scan for scan in iter_scans(root) if scan.table == self._ids[name])
            columns = {column for scan in scans for column in scan.of.values()}
            if (
                not columns or not self._is_at_step_version(name) or not may_be_local(state, columns)
            ):  # a WITH clause may be unused
                continue
            changes = read_changes(self._sources[name], state, before[name], new[name], columns_to_read(state, columns))
            if changes is not None:
                net = changes.net([column for column in state.schema.names if column in columns])
                changes_by_source[name] = _Changes(changes, net)
        return changes_by_source

    def _lookup_keys(self) -> dict[str, tuple[str, ...]]:
        """Return the primary keys of the sources in which the driver may look up rows."""
        return {
            self._ids[name]: state.primary_key
            for name, state in self._states.items()
            if state.primary_key and self._is_at_step_version(name) and may_be_local(state, state.primary_key)
        }

    def _look_up(self, use: str, side: IndexedSide, changes: Mapping[str, _Changes]) -> bool:
        """Look up the rows that match changes and register them. Returns False if Spark must read them."""
        of_id = {of: name for name, of in self._ids.items()}
        name, naming_changes = of_id[side.table], changes.get(of_id[side.changed])
        own_changes, state = changes.get(name), self._states[name]
        if (
            naming_changes is None
            or (name in self.step.changed and own_changes is None)
            or not may_be_local(state, side.columns)
        ):
            return False
        rows = lookup_joined_rows(
            side, self._sources[name], state, naming_changes.net, own_changes.all if own_changes is not None else None
        )
        if rows is None:
            return False
        self._looked_up_rows[use] = rows.new
        self._relations.register_local(f"{side.table}_old_by_{use}", rows.old)
        self._relations.register_local(f"{side.table}_new_by_{use}", rows.new)
        return True

    def _is_at_step_version(self, name: str) -> bool:
        """Return whether a source's state is the version that the step reads; other threads may refresh the table."""
        versions = {source.name: source.version for source in self.step.new.sources}
        return versions[name] == self._states[name].version


COMMITS_MAX: Final = 1_000
"""Largest number of source commits to read; beyond it, groups are listed again on demand."""

logger = logging.getLogger(__name__)


class DeltaRange:
    """Changes up to one step, if they are few enough for the driver to read."""

    def __init__(
        self,
        relations: Callable[[], TempViews],
        inputs: StepInputs,
        sources: Mapping[str, Table],
        incremental: IncrementalAggregate,
    ) -> None:
        """``relations`` creates temporary views, which are dropped after the changes are read; ``inputs`` are the
        step's.
        """
        self._relations, self._inputs, self._sources, self._incremental = relations, inputs, sources, incremental
        self._step = inputs.step

    def __call__(self, versions: Lineage) -> tuple[pa.Table, ChangesOf] | None:
        """Return the distinct keys of changed groups and their changes; None if there are too many or some are
        unknown.
        """
        old_sources = {source.name: source for source in versions.sources}
        if old_sources.keys() != self._sources.keys() or self._has_too_many_changes(versions):
            return None
        states = self._inputs.states
        if any(states[new.name].version != new.version for new in self._step.new.sources):
            return None
        if full_refresh_reason(versions, self._sources, states) is not None:
            return None
        relations = self._relations()
        try:
            return self._compute_changes(relations, RefreshStep(self._step.number, versions, self._step.new))
        except PySparkException as error:  # a version that can no longer be read
            logger.info("changes since older versions are not read: %s", error)
            return None
        finally:
            relations.drop()

    def _has_too_many_changes(self, versions: Lineage) -> bool:
        old_sources = {source.name: source for source in versions.sources}
        commits = [new.version - old_sources[new.name].version for new in self._step.new.sources]
        rows = sum(
            end - old_sources[new.name].ends.get(bucket, 0)
            for new in self._step.new.sources
            for bucket, end in new.ends.items()
        )
        return max(commits) > COMMITS_MAX or min(commits) < 0 or rows > LOCAL_ROWS_MAX

    def _compute_changes(self, relations: TempViews, step: RefreshStep) -> tuple[pa.Table, ChangesOf]:
        from streamhouse_spark.views.local_executor import compute_changes

        relations.begin(step)
        inputs = StepInputs(relations, self._sources, step)
        writer = inputs.writer(self._incremental.root)
        if writer.delta(self._incremental.root.child) is None:
            return self._empty_changes()
        if inputs.local is not None:
            try:
                local_changes = compute_changes(self._incremental, inputs.local)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                local_changes = None
            if local_changes is not None:
                return local_changes
        values = SparkValues(relations, self._incremental, writer)
        keys = values.find_changed_keys()
        changes = {part.column: values.changes_of(keys)(part.column) for part in self._incremental.multiset_aggregates}
        return keys, changes.__getitem__

    def _empty_changes(self) -> tuple[pa.Table, ChangesOf]:
        from streamhouse_spark.views.ivm.min_max import ValueChanges

        none = np.zeros(0, np.int64)
        keys = pa.table({name: pa.nulls(0) for name in self._incremental.key_columns})
        return keys, lambda _: ValueChanges(none, pa.nulls(0), none)


ViewChanges = tuple[pa.Table, pa.ChunkedArray]
"""Rows of the view's table, and a mask of those that stand for deleted keys."""


class RefreshStepRun:
    """The computation of one step. `close` drops its temporary views."""

    def __init__(
        self,
        spark: SparkSession,
        view: Table,
        definition: ViewDefinition,
        plans: PlanCache,
        sources: Mapping[str, Table],
        step: RefreshStep,
    ) -> None:
        self._spark, self._view, self._definition, self._plans = spark, view, definition, plans
        self._sources, self._step = sources, step
        self._parsed = plans.parse(view.name, definition.query)
        self._all_relations: list[TempViews] = []
        self._relations = self._new_relations()
        self._relations.begin(step)
        self._inputs = StepInputs(self._relations, sources, step)
        self._min_max_cache: MinMaxCache | None = None

    def save_cache(self) -> None:
        """Save what the next refresh needs. Call it after the commit of the step: an error is logged, not raised."""
        if self._min_max_cache is not None:
            with log_post_commit_errors(logger, "keeping the smallest and largest values", self._view.name):
                self._min_max_cache.save()

    def close(self) -> None:
        self._relations.drop()

    def _new_relations(self) -> TempViews:
        relations = new_relations(self._spark, self._parsed, self._sources)
        self._all_relations.append(relations)
        return relations

    @property
    def read_by_name(self) -> Collection[str]:
        """Sources that Spark has read by name so far, whatever table the name referred to."""
        return frozenset().union(*(relations.read_by_name for relations in self._all_relations))

    def compute_changes(self) -> ViewChanges:
        """Return the changed rows and the mask of deleted keys. Raises ``PySparkException``."""
        if self._definition.mode == "full":
            return _split_deletes(self._compute_difference(self._full_statements(), self._full_query_sql()).toArrow())
        with reject_unsupported(self._view.name):
            from streamhouse_spark.views.ivm.delta_sql import Writer
            from streamhouse_spark.views.ivm.logical_plan import Group

            statements = self._compile()
            if self._step.new.whole_because is not None:
                whole = statements.full_sql(Writer(self._relations.prefix, frozenset()))
                return _split_deletes(self._compute_difference(statements, whole).toArrow())
            root, writer = statements.root, self._inputs.writer(statements.root)
            if isinstance(root, Group):
                return self._compute_groups(statements, root, writer)
            if writer.delta(root) is None:
                return self._no_changes()
            return _split_deletes(self._compute_rows(statements, writer).toArrow())

    def _no_changes(self) -> ViewChanges:
        return self._to_view_schema(self._view.state.schema.arrow.empty_table()), pa.chunked_array([], pa.bool_())

    # -- rows -----------------------------------------------------------------------------------------------------

    def _compute_rows(self, statements: Statements, writer: Writer) -> DataFrame:
        """Return the changed rows of a plan that does not end in GROUP BY."""
        from streamhouse_spark.views.ivm.refresh_sql import COUNT, KEY

        relations = self._relations
        if statements.identity != "bag":
            is_local = relations.is_local(statements.delta_sql(writer))
            return relations.sql(statements.delta_sql(writer, one_task=is_local))
        is_local = relations.is_local(statements.bag_net_sql(writer))
        frame = relations.sql(statements.bag_net_sql(writer, one_task=is_local))
        net = frame.toArrow()
        counts = pa.chunked_array([count_equal_rows(self._view, net[KEY])], pa.int64())
        schema = StructType([*frame.schema.fields, StructField(COUNT, LongType())])
        relation = relations.create("net", net.append_column(COUNT, counts), schema)
        return relations.sql(
            statements.bag_delta_sql(f"SELECT * FROM {relation}", f"SELECT {KEY}, {COUNT} FROM {relation}")
        )

    # -- groups ---------------------------------------------------------------------------------------------------

    def _compute_groups(self, statements: Statements, root: Group, writer: Writer) -> ViewChanges:
        from streamhouse_spark.views.ivm.aggregates import IncrementalAggregate

        incremental = IncrementalAggregate.of(statements)
        if incremental is not None:
            try:
                return self._merge_groups(incremental, writer)
            except PySparkException as error:  # the inserted rows may overflow a sum that all rows together fit into
                self._min_max_cache = None
                logger.info("%s: groups that changed are recomputed: %s", self._view.name, error)
        text = writer.touched_groups(root)
        if text is None:
            return self._no_changes()
        frame = self._relations.sql(writer.touched_groups(root, one_task=self._relations.is_local(text)) or text)
        return self._recompute_groups(statements, writer, frame.toArrow(), frame.schema)

    def _merge_groups(self, incremental: IncrementalAggregate, writer: Writer) -> ViewChanges:
        """Merge inserted and deleted rows into the view's own rows; recompute groups where these do not suffice."""
        from streamhouse_spark.views.ivm.aggregates import RECOMPUTE
        from streamhouse_spark.views.ivm.refresh_sql import GONE
        from streamhouse_spark.views.min_max_cache import MinMaxCache

        between = DeltaRange(self._new_relations, self._inputs, self._sources, incremental)
        cache = self._min_max_cache = MinMaxCache.of(self._view, incremental, self._step, between)
        values = None if cache is None else SparkValues(self._relations, incremental, writer)
        merging = AggregateMerge(self._view, incremental, self._relations, writer, self._inputs.local, values)
        merged = merging.merge_rows(None if cache is None else cache.lookup)
        if cache is not None and values is not None and self._list_lost(incremental, merged, cache, values):
            merged = merging.merge_rows(lambda *_: cache.current_result())
        if merged is None or not merged.num_rows:
            return self._no_changes()
        recompute = merged.column(RECOMPUTE)
        sure = merged.filter(pc.invert(recompute))
        done = (self._to_view_schema(sure), sure.column(GONE))
        if len(sure) == len(merged):
            return done
        touched = _select_groups(incremental, merged.filter(recompute))
        recomputed, is_delete = self._recompute_groups(
            incremental.statements, writer, touched, spark_versions.spark_schema_of(touched.schema)
        )
        return pa.concat_tables([done[0], recomputed]), pa.chunked_array(
            [*done[1].chunks, *is_delete.chunks], pa.bool_()
        )

    def _list_lost(
        self, incremental: IncrementalAggregate, merged: pa.Table | None, cache: MinMaxCache, values: SparkValues
    ) -> bool:
        """List the values of groups whose new row is undetermined. Returns whether some of them are now determined."""
        from streamhouse_spark.views.ivm.aggregates import RECOMPUTE
        from streamhouse_spark.views.ivm.min_max import ALL_ROOM

        if merged is None or not merged.num_rows:
            return False
        lost = merged.filter(merged.column(RECOMPUTE))
        for name in _count_distinct_columns(incremental):  # larger groups are not cached in full
            lost = lost.filter(pc.less_equal(lost.column(name), ALL_ROOM))
        if not lost.num_rows:
            return False
        num_rows = sum(map(max_num_rows, self._inputs.states.values()))
        return cache.list_lost(
            _select_groups(incremental, lost), lost.select(list(incremental.key_columns)), num_rows, values.list_values
        )

    def _recompute_groups(
        self, statements: Statements, writer: Writer, groups: pa.Table, schema: StructType
    ) -> ViewChanges:
        """Recompute groups from their rows at the new versions."""
        from streamhouse_spark.views.ivm.refresh_sql import build_filter

        if not groups.num_rows:
            return self._no_changes()
        relation = self._relations.create("touched", groups, schema)
        below = statements.touched_rows_sql(writer, relation, build_filter(groups))
        rows, is_delete = _split_deletes(
            self._relations.sql(statements.touched_groups_sql(writer, relation, below)).toArrow()
        )
        return self._to_view_schema(rows), is_delete

    def _to_view_schema(self, rows: pa.Table) -> pa.Table:
        """Return the columns of the view's table, cast to its types."""
        fields = self._view.state.schema.arrow
        columns = [rows.column(field.name).cast(field.type) for field in fields]
        return pa.Table.from_arrays(columns, names=fields.names)

    # -- the whole query ------------------------------------------------------------------------------------------

    def _compute_difference(self, statements: Statements, whole: str) -> DataFrame:
        self._relations.sql(whole)  # creates the temporary views that it names
        old = self._relations.at_version(self._view.name, self._view.state.version, "view")
        return self._relations.sql(statements.difference_sql(whole, old))

    def _full_query_sql(self) -> str:
        ids = self._relations.ids
        text = self._parsed.text_over({name: f"{self._relations.prefix}{ids[name]}_new" for name in ids})
        names = ", ".join(f"c{number}" for number in range(len(self._definition.names)))
        return self._full_statements().keyed_rows_sql(f"SELECT * FROM (\n{text}\n) AS q({names})")

    def _full_statements(self) -> Statements:
        """Return statements that know only the columns, for a query that Spark runs as written."""
        from streamhouse_spark.views.ivm.logical_plan import Scan
        from streamhouse_spark.views.ivm.refresh_sql import Statements

        names = self._definition.names
        of = {f"c{number}": name for number, name in enumerate(names)}
        ids = self._relations.ids
        text = self._parsed.text_over({name: f"{self._relations.prefix}{ids[name]}_new" for name in ids})
        fields = self._relations.sql(text).schema.fields
        types = {column: field.dataType.simpleString() for column, field in zip(of, fields, strict=True)}
        return Statements(Scan("", of, None, frozenset()), names, types, "bag", is_whole=True)

    def _compile(self) -> Statements:
        """Return the statements of the view, recompiled if its sources have different columns."""

        def make() -> Statements:
            return compile_statements(self._relations, self._parsed, self._sources, self._definition.names)

        return self._plans.compile(self._view.name, self._definition, self._inputs.states, make)


def new_relations(spark: SparkSession, parsed: ParsedQuery, sources: Mapping[str, Table]) -> TempViews:
    keyed = {name: bool(source.state.primary_key) for name, source in sources.items()}
    prefix = f"streamhouse_{World().ids.new_uuid().replace('-', '')}_"
    return TempViews(spark, prefix, parsed.sources, keyed)


def _count_distinct_columns(incremental: IncrementalAggregate) -> list[str]:
    """Return the view's columns that are COUNT(DISTINCT) values."""
    names = dict(zip(incremental.root.columns, incremental.statements.names, strict=True))
    return [names[part.column] for part in incremental.multiset_aggregates if part.kind == "distinct"]


def _select_groups(incremental: IncrementalAggregate, rows: pa.Table) -> pa.Table:
    """Return the grouping columns of rows of `IncrementalAggregate.merge_sql`."""
    from streamhouse_spark.views.ivm.aggregates import group_column
    from streamhouse_spark.views.ivm.delta_sql import ONE

    if not incremental.groups:
        return pa.table({ONE: pa.array([1], pa.int32())})
    return rows.select([group_column(name) for name in incremental.groups]).rename_columns(list(incremental.groups))


def _split_deletes(rows: pa.Table) -> ViewChanges:
    from streamhouse_spark.views.ivm.refresh_sql import GONE

    return rows.drop_columns([GONE]), rows.column(GONE)
