"""Statistics of a segment's rows, in the JSON form of the commit record.

A column has ``[min, max, null count]``; min and max are null if every value is null. Dates are days, timestamps are
microseconds, decimals are strings. A column with NaN has no statistics, because NaN has no order.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import distinct_rows
from streamhouse_spark.core.python_values import to_ticks
from streamhouse_spark.expressions.predicates import ONLY_NULLS, Bounds, family_of, to_comparable
from streamhouse_spark.schema.default_expressions import value_to_json

PARTITIONS_MAX = 64
STRING_CHARS_MAX = 64


def collect_stats(rows: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> dict[str, list[Any]]:
    out = {}
    for name in columns:
        column = rows.column(name)
        stats = _column_stats(column)
        if stats is not None:
            out[name] = stats
    return out


def merge_statistics(parts: Sequence[Mapping[str, list[Any]]], schema: pa.Schema) -> dict[str, list[Any]]:
    """Combine the statistics of parts of the rows. A column without statistics in any part has no statistics."""
    out = {}
    for name in parts[0] if parts else ():
        column_stats = [part[name] for part in parts if name in part]
        if len(column_stats) == len(parts):
            order = decimal.Decimal if pa.types.is_decimal(schema.field(name).type) else None
            lows, highs = ([bounds[i] for bounds in column_stats if bounds[i] is not None] for i in (0, 1))
            low, high = min(lows, key=order, default=None), max(highs, key=order, default=None)
            out[name] = [low, high, sum(bounds[2] for bounds in column_stats)]
    return out


def _column_stats(column: pa.Array | pa.ChunkedArray) -> list[Any] | None:
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return None
    bounds = pc.min_max(to_ticks(column))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if isinstance(low, float) and not (abs(low) != float("inf") and abs(high) != float("inf")):
        return None  # JSON has no infinity
    if isinstance(low, str) and max(len(low), len(high)) > STRING_CHARS_MAX:
        return None
    if isinstance(low, decimal.Decimal):
        low, high = str(low), str(high)
    return [low, high, column.null_count]


def collect_partitions(
    rows: pa.Table | pa.RecordBatch, partition_by: Sequence[str]
) -> tuple[tuple[Any, ...], ...] | None:
    """Return the distinct partition values in JSON form; None if there are more than 64, or no partition columns."""
    if not partition_by:
        return None
    keys = pa.table({name: rows.column(name) for name in partition_by})
    partitions = distinct_rows(keys)
    if partitions.num_rows > PARTITIONS_MAX:
        return None
    columns = [[value_to_json(v) for v in to_ticks(partitions.column(name)).to_pylist()] for name in partition_by]
    return tuple(zip(*columns, strict=True))


def merge_partitions(parts: Sequence[tuple[tuple[Any, ...], ...] | None]) -> tuple[tuple[Any, ...], ...] | None:
    """Combine the results of `collect_partitions` for parts of the rows."""
    partitions: dict[tuple[Any, ...], None] = {}
    for part in parts:
        if part is None:
            return None
        partitions.update(dict.fromkeys(part))
    return tuple(partitions) if len(partitions) <= PARTITIONS_MAX else None


class RowSummary:
    """Collects the statistics, partitions and counts of a segment's rows batch by batch."""

    def __init__(self, stats_columns: Sequence[str], partition_by: Sequence[str]) -> None:
        self._stats_columns = stats_columns
        self._partition_by = partition_by
        self._num_rows = 0
        self._num_bytes = 0
        self._stats: list[dict[str, list[Any]]] = []
        self._partitions: list[tuple[tuple[Any, ...], ...] | None] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self._num_rows += rows.num_rows
        self._num_bytes += rows.nbytes
        self._stats.append(collect_stats(rows, self._stats_columns))
        self._partitions.append(collect_partitions(rows, self._partition_by))

    def to_fields(self, schema: pa.Schema, *, is_compressed: bool) -> dict[str, Any]:
        """Return the fields of the `Segment` that depend on its rows."""
        return {
            "num_rows": self._num_rows,
            "compressed": is_compressed,
            "unpacked_bytes": self._num_bytes if is_compressed else None,
            "stats": merge_statistics(self._stats, schema),
            "partitions": merge_partitions(self._partitions),
        }


def stats_bounds(stats: Sequence[Any], data_type: pa.DataType, num_rows: int) -> Bounds:
    """Return bounds from the ``[min, max, null count]`` of a record."""
    low, high, nulls = stats
    if low is None:
        return ONLY_NULLS
    low, high = decode_stored_value(low, data_type), decode_stored_value(high, data_type)
    if low is None or high is None:
        return Bounds(may_be_null=bool(nulls), may_have_value=nulls < num_rows)
    return Bounds(to_comparable(low), to_comparable(high), may_be_null=bool(nulls), may_have_value=nulls < num_rows)


def decode_stored_value(value: Any, data_type: pa.DataType) -> Any:
    """Return a JSON value of a record in the form that predicates compare; None if it cannot be decoded."""
    try:
        match family_of(data_type):
            case "number":
                return decimal.Decimal(value) if pa.types.is_decimal(data_type) else int(value)
            case "float":
                return float(value)
            case "binary":
                return bytes.fromhex(value)
            case "string" | "boolean" | "date" | "timestamp" | "timestamp_ntz":
                return value
    except (ValueError, TypeError, ArithmeticError):
        return None
    return None
