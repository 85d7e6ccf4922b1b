"""Validation of row deletions and overwrites before anything is read. Pure."""

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
    """Raise `InvalidOptionError` unless rows of the table can be deleted by offset."""
    if state.primary_key:
        raise InvalidOptionError(
            f"table {state.name} has the primary key {', '.join(state.primary_key)}: its rows are deleted by "
            "delete(keys), and in SQL by DELETE FROM"
        )


def condition_filter(where: Any) -> OverwriteFilterFactory:
    """Return the overwrite filter of a condition. Raises `InvalidOptionError` for an empty one."""
    filter_ = parse_condition(where)
    if filter_ is None:
        raise InvalidOptionError("overwrite(where=[]): a condition is needed; leave where out to replace all rows")
    return lambda schema: filter_.bound(schema.arrow)


def limit_to_partitions(choose: OverwriteFilterFactory, state: TableState) -> OverwriteFilterFactory:
    """Restrict a filter to the partition columns. Raises `InvalidOptionError` if it uses other columns.

    With other columns, the matching row of a key would depend on the order of writes.
    """

    def chosen(schema: TableSchema) -> OverwriteFilter:
        return choose(schema.select(columns))

    columns = tuple(dict.fromkeys(field.column for field in require_partitioned(state)))
    try:
        chosen(state.schema)
    except SchemaMismatchError as error:
        raise InvalidOptionError(
            f"table {state.name} has a primary key, and of such a table whole partitions are replaced, by a condition "
            f"on its partition columns {', '.join(columns)} ({error}); use DELETE and upsert, or MERGE"
        ) from error
    return chosen


def require_partitioned(state: TableState) -> tuple[PartitionField, ...]:
    """Return the partition fields. Raises `InvalidOptionError` for an unpartitioned table."""
    fields = state.parsed.partition_fields
    if not fields:
        raise InvalidOptionError(
            f"table {state.name} is not partitioned; overwrite(rows) replaces all rows, overwrite(rows, where=...) "
            "those of a condition"
        )
    return fields


def require_partitioned_by(state: TableState, fields: Sequence[PartitionField]) -> None:
    """Raise `CommitConflictError` if the table is no longer partitioned by ``fields``."""
    if state.parsed.partition_fields != tuple(fields):
        raise CommitConflictError(
            f"table {state.name} is now partitioned by {join_fields(state.parsed.partition_fields) or 'nothing'}, "
            f"expected {join_fields(fields)}; nothing was written, try again"
        )


def require_matching_rows(choice: OverwriteFilter, rows: pa.Table, name: str) -> None:
    """Raise `SchemaMismatchError` for new rows that a second run would not replace."""
    outside = ~choice.mask(rows)
    if outside.any():
        place = int(np.argmax(outside))
        columns = [column for column in choice.columns or rows.column_names[:5] if column in rows.column_names]
        shown = ", ".join(f"{column} = {to_python(rows.column(column)[place])!r}" for column in columns)
        raise SchemaMismatchError(
            f"table {name}: {int(outside.sum())} of {rows.num_rows} new rows are not among the rows that the condition "
            f"replaces, the first is row {place} ({shown[:200]}); nothing was written: leave these rows out, or widen "
            "the condition"
        )
