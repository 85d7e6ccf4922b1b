"""New rows of the groups that changed, from the rows that a view has of them: by the driver, or by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.table.table import Table
from streamhouse_spark.views.index_lookup import view_rows
from streamhouse_spark.views.spark_executor import SparkValues
from streamhouse_spark.views.temp_views import TempViews

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from streamhouse_spark.views.ivm.delta_sql import Writer
    from streamhouse_spark.views.ivm.incremental_aggregate import IncrementalAggregate
    from streamhouse_spark.views.ivm.min_max import Tell
    from streamhouse_spark.views.local_executor import LocalRows


@dataclass(frozen=True, slots=True)
class _Changed:
    """The groups that changed."""

    rows: pa.Table
    """The columns of `IncrementalAggregate.changes`."""
    schema: StructType
    keys: pa.Table


class AggregateMerge:
    """Adds what came and went to the view's own rows. What it reads it reads once, however often rows are asked for."""

    def __init__(
        self,
        view: Table,
        added: IncrementalAggregate,
        relations: TempViews,
        writer: Writer,
        local: LocalRows | None,
        values: SparkValues | None,
    ) -> None:
        self._view, self._added, self._relations, self._writer = view, added, relations, writer
        self._values = values
        self._local = local
        self._changed: _Changed | None = None
        self._found: tuple[pa.Table, pa.Table] | None = None

    def rows(self, tell: Tell | None) -> pa.Table | None:
        """Return the rows of `IncrementalAggregate.merged`; None where nothing changed. ``tell`` says what kept values
        tell.
        """
        from streamhouse_spark.views.local_executor import merge_aggregates

        if self._local is not None:
            merged = merge_aggregates(self._added, self._local, self._view_rows, tell)
            if merged is not None:
                return merged
            self._local = None
        return self._by_spark(tell)

    def _view_rows(self, keys: pa.Table) -> pa.Table:
        """Return the view's rows of these keys, which are looked up once."""
        if self._found is None or not self._found[0].equals(keys):
            self._found = keys, view_rows(self._view, keys)
        return self._found[1]

    def _by_spark(self, tell: Tell | None) -> pa.Table | None:
        from pyspark.sql.types import StructType

        from streamhouse_spark.views.ivm.aggregate_functions import old_name
        from streamhouse_spark.views.ivm.incremental_aggregate import THERE, TOLD, TOTAL, extreme_column

        changed = self._changed = self._changed or self._changes()
        if changed is None:
            return None
        statements, stored_rows = self._added.statements, self._view_rows(changed.keys)
        is_present, top_k = stored_rows.column(stored_rows.num_columns - 1), None
        if tell is not None and self._values is not None:
            top_k = tell(changed.keys, is_present.to_numpy(), self._values.changes(changed.keys))
        shown = zip(statements.root.columns, statements.names, strict=True)
        old = pa.table({old_name(column): stored_rows.column(name) for column, name in shown})
        old = old.append_column(THERE, is_present)
        if top_k is not None:
            old = old.append_column(TOLD, pa.array(top_k.known)).append_column(TOTAL, pa.array(top_k.rows))
            for column, values in top_k.values.items():
                old = old.append_column(extreme_column(column), values)
        names = [*changed.rows.column_names, *old.column_names]
        rows = pa.Table.from_arrays([*changed.rows.columns, *old.columns], names=names)
        schema = StructType([*changed.schema.fields, *spark_versions.spark_schema_of(old.schema).fields])
        relation = self._relations.keep("groups", rows, schema)
        return self._relations.sql(self._added.merged(relation, has_top_k=top_k is not None)).toArrow()

    def _changes(self) -> _Changed | None:
        added, relations = self._added, self._relations
        text = added.changes(self._writer)
        if text is None:
            return None
        frame = relations.sql(added.changes(self._writer, one_task=relations.are_local(text)) or text)
        rows = frame.toArrow()
        if not rows.num_rows:
            return None
        keys = pa.table({name: rows.column(c) for name, c in added.key_columns.items()})
        return _Changed(rows, frame.schema, keys)
