"""Column defaults: values for columns that the writer of new rows omits.

A default is a constant, or a function that is evaluated once per write. Existing rows do not change, and an explicit
null remains null. So neither readers nor the lake need to know about defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.schema import default_expressions as constants
from streamhouse_spark.schema.conversion import Conversion
from streamhouse_spark.schema.default_expressions import Default, DefaultFunction, StatementContext, parse_default
from streamhouse_spark.schema.table_schema import Column, TableSchema, fit_default


@dataclass(frozen=True, slots=True)
class SqlText:
    """The expression of a ``DEFAULT`` clause, see `default_expressions.parse_default`."""

    sql: str
    time_zone: str | None = None


def check_defaults(defaults: object) -> Mapping[str, Any]:
    """Return the mapping of columns to values. Raises `InvalidOptionError` for anything else."""
    if not isinstance(defaults, Mapping | None) or not all(isinstance(name, str) for name in defaults or ()):
        raise InvalidOptionError(f"defaults is {defaults!r}, expected a mapping of column names to values")
    return dict(defaults or {})


def with_defaults(schema: TableSchema, defaults: Mapping[str, Any]) -> TableSchema:
    """Return the schema with these defaults: Python values, Arrow scalars or `SqlText`; None removes one.

    Raises `SchemaMismatchError` for a column that is unknown, duplicate or nested, and for a value that does not fit.
    """
    names = [schema.column(name).name for name in defaults]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SchemaMismatchError(f"column '{min(twice)}' has two defaults; name it once")
    parsed_defaults = {}
    for name, value in defaults.items():
        column = schema.column(name)
        parsed_defaults[column.id] = fit_default(_parse_default_value(column, value), column.name, column.size)
    return TableSchema(tuple(replace(c, default=parsed_defaults.get(c.id, c.default)) for c in schema.columns))


def _parse_default_value(column: Column, value: Any) -> Default | None:
    is_scalar = isinstance(value, pa.Scalar)
    if value is None or (is_scalar and not value.is_valid):
        return None
    constants.require_scalar_type(column.type, column.name)
    if isinstance(value, SqlText):
        return parse_default(value.sql, column.type, column.name, value.time_zone)
    conversion = Conversion("the default values", column.name)
    if is_scalar:
        return constants.constant_to_json(conversion.cast(pa.array([value]), column.type)[0], column.name)
    return constants.constant_to_json(conversion.from_python([value], column.type)[0], column.name)


def evaluate_defaults(schema: TableSchema, context: StatementContext) -> TableSchema:
    """Return the schema of one write, with default functions replaced by their values."""
    if not any(isinstance(column.default, DefaultFunction) for column in schema.columns):
        return schema
    return TableSchema(
        tuple(
            replace(c, default=c.default.value(context)) if isinstance(c.default, DefaultFunction) else c
            for c in schema.columns
        )
    )


def default_scalars(schema: TableSchema) -> dict[str, pa.Scalar]:
    """Return column name → default, for a schema of `evaluate_defaults`."""
    return {column.name: column.default_scalar for column in schema.columns if column.default is not None}


def without_defaults(schema: TableSchema) -> TableSchema:
    """Return the schema without defaults, so that a missing column is an error, as in lookup keys."""
    return TableSchema(tuple(replace(column, default=None) for column in schema.columns))


def default_values(column: Column, num_rows: int) -> pa.ChunkedArray:
    """Return ``num_rows`` values of a column that the rows omit."""
    if column.default is None:
        return pa.chunked_array([pa.nulls(num_rows, column.type)])
    scalar_column = pa.repeat(column.default_scalar, 1)
    return arrow_rows.concat_columns([arrow_rows.take_values(scalar_column, np.zeros(num_rows, np.int64))], column.type)


def same_defaults(written: TableSchema, current: TableSchema, missing: Collection[int]) -> bool:
    """Return whether ``current`` has the defaults by which rows were completed with the older schema ``written``.

    ``missing`` are the ids of the columns that the rows omitted, in addition to the columns that were added later.
    """
    before = {column.id: column.default for column in written.columns}
    return all(
        column.default == before.get(column.id)
        for column in current.columns
        if column.id in missing or column.id not in before
    )
