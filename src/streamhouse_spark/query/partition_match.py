"""Partition matching: partitions chosen by values of some or all partition columns. Pure, over Arrow columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import from_text, scalar_to_ticks, to_python
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError, quote
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.row_conversion import convert_to_schema
from streamhouse_spark.schema.table_schema import TableSchema

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
"""The text of a null partition value, as in Hive's directories."""


@dataclass(frozen=True, slots=True)
class PartitionMatch:
    """All partitions with these values in these columns. Null and NaN are values."""

    values: tuple[tuple[str, pa.Scalar], ...]
    """Partition column → value in the column's type, at least one."""

    @classmethod
    def of(cls, partition: object, schema: TableSchema, partition_by: Sequence[str], table: str) -> PartitionMatch:
        """Match the partitions with the values of a mapping, whose names are case-insensitive.

        Raises `InvalidOptionError` for a table without partitions, for a value that is not a non-empty mapping, and for
        a name that is not a partition column; `SchemaMismatchError` for a value that does not fit its column.
        """
        columns = _validate_partition(partition, partition_by, table)
        partition_schema = TableSchema(tuple(schema.column(name) for name in columns))
        row = convert_to_schema([columns], partition_schema, table=table)
        return cls(tuple((name, row.column(name)[0]) for name in partition_schema.names))

    @classmethod
    def of_texts(
        cls, partition: Mapping[str, str], schema: TableSchema, partition_by: Sequence[str], table: str
    ) -> PartitionMatch:
        """Match as `of` does, with values as texts; `NULL_NAME` is null."""
        columns = _validate_partition(partition, partition_by, table)
        typed = {name: _cast_scalar(table, name, text, schema.column(name).type) for name, text in columns.items()}
        return cls.of(typed, schema, partition_by, table)

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which of the rows are in these partitions. The rows have at least the columns of the match."""
        matches = np.ones(rows.num_rows, np.bool_)
        for name, value in self.values:
            matches &= _equality_mask(rows.column(name), value).to_numpy()
        return matches

    def holds(self, partition: Mapping[str, Any]) -> bool:
        """Return whether a partition matches, given its columns' plain values (days and microseconds as integers)."""
        return all(_are_equal(partition[name], scalar_to_ticks(value)) for name, value in self.values)

    def __str__(self) -> str:
        return ", ".join(f"{name} = {_format_value(to_python(value))}" for name, value in self.values)


@dataclass(frozen=True, slots=True)
class PartitionMatches:
    """The union of several `PartitionMatch`."""

    matches: tuple[PartitionMatch, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The partition columns that the matches use."""
        return tuple(dict.fromkeys(name for match in self.matches for name, _ in match.values))

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        matches = np.zeros(rows.num_rows, np.bool_)
        for match in self.matches:
            matches |= match.mask(rows)
        return matches

    def holds(self, partition: Mapping[str, Any]) -> bool:
        return any(match.holds(partition) for match in self.matches)

    def renamed(self, names: Mapping[str, str]) -> PartitionMatches:
        """Return the same partitions with other column names."""
        return PartitionMatches(
            tuple(replace(m, values=tuple((names[name], value) for name, value in m.values)) for m in self.matches)
        )

    def __str__(self) -> str:
        return " or ".join(f"({match})" for match in self.matches)


def _validate_partition(partition: object, partition_by: Sequence[str], table: str) -> dict[str, Any]:
    """Return the values by the table's spelling of the names."""
    if not partition_by:
        raise InvalidOptionError(
            f"table {table} is not partitioned by columns; truncate() removes all rows, DELETE those of a condition, "
            "or partition a new table by a column"
        )
    expected = ", ".join(partition_by)
    if not isinstance(partition, Mapping) or not partition:
        raise InvalidOptionError(
            f"the partition of {table} is {quote(partition)}, expected values of some of {expected}"
        )
    spelled = {name.casefold(): name for name in partition_by}
    values: dict[str, Any] = {}
    for name, value in partition.items():
        column = spelled.get(name.casefold()) if isinstance(name, str) else None
        if column is None:
            raise InvalidOptionError(f"{name!r} is no partition column of {table}; it is partitioned by {expected}")
        if column in values:
            raise InvalidOptionError(f"partition column '{column}' of {table} is there twice; name it once")
        values[column] = value
    return values


def _cast_scalar(table: str, column: str, text: str, arrow: pa.DataType) -> pa.Scalar:
    if text == NULL_NAME:
        return pa.scalar(None, arrow)
    try:
        return from_text(text, arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError) as error:
        is_zoned = pa.types.is_timestamp(arrow) and arrow.tz is not None
        advice = "with its zone, such as 2026-01-31T09:00:00Z" if is_zoned else "as SELECT shows it"
        raise SchemaMismatchError(
            f"column '{column}' of {table} has type {type_name(arrow)}, and {text[:100]!r} is no value of it "
            f"({str(error).splitlines()[0][:200]}); write it {advice}, {NULL_NAME} for null"
        ) from error


def _equality_mask(column: pa.ChunkedArray, value: pa.Scalar) -> pa.ChunkedArray:
    if not value.is_valid:
        return pc.is_null(column)
    if _is_nan(scalar_to_ticks(value)):
        return pc.fill_null(pc.is_nan(column), False)
    return pc.fill_null(pc.equal(column, value), False)


def _format_value(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, str | bytes) else str(value)


def _are_equal(value: Any, other: Any) -> bool:
    return bool(value == other) or (_is_nan(value) and _is_nan(other))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
