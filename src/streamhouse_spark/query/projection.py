"""Projection of a read: the columns to read, the filters to apply, and the columns of the result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.query.filter_parsing import Filter, find_field, parse_filter
from streamhouse_spark.query.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.query.row_mask import RowMask, mask_of
from streamhouse_spark.query.row_selection import select_matching_rows
from streamhouse_spark.schema.table_schema import TableSchema

__all__ = ["Filter", "Projection", "filter_and_project", "parse_filter"]


@dataclass(frozen=True, slots=True)
class Projection:
    """The ``columns`` of the result, and ``read_columns`` (None: all), which include those of the filter."""

    schema: pa.Schema
    columns: tuple[str, ...]
    read_columns: tuple[str, ...] | None
    filter: pc.Expression | None = None
    node: Node = ALWAYS_TRUE
    """The filter for skipping files and segments."""

    @classmethod
    def of(cls, schema: TableSchema, columns: Sequence[str] | None, filter_: Filter | None) -> Projection:
        """Create the projection of a read.

        Raises `SchemaMismatchError` for an unknown or duplicate column, `InvalidOptionError` for a filter that does not
        fit the columns' types.
        """
        names = schema.names if columns is None else _names(schema.arrow, columns)
        bound = filter_.bound(schema.arrow) if filter_ is not None else None
        out = pa.schema([schema.arrow.field(n) for n in names])
        needed = bound.columns if bound is not None else ()
        if columns is None or needed is None:
            read: tuple[str, ...] | None = None  # the columns of an expression are unknown
        else:
            read = tuple(dict.fromkeys([*names, *needed])) or schema.names[:1]
        return cls(out, names, read, bound.expression if bound else None, bound.node if bound else ALWAYS_TRUE)

    @property
    def mask(self) -> RowMask | None:
        """The pre-filter for rows."""
        return mask_of(self.node)

    def finish(self, table: pa.Table) -> pa.Table:
        """Return the requested columns, in order."""
        return table if table.schema.equals(self.schema) else table.select(list(self.columns))

    def joined(self, parts: Sequence[pa.Table]) -> pa.Table:
        """Concatenate finished tables."""
        if not self.columns:  # Arrow loses the row count of tables without columns
            return pa.table([pa.nulls(sum(part.num_rows for part in parts))], names=[""]).select([])
        return pa.concat_tables([self.empty(), *parts])

    def empty(self) -> pa.Table:
        return self.schema.empty_table()


def filter_and_project(rows: pa.Table, columns: Sequence[str] | None, filter_: Filter | None) -> pa.Table:
    """Filter rows of any schema and return the requested columns. Raises as `Projection.of` does."""
    names = None if columns is None else _names(rows.schema, columns)
    if filter_ is not None:
        rows = select_matching_rows(rows, filter_.bound(rows.schema).expression)
    return rows if names is None else rows.select(list(names))


def _names(schema: pa.Schema, columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise InvalidOptionError(f"columns is {columns!r}, expected a list of names")
    names = tuple(find_field(schema, name).name for name in columns)
    for name in names:
        if names.count(name) > 1:
            raise SchemaMismatchError(f"the column '{name}' is asked for twice; name it once")
    return names
