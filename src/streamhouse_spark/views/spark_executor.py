"""Spark jobs over the values of a view's groups: changed values, and the first and last values of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.arrow_chunking import combine_chunks
from streamhouse_spark.core.arrow_groupby import distinct_rows
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.views.temp_views import TempViews

if TYPE_CHECKING:
    from streamhouse_spark.views.ivm.aggregate_functions import Aggregate
    from streamhouse_spark.views.ivm.delta_sql import Writer
    from streamhouse_spark.views.ivm.incremental_aggregate import IncrementalAggregate
    from streamhouse_spark.views.ivm.min_max import ChangesOf
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
        from streamhouse_spark.views.ivm.min_max import ValueChanges, match_groups
        from streamhouse_spark.views.ivm.multiset_sql import CHANGES_MAX, VALUE
        from streamhouse_spark.views.ivm.top_k import NUMBER

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
        from streamhouse_spark.views.ivm.multiset_sql import listed_values_sql, value_names, values_sql, whole_names
        from streamhouse_spark.views.ivm.top_k import FirstValues

        names = list(value_names(self._incremental).values())
        cut = FirstValues(self._incremental.groups, names, request.room, whole_names(self._incremental))
        name = self._relations.create_from_tasks("cut", values_sql(self._incremental, self._rows_sql(request)), cut)
        return self._relations.sql(listed_values_sql(self._incremental, name)).toArrow()

    def _read_changes(self, part: Aggregate) -> pa.Table:
        """Return the changed values of an aggregate, cached by its argument."""
        from streamhouse_spark.views.ivm.multiset_sql import changed_values_sql

        if part.of not in self._changed:
            text = changed_values_sql(self._incremental, part, self._writer)
            assert text is not None
            is_local = self._relations.is_local(text)
            text = changed_values_sql(self._incremental, part, self._writer, one_task=is_local)
            self._changed[part.of] = self._relations.sql(text or "").toArrow()
        return self._changed[part.of]

    def _rows_sql(self, request: MinMaxRequest) -> str:
        """Return the SQL of a superset of the rows below the requested groups."""
        from streamhouse_spark.views.ivm.multiset_sql import share_sql
        from streamhouse_spark.views.ivm.semi_join_filter import build_filter

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
