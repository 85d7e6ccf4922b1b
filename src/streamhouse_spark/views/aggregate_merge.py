"""Merge of changes into the view's rows of the changed groups, by the driver or by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.arrow_rows import combine_chunks, distinct_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.local_reads import lookup_view_rows
from streamhouse_spark.views.temp_views import TempViews

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from streamhouse_spark.views.ivm.aggregates import Aggregate, IncrementalAggregate
    from streamhouse_spark.views.ivm.delta_sql import Writer
    from streamhouse_spark.views.ivm.min_max import ChangesOf, TopKLookup
    from streamhouse_spark.views.local_executor import LocalRows
    from streamhouse_spark.views.min_max_cache import MinMaxRequest


class SparkValues:
    """Values in one step of a view. Its temporary views must exist."""

    def __init__(self, relations: TempViews, incremental: IncrementalAggregate, writer: Writer) -> None:
        self._relations, self._incremental, self._writer = relations, incremental, writer
        self._changed: dict[str, pa.Table] = {}

    def find_changed_keys(self) -> pa.Table:
        """Return the distinct keys of the groups with changes."""
        names = list(self._incremental.key_columns)
        return distinct_rows(
            pa.concat_tables([self._read_changes(part).select(names) for part in self._incremental.multiset_aggregates])
        )

    def changes_of(self, keys: pa.Table) -> ChangesOf:
        """Return a function from a column to the changes of the groups with these keys."""
        from streamhouse_spark.views.ivm.min_max import CHANGES_MAX, NUMBER, VALUE, ValueChanges, match_groups

        def changes_of(column: str) -> ValueChanges | None:
            rows = self._read_changes(
                next(part for part in self._incremental.multiset_aggregates if part.column == column)
            )
            if rows.num_rows > CHANGES_MAX:
                return None
            groups = match_groups(keys, rows.select(keys.column_names))
            return ValueChanges(
                groups, combine_chunks(rows.column(VALUE)), rows.column(NUMBER).to_numpy().astype(np.int64)
            )

        return changes_of

    def list_values(self, request: MinMaxRequest) -> pa.Table:
        """Return the columns of `multiset_sql.listed_values_sql`. Tasks read the rows once and reduce them in place."""
        from streamhouse_spark.views.ivm.min_max import (
            FirstValues,
            listed_values_sql,
            value_names,
            values_sql,
            whole_names,
        )

        names = list(value_names(self._incremental).values())
        cut = FirstValues(self._incremental.groups, names, request.room, whole_names(self._incremental))
        name = self._relations.create_from_tasks("cut", values_sql(self._incremental, self._rows_sql(request)), cut)
        return self._relations.sql(listed_values_sql(self._incremental, name)).toArrow()

    def _read_changes(self, part: Aggregate) -> pa.Table:
        """Return the changed values of an aggregate, cached by its argument."""
        from streamhouse_spark.views.ivm.min_max import changed_values_sql

        if part.of not in self._changed:
            text = changed_values_sql(self._incremental, part, self._writer)
            assert text is not None
            is_local = self._relations.is_local(text)
            text = changed_values_sql(self._incremental, part, self._writer, one_task=is_local)
            self._changed[part.of] = self._relations.sql(text or "").toArrow()
        return self._changed[part.of]

    def _rows_sql(self, request: MinMaxRequest) -> str:
        """Return the SQL of a superset of the rows below the requested groups."""
        from streamhouse_spark.views.ivm.min_max import share_sql
        from streamhouse_spark.views.ivm.refresh_sql import build_filter

        root, writer = self._incremental.root, self._writer
        all_rows = writer.rows(root.child, "new")
        if not root.groups or (request.like is not None and request.num_shares == 1):
            return all_rows
        schema = spark_versions.spark_schema_of(request.lost.schema)
        lost = self._relations.create("lost", request.lost, schema)
        if request.like is None:
            return writer.rows_of_groups(root, "new", f"SELECT * FROM {lost}", build_filter(request.lost))
        like = self._relations.create("like", request.lost.slice(request.like, 1), schema)
        return share_sql(self._incremental, all_rows, lost, like, request.num_shares)


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

        from streamhouse_spark.views.ivm.aggregates import EXISTS, GROUP_ROWS, HAS_TOP_K, extreme_column, old_name

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
