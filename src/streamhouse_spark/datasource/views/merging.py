"""New rows of the groups that changed, from the rows that a view has of them: by the driver, or by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from streamhouse_spark.core.values import dataclass
from streamhouse_spark.datasource import compat
from streamhouse_spark.datasource.views.looked_up import view_rows
from streamhouse_spark.datasource.views.relations import Relations
from streamhouse_spark.datasource.views.spark_values import SparkValues
from streamhouse_spark.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from streamhouse_spark.datasource.views.directly import LocalRows
    from streamhouse_spark.zset.added import Added
    from streamhouse_spark.zset.extremes import Tell
    from streamhouse_spark.zset.writer import Writer


@dataclass(frozen=True, slots=True)
class _Changed:
    """The groups that changed."""

    rows: pa.Table
    """The columns of `Added.changes`."""
    schema: StructType
    keys: pa.Table


class Merging:
    """Adds what came and went to the view's own rows. What it reads it reads once, however often rows are asked for."""

    def __init__(
        self,
        view: Table,
        added: Added,
        relations: Relations,
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
        """Return the rows of `Added.merged`; None where nothing changed. ``tell`` says what kept values tell."""
        from streamhouse_spark.datasource.views.directly import merged_directly

        if self._local is not None:
            merged = merged_directly(self._added, self._local, self._view_rows, tell)
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

        from streamhouse_spark.zset.added import THERE, TOLD, TOTAL, told_name
        from streamhouse_spark.zset.aggregates import old_name

        changed = self._changed = self._changed or self._changes()
        if changed is None:
            return None
        statements, found = self._added.statements, self._view_rows(changed.keys)
        there, told = found.column(found.num_columns - 1), None
        if tell is not None and self._values is not None:
            told = tell(changed.keys, there.to_numpy(), self._values.changes(changed.keys))
        shown = zip(statements.root.columns, statements.names, strict=True)
        old = pa.table({old_name(column): found.column(name) for column, name in shown})
        old = old.append_column(THERE, there)
        if told is not None:
            old = old.append_column(TOLD, pa.array(told.known)).append_column(TOTAL, pa.array(told.rows))
            for column, values in told.values.items():
                old = old.append_column(told_name(column), values)
        names = [*changed.rows.column_names, *old.column_names]
        rows = pa.Table.from_arrays([*changed.rows.columns, *old.columns], names=names)
        schema = StructType([*changed.schema.fields, *compat.spark_schema_of(old.schema).fields])
        kept = self._relations.keep("groups", rows, schema)
        return self._relations.sql(self._added.merged(kept, are_told=told is not None)).toArrow()

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
