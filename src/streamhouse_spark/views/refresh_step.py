"""Computation of one refresh step: the rows that the view's table gets, and the keys that are deleted.

Several plans lead to the same rows, and sizes choose among them. The driver reads few changes itself and looks up by
key what else it needs: the other side of joins, and the view's old rows, into which it merges the changes. Where the
old row does not determine the new one, Spark recomputes the group from the source.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StructField, StructType

from streamhouse_spark.config.view_definition import ViewDefinition
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.table.refresh_commit import RefreshStep
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.aggregate_merge import AggregateMerge
from streamhouse_spark.views.delta_range import DeltaRange
from streamhouse_spark.views.index_lookup import count_equal_rows
from streamhouse_spark.views.local_changes import max_num_rows
from streamhouse_spark.views.plan_cache import PlanCache
from streamhouse_spark.views.query_analysis import ParsedQuery, compile_statements, reject_unsupported
from streamhouse_spark.views.spark_executor import SparkValues
from streamhouse_spark.views.step_inputs import StepInputs
from streamhouse_spark.views.temp_views import TempViews

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from streamhouse_spark.views.ivm.delta_sql import Writer
    from streamhouse_spark.views.ivm.incremental_aggregate import IncrementalAggregate
    from streamhouse_spark.views.ivm.logical_plan import Group
    from streamhouse_spark.views.ivm.refresh_sql import Statements
    from streamhouse_spark.views.min_max_cache import MinMaxCache

ViewChanges = tuple[pa.Table, pa.ChunkedArray]
"""Rows of the view's table, and a mask of those that stand for deleted keys."""

logger = logging.getLogger(__name__)


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
        from streamhouse_spark.views.ivm.incremental_aggregate import IncrementalAggregate

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
        from streamhouse_spark.views.ivm.incremental_aggregate import RECOMPUTE
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
        from streamhouse_spark.views.ivm.incremental_aggregate import RECOMPUTE
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
        from streamhouse_spark.views.ivm.semi_join_filter import build_filter

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
    from streamhouse_spark.views.ivm.delta_sql import ONE
    from streamhouse_spark.views.ivm.incremental_aggregate import group_column

    if not incremental.groups:
        return pa.table({ONE: pa.array([1], pa.int32())})
    return rows.select([group_column(name) for name in incremental.groups]).rename_columns(list(incremental.groups))


def _split_deletes(rows: pa.Table) -> ViewChanges:
    from streamhouse_spark.views.ivm.refresh_sql import GONE

    return rows.drop_columns([GONE]), rows.column(GONE)
