"""Columns and filters of a read: what has to be read, what is applied where, what comes out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.schema import TableSchema

_OPERATORS: Mapping[str, Callable[[pc.Expression, Any], pc.Expression]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda column, values: column.isin(list(values)),
    "is null": lambda column, _: column.is_null(),
    "not null": lambda column, _: column.is_valid(),
}


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter as an expression, and as predicates where it was given as such (these prune lake files)."""

    expression: pc.Expression
    predicates: tuple[tuple[str, str, Any], ...] = ()


def parse_filter(value: pc.Expression | Sequence[Any] | None) -> Filter | None:
    """Raises `InvalidOptionError` for anything but an expression or a list of (column, operator, value)."""
    if value is None:
        return None
    if isinstance(value, pc.Expression):
        return Filter(value)
    predicates = []
    for item in value:
        if not isinstance(item, tuple) or len(item) != 3 or str(item[1]).lower() not in _OPERATORS:
            raise InvalidOptionError(
                f"filter {item!r}: expected (column, operator, value) with an operator of "
                f"{', '.join(_OPERATORS)}, or a pyarrow.compute expression",
            )
        predicates.append((item[0], str(item[1]).lower().replace("==", "="), item[2]))
    if not predicates:
        return None
    expression = _OPERATORS[predicates[0][1]](pc.field(predicates[0][0]), predicates[0][2])
    for column, name, operand in predicates[1:]:
        expression = expression & _OPERATORS[name](pc.field(column), operand)
    return Filter(expression, tuple(predicates))


@dataclass(frozen=True, slots=True)
class Projection:
    """``columns`` come out; ``read_columns`` are read, which also holds what only the filter needs (None: all)."""

    schema: pa.Schema
    columns: tuple[str, ...]
    read_columns: tuple[str, ...] | None
    filter: pc.Expression | None = None
    predicates: tuple[tuple[str, str, Any], ...] = ()

    @classmethod
    def of(cls, schema: TableSchema, columns: Sequence[str] | None, filter_: Filter | None) -> Projection:
        """Raises `SchemaMismatchError` for an unknown column of ``columns`` or of the predicates."""
        names = tuple(schema.column(c).name for c in columns) if columns is not None else schema.names
        predicates = filter_.predicates if filter_ else ()
        only_filtered = [schema.column(p[0]).name for p in predicates if schema.column(p[0]).name not in names]
        out = pa.schema([schema.arrow.field(n) for n in names])
        if columns is None or (filter_ is not None and not predicates):
            read: tuple[str, ...] | None = None  # an expression does not say which columns it needs
        else:
            read = (*names, *dict.fromkeys(only_filtered)) or schema.names[:1]
        return cls(out, names, read, filter_.expression if filter_ else None, predicates)

    def filtered(self, table: pa.Table) -> pa.Table:
        return table if self.filter is None else table.filter(self.filter)

    def finish(self, table: pa.Table) -> pa.Table:
        """The columns that were asked for, in their order."""
        return table if table.schema.equals(self.schema) else table.select(list(self.columns))

    def joined(self, parts: Sequence[pa.Table]) -> pa.Table:
        """Finished tables as one."""
        if not self.columns:  # Arrow forgets the number of rows when it joins tables without columns
            return pa.table([pa.nulls(sum(part.num_rows for part in parts))], names=[""]).select([])
        return pa.concat_tables([self.empty(), *parts])

    def empty(self) -> pa.Table:
        return self.schema.empty_table()
