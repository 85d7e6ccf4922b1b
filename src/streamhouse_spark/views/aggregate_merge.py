"""Merge of changes into the view's rows of the changed groups, by the driver or by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.index_lookup import lookup_view_rows
from streamhouse_spark.views.spark_executor import SparkValues
from streamhouse_spark.views.temp_views import TempViews

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from streamhouse_spark.views.ivm.delta_sql import Writer
    from streamhouse_spark.views.ivm.incremental_aggregate import IncrementalAggregate
    from streamhouse_spark.views.ivm.min_max import TopKLookup
    from streamhouse_spark.views.local_executor import LocalRows


@dataclass(frozen=True, slots=True)
class _ChangedGroups:
    """The groups that changed."""

    rows: pa.Table
    """The columns of `IncrementalAggregate.changes_sql`."""
    schema: StructType
    keys: pa.Table


class AggregateMerge:
    """Merges inserted and deleted rows into the view's own rows. Reads its inputs once, even if called twice."""

    def __init__(
        self,
        view: Table,
        incremental: IncrementalAggregate,
        relations: TempViews,
        writer: Writer,
        local: LocalRows | None,
        values: SparkValues | None,
    ) -> None:
        self._view, self._incremental, self._relations, self._writer = view, incremental, relations, writer
        self._values = values
        self._local = local
        self._changed: _ChangedGroups | None = None
        self._cached_view_rows: tuple[pa.Table, pa.Table] | None = None

    def merge_rows(self, lookup_top_k: TopKLookup | None) -> pa.Table | None:
        """Return the rows of `IncrementalAggregate.merge_sql`; None if nothing changed."""
        from streamhouse_spark.views.local_executor import merge_aggregates

        if self._local is not None:
            merged = merge_aggregates(self._incremental, self._local, self._read_view_rows, lookup_top_k)
            if merged is not None:
                return merged
            self._local = None
        return self._merge_with_spark(lookup_top_k)

    def _read_view_rows(self, keys: pa.Table) -> pa.Table:
        """Return the view's rows with these keys, cached for the next call."""
        if self._cached_view_rows is None or not self._cached_view_rows[0].equals(keys):
            self._cached_view_rows = keys, lookup_view_rows(self._view, keys)
        return self._cached_view_rows[1]

    def _merge_with_spark(self, lookup_top_k: TopKLookup | None) -> pa.Table | None:
        from pyspark.sql.types import StructType

        from streamhouse_spark.views.ivm.aggregate_functions import old_name
        from streamhouse_spark.views.ivm.incremental_aggregate import EXISTS, GROUP_ROWS, HAS_TOP_K, extreme_column

        changed = self._changed = self._changed or self._compute_changes()
        if changed is None:
            return None
        statements, stored_rows = self._incremental.statements, self._read_view_rows(changed.keys)
        is_present, top_k = stored_rows.column(stored_rows.num_columns - 1), None
        if lookup_top_k is not None and self._values is not None:
            top_k = lookup_top_k(changed.keys, is_present.to_numpy(), self._values.changes_of(changed.keys))
        shown = zip(statements.root.columns, statements.names, strict=True)
        old = pa.table({old_name(column): stored_rows.column(name) for column, name in shown})
        old = old.append_column(EXISTS, is_present)
        if top_k is not None:
            old = old.append_column(HAS_TOP_K, pa.array(top_k.is_known)).append_column(GROUP_ROWS, pa.array(top_k.rows))
            for column, values in top_k.values.items():
                old = old.append_column(extreme_column(column), values)
        names = [*changed.rows.column_names, *old.column_names]
        rows = pa.Table.from_arrays([*changed.rows.columns, *old.columns], names=names)
        schema = StructType([*changed.schema.fields, *spark_versions.spark_schema_of(old.schema).fields])
        relation = self._relations.create("groups", rows, schema)
        return self._relations.sql(self._incremental.merge_sql(relation, has_top_k=top_k is not None)).toArrow()

    def _compute_changes(self) -> _ChangedGroups | None:
        incremental, relations = self._incremental, self._relations
        text = incremental.changes_sql(self._writer)
        if text is None:
            return None
        frame = relations.sql(incremental.changes_sql(self._writer, one_task=relations.is_local(text)) or text)
        rows = frame.toArrow()
        if not rows.num_rows:
            return None
        keys = pa.table({name: rows.column(c) for name, c in incremental.key_columns.items()})
        return _ChangedGroups(rows, frame.schema, keys)
