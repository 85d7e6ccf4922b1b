"""Partition fields: a column, or a transform of a column, as in Iceberg's specification.

A transform derives the partition of a row from one of its columns ("hidden partitioning"): ``days(ts)``, ``truncate(4,
name)``. Timestamps are in UTC. Source: Iceberg table specification, "Partition Transforms".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import join_names, parse_names
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.table_schema import TableSchema

Transform = Literal["identity", "years", "months", "days", "hours", "truncate"]

_UNITS: Final[Mapping[str, str]] = {"years": "Y", "months": "M", "days": "D", "hours": "h"}
"""Time transform → numpy unit."""
_HOUR_MICROS: Final = 3_600_000_000
_INT32: Final = (-(1 << 31), (1 << 31) - 1)
_SINGULAR: Final = {"year": "years", "month": "months", "day": "days", "hour": "hours", "date": "days"}
_SHORT: Final = {"years": "year", "months": "month", "days": "day", "hours": "hour", "truncate": "trunc"}
_CALL: Final = re.compile(r"\s*([A-Za-z_]+)\s*\(\s*(.*?)\s*\)\s*", re.DOTALL)
_FIELDS: Final = re.compile(r"\s*((?:`(?:[^`]|``)*`|\((?:`(?:[^`]|``)*`|[^()`])*\)|[^,`()])+)\s*(?:,|\Z)")


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a table's partitioning."""

    column: str
    transform: Transform = "identity"
    width: int = 0
    """Characters, bytes, or integer step of ``truncate``; else 0."""

    def __str__(self) -> str:
        """Return the field as in ``PARTITIONED BY``, which `parse_field` can parse."""
        column = join_names([self.column])
        if self.transform == "identity":
            return column
        return f"{self.transform}({f'{self.width}, ' if self.width else ''}{column})"

    @property
    def suffix(self) -> str:
        """Iceberg's name suffix for this transform, as in ``ts_day``; empty for a plain column."""
        return _SHORT.get(self.transform, "")

    @property
    def name(self) -> str:
        """The name of the partition value."""
        return f"{self.column}_{self.suffix}" if self.suffix else self.column

    def check(self, column_type: pa.DataType) -> None:
        """Raise `InvalidOptionError` if a column of this type does not support the transform."""
        temporal = pa.types.is_date32(column_type) or pa.types.is_timestamp(column_type)
        if self.transform == "identity":
            return
        if self.transform == "truncate":
            is_integer = pa.types.is_integer(column_type)
            if not (is_integer or pa.types.is_string(column_type) or pa.types.is_binary(column_type)):
                raise _unsupported_type_error(self, column_type, "text, binary, or integers")
        elif self.transform == "hours" and not pa.types.is_timestamp(column_type):
            raise _unsupported_type_error(self, column_type, "a timestamp")
        elif not temporal:
            raise _unsupported_type_error(self, column_type, "a date or a timestamp")

    def values(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return the partition value of each row; null for null.

        Years, months, days and hours are int32 since 1970, rounded down. ``truncate`` keeps the type, but widens
        shorter integers to int32.
        """
        if self.transform == "identity":
            return column
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([self.values(chunk) for chunk in column.chunks], type=self.value_type(column.type))
        if self.transform == "truncate":
            return self._truncate(column)
        return _mask_nulls(_since_1970(column, _UNITS[self.transform]).astype(np.int32), column, pa.int32())

    def value_type(self, column_type: pa.DataType) -> pa.DataType:
        """Return the type of `values` for a column of this type."""
        is_short = self.transform == "truncate" and pa.types.is_integer(column_type) and column_type.bit_width < 64
        return pa.int32() if is_short or self.transform in _UNITS else column_type

    def range_of(self, value: int, column_type: pa.DataType) -> tuple[int, int] | None:
        """Return the half-open range of days or microseconds with this partition value of a time transform.

        None for other transforms, and for values outside the range of the type.
        """
        if (
            self.transform not in _UNITS or not _INT32[0] < value < _INT32[1]
        ):  # the last hours also hold all clipped times
            return None
        unit = "D" if pa.types.is_date32(column_type) else "us"
        ends = np.array([value, value + 1], dtype=f"datetime64[{_UNITS[self.transform]}]")
        if unit == "us" and int(np.abs(ends.astype("datetime64[D]").astype(np.int64)).max()) > 100_000_000:
            return None
        start, end = ends.astype(f"datetime64[{unit}]").astype(np.int64).tolist()
        return start, end

    def _truncate(self, column: pa.Array) -> pa.Array:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return pc.utf8_slice_codeunits(column, 0, self.width)
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            return pc.binary_slice(column, 0, self.width)
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        kind = self.value_type(column.type)
        # Below the smallest integer it wraps around, as in Iceberg's own library.
        return _mask_nulls((values - np.mod(values, self.width)).astype(kind.to_pandas_dtype()), column, kind)


def _unsupported_type_error(field: PartitionField, column_type: pa.DataType, expected: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"PARTITIONED BY {field}: column '{field.column}' has type {type_name(column_type)}, expected {expected}"
    )


def _since_1970(column: pa.Array, unit: str) -> npt.NDArray[np.int64]:
    """Return whole units since 1970, rounded down; 0 for null. Hours are clipped to the lake's 32 bits."""
    is_date = pa.types.is_date32(column.type)
    raw = column.view(pa.int32()) if is_date else column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    values = pc.fill_null(raw, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if unit == "h":
        hours: npt.NDArray[np.int64] = np.clip(values // _HOUR_MICROS, *_INT32)
        return hours
    days = values if is_date else values // (24 * _HOUR_MICROS)
    cut: npt.NDArray[np.int64] = days.view("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64)
    return cut


def _mask_nulls(values: npt.NDArray[Any], column: pa.Array, kind: pa.DataType) -> pa.Array:
    mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(values, kind, mask=mask)


# -- texts ------------------------------------------------------------------------------------------------------------


def split_fields(text: str) -> list[str]:
    """Split the text of several fields at commas outside parentheses and backticks."""
    pieces = _FIELDS.findall(text) if text.strip() else []
    return [piece.strip() for piece in pieces]


def join_fields(fields: Iterable[PartitionField]) -> str:
    """Return the text that `split_fields` and `parse_field` can parse."""
    return ", ".join(map(str, fields))


def parse_field(text: str, schema: TableSchema) -> PartitionField:
    """Parse a column name, ``days(ts)`` or ``truncate(4, name)``, with the column in the schema's spelling.

    A column with exactly this name takes precedence. Raises `SchemaMismatchError` for an unknown column, and
    `InvalidOptionError` for an unknown transform and for an unsupported column type.
    """
    source = schema.find(text)
    call = _CALL.fullmatch(text)
    if source is not None or call is None:
        name = text if source is not None else _one_name(text, text)
        return PartitionField(schema.column(name).name)
    transform, arguments = _SINGULAR.get(call[1].lower(), call[1].lower()), call[2]
    if transform not in get_args(Transform):
        raise InvalidOptionError(
            f"PARTITIONED BY {text}: unknown transform {call[1]!r}; a table is partitioned by columns, by years, "
            "months, days or hours of a column, by truncate(width, column), and by one bucket(n, column)"
        )
    width = 0
    if transform == "truncate":
        number = re.fullmatch(r"([0-9]{1,9})\s*,\s*(.+)", arguments, re.DOTALL)
        if number is None or not int(number[1]):
            raise InvalidOptionError(f"PARTITIONED BY {text}: expected a width above 0 and a column: truncate(4, name)")
        width, arguments = int(number[1]), number[2]
    column = schema.column(_one_name(arguments, text))
    field = PartitionField(column.name, cast("Transform", transform), width)
    field.check(column.type)
    return field


def _one_name(text: str, text_of_field: str) -> str:
    names = parse_names(text)
    if len(names) != 1:
        raise InvalidOptionError(f"PARTITIONED BY {text_of_field}: found {len(names)} columns, expected one")
    return names[0]


def parse_fields(texts: Sequence[str], schema: TableSchema) -> tuple[PartitionField, ...]:
    """Parse fields as `parse_field` does. Raises `InvalidOptionError` also for two fields of one column."""
    fields = tuple(parse_field(text, schema) for text in texts)
    columns = [field.column for field in fields]
    for field in fields:
        if columns.count(field.column) > 1 and any(other.transform != "identity" for other in fields):
            raise InvalidOptionError(
                f"PARTITIONED BY {join_fields(fields)}: column '{field.column}' occurs twice; the finest transform "
                "includes the others, so name it once"
            )
    return fields
