"""Validation of deletes and overwrites before any read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.python_values import to_python
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, SchemaMismatchError
from streamhouse_spark.expressions.partition_filter import (
    OverwriteFilter,
    OverwriteFilterFactory,
)
from streamhouse_spark.expressions.where import parse_condition
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.partitioning import PartitionField, join_fields
from streamhouse_spark.schema.table_schema import TableSchema


def require_deletable(state: TableState) -> None:
    """Raise `InvalidOptionError` for a primary-key table, whose rows cannot be deleted by offset."""
    if state.primary_key:
        raise InvalidOptionError(
            f"table {state.name} has the primary key {', '.join(state.primary_key)}; delete its rows with "
            "delete(keys), or in SQL with DELETE FROM"
        )


def condition_filter(where: Any) -> OverwriteFilterFactory:
    """Return the overwrite filter of a condition. Raises `InvalidOptionError` for an empty one."""
    filter_ = parse_condition(where)
    if filter_ is None:
        raise InvalidOptionError(
            "overwrite(where=[]): found no condition, expected at least one; omit 'where' to replace all rows"
        )
    return lambda schema: filter_.bind(schema.arrow)


def limit_to_partitions(choose: OverwriteFilterFactory, state: TableState) -> OverwriteFilterFactory:
    """Restrict a filter to the partition columns. Raises `InvalidOptionError` if it uses other columns.

    With other columns, the order of writes would determine whether the row of a key matches.
    """

    def chosen(schema: TableSchema) -> OverwriteFilter:
        return choose(schema.select(columns))

    columns = tuple(dict.fromkeys(field.column for field in require_partitioned(state)))
    try:
        chosen(state.schema)
    except SchemaMismatchError as error:
        raise InvalidOptionError(
            f"table {state.name} has a primary key, so a condition for an overwrite may use only its partition columns "
            f"{', '.join(columns)} ({error}); use DELETE and upsert, or MERGE"
        ) from error
    return chosen


def require_partitioned(state: TableState) -> tuple[PartitionField, ...]:
    """Return the partition fields. Raises `InvalidOptionError` for an unpartitioned table."""
    fields = state.parsed.partition_fields
    if not fields:
        raise InvalidOptionError(
            f"table {state.name} is not partitioned; use overwrite(rows) to replace all rows, or overwrite(rows, "
            "where=...) to replace the rows that match a condition"
        )
    return fields


def require_partitioned_by(state: TableState, fields: Sequence[PartitionField]) -> None:
    """Raise `CommitConflictError` if the table is no longer partitioned by ``fields``."""
    if state.parsed.partition_fields != tuple(fields):
        raise CommitConflictError(
            f"table {state.name} is now partitioned by {join_fields(state.parsed.partition_fields) or 'nothing'}, "
            f"expected {join_fields(fields)}; nothing was written, retry"
        )


def require_matching_rows(choice: OverwriteFilter, rows: pa.Table, name: str) -> None:
    """Raise `SchemaMismatchError` for new rows that do not match the condition: a second run would not replace them."""
    outside = ~choice.mask(rows)
    if outside.any():
        place = int(np.argmax(outside))
        columns = [column for column in choice.columns or rows.column_names[:5] if column in rows.column_names]
        shown = ", ".join(f"{column} = {to_python(rows.column(column)[place])!r}" for column in columns)
        raise SchemaMismatchError(
            f"table {name}: {int(outside.sum())} of {rows.num_rows} new rows do not match the condition of the "
            f"overwrite, first row {place} ({shown[:200]}), and nothing was written; remove these rows or widen the "
            "condition"
        )
