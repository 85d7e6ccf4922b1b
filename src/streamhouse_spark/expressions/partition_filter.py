"""Filters by partition: for DROP PARTITION and for overwrites."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import distinct_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import from_text, scalar_to_ticks, to_python
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError, quote
from streamhouse_spark.expressions.predicates import UNKNOWN, And, In, IsNull, Node, Or
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.partitioning import PartitionField
from streamhouse_spark.schema.row_conversion import convert_to_schema
from streamhouse_spark.schema.table_schema import TableSchema

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
"""The string of a null partition value, as in Hive's directory names."""
Bools = npt.NDArray[np.bool_]
_TESTED_MAX: Final = 256
"""Files are not pruned by more partitions, because the tests would take longer than reading the files."""


@dataclass(frozen=True, slots=True)
class PartitionMatches:
    """A set of partitions, given by values of some or all partition columns. Null and NaN are values."""

    matches: tuple[tuple[tuple[str, pa.Scalar], ...], ...]
    """Alternatives of (partition column, value in the column's type) pairs, at least one pair each."""

    @classmethod
    def of(
        cls, partitions: Iterable[object], schema: TableSchema, partition_by: Sequence[str], table: str
    ) -> PartitionMatches:
        """Create the set from mappings of column names, which are case-insensitive, to values.

        Raises `InvalidOptionError` for a table without partitions, an empty mapping, another type, and a name that is
        not a partition column; `SchemaMismatchError` for a value that does not fit its column.
        """
        matches = []
        for partition in partitions:
            columns = _validate_partition(partition, partition_by, table)
            partition_schema = TableSchema(tuple(schema.column(name) for name in columns))
            row = convert_to_schema([columns], partition_schema, table=table)
            matches.append(tuple((name, row.column(name)[0]) for name in partition_schema.names))
        return cls(tuple(matches))

    @classmethod
    def of_texts(
        cls, partition: Mapping[str, str], schema: TableSchema, partition_by: Sequence[str], table: str
    ) -> PartitionMatches:
        """Create the set as `of` does, from one mapping with values as strings; `NULL_NAME` is null."""
        columns = _validate_partition(partition, partition_by, table)
        typed = {name: _cast_scalar(table, name, text, schema.column(name).type) for name, text in columns.items()}
        return cls.of([typed], schema, partition_by, table)

    @property
    def columns(self) -> tuple[str, ...]:
        """The partition columns that have values in ``matches``."""
        return tuple(dict.fromkeys(name for match in self.matches for name, _ in match))

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which rows are in these partitions. The rows have at least `columns`."""
        is_match = np.zeros(rows.num_rows, np.bool_)
        for match in self.matches:
            masks = [_equality_mask(rows.column(name), value).to_numpy() for name, value in match]
            is_match |= np.logical_and.reduce(masks)
        return is_match

    def holds(self, partition: Mapping[str, Any]) -> bool:
        """Return whether a partition is in the set. Its dates and timestamps are integers as in `scalar_to_ticks`."""
        return any(
            all(_are_equal(partition[name], scalar_to_ticks(value)) for name, value in match) for match in self.matches
        )

    def renamed(self, names: Mapping[str, str]) -> PartitionMatches:
        """Return the set for columns with other names."""
        return PartitionMatches(tuple(tuple((names[name], value) for name, value in match) for match in self.matches))

    def __str__(self) -> str:
        texts = (
            ", ".join(f"{name} = {_format_value(to_python(value))}" for name, value in match) for match in self.matches
        )
        return " or ".join(f"({text})" for text in texts)


def _validate_partition(partition: object, partition_by: Sequence[str], table: str) -> dict[str, Any]:
    """Return the values by column name, as the table spells it."""
    if not partition_by:
        raise InvalidOptionError(
            f"table {table} is not partitioned by columns; remove all rows with truncate(), delete rows with DELETE, "
            "or partition a new table by a column"
        )
    expected = ", ".join(partition_by)
    if not isinstance(partition, Mapping) or not partition:
        raise InvalidOptionError(
            f"the partition of {table} is {quote(partition)}, expected values of one or more of {expected}"
        )
    spelled = {name.casefold(): name for name in partition_by}
    values: dict[str, Any] = {}
    for name, value in partition.items():
        column = spelled.get(name.casefold()) if isinstance(name, str) else None
        if column is None:
            raise InvalidOptionError(f"{name!r} is not a partition column of {table}, expected {expected}")
        if column in values:
            raise InvalidOptionError(f"partition column '{column}' of {table} is named twice; name it once")
        values[column] = value
    return values


def _cast_scalar(table: str, column: str, text: str, arrow: pa.DataType) -> pa.Scalar:
    if text == NULL_NAME:
        return pa.scalar(None, arrow)
    try:
        return from_text(text, arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError) as error:
        is_zoned = pa.types.is_timestamp(arrow) and arrow.tz is not None
        form = "with its zone, such as 2026-01-31T09:00:00Z" if is_zoned else "as SELECT shows it"
        raise SchemaMismatchError(
            f"column '{column}' of {table} has type {type_name(arrow)}, and {text[:100]!r} is not a value of this "
            f"type ({str(error).splitlines()[0][:200]}); write it {form}, or {NULL_NAME} for null"
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


class OverwriteFilter(Protocol):
    """Selects the rows that an overwrite replaces, by the columns of one schema."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that the filter needs; None if unknown."""

    @property
    def node(self) -> Node:
        """Predicate that all selected rows satisfy, for skipping files and segments."""

    @property
    def expression(self) -> pc.Expression | None:
        """Arrow expression that is true for exactly the selected rows; None if only `mask` can select them."""

    def mask(self, rows: pa.Table) -> Bools:
        """Return which rows are selected. The rows have at least `columns`."""


OverwriteFilterFactory = Callable[[TableSchema], OverwriteFilter]
"""Creates the filter for a schema. Raises `SchemaMismatchError` or `InvalidOptionError` if the filter does not fit."""


@dataclass(frozen=True, slots=True)
class PartitionOverwriteFilter:
    """Selects the rows of some partitions, by the values of all partition fields. Null and NaN are values."""

    partitions: pa.Table
    """The distinct partitions: one column per field."""
    fields: tuple[PartitionField, ...]

    @classmethod
    def of(cls, rows: pa.Table, fields: Sequence[PartitionField]) -> PartitionOverwriteFilter:
        """Select the partitions that occur in the rows."""
        return cls(partitions_of(rows, fields), tuple(fields))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(field.column for field in self.fields))

    @property
    def expression(self) -> None:
        return None

    @property
    def node(self) -> Node:
        columns = zip(self.fields, self.partitions.columns, strict=True)
        return And(tuple(_in_node(f.column, column) for f, column in columns if f.transform == "identity"))

    def mask(self, rows: pa.Table) -> Bools:
        if not self.partitions.num_rows or not rows.num_rows:
            return np.zeros(rows.num_rows, np.bool_)
        partition_codes = np.zeros(self.partitions.num_rows, np.int64)
        codes, is_in_partition = np.zeros(rows.num_rows, np.int64), np.ones(rows.num_rows, np.bool_)
        for field, column in zip(self.fields, self.partitions.columns, strict=True):
            values = pc.unique(column)
            partition_codes = partition_codes * len(values) + _value_indices(column, values)
            places = _value_indices(field.values(rows.column(field.column)), values)
            is_in_partition &= places >= 0
            codes = codes * len(values) + places
            distinct_codes, partition_codes = np.unique(
                partition_codes, return_inverse=True
            )  # keeps codes small for any number of columns
            at = np.minimum(np.searchsorted(distinct_codes, codes), len(distinct_codes) - 1)
            is_in_partition &= distinct_codes[at] == codes
            codes = at
        return is_in_partition


def partitions_of(rows: pa.Table, fields: Sequence[PartitionField]) -> pa.Table:
    """Return the distinct partitions of the rows, one column per partition field."""
    values = [field.values(rows.column(field.column)) for field in fields]
    return distinct_rows(pa.table(values, names=[str(field) for field in fields]))


def _value_indices(column: pa.ChunkedArray, values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the index of each value in ``values``, or -1."""
    places = pc.fill_null(pc.index_in(column, value_set=values), -1)
    indices: npt.NDArray[np.int64] = places.to_numpy().astype(np.int64)
    return indices


def _in_node(name: str, column: pa.ChunkedArray) -> Node:
    if pa.types.is_floating(column.type):
        return UNKNOWN
    values = pc.unique(column)
    if len(values) > _TESTED_MAX:
        return UNKNOWN
    ticks = tuple(scalar_to_ticks(value) for value in values.drop_null())
    of_values = In(name, ticks, has_null=False)
    if not values.null_count:
        return of_values
    return Or((of_values, IsNull(name))) if ticks else IsNull(name)
