"""Column values in catalog calls, as JSON in Spark's internal form.

Dates are days, timestamps microseconds, decimals text, binary base64. NaN and infinite floats are text.
"""

from __future__ import annotations

import base64
import decimal
import math
from typing import Any

import pyarrow as pa

from streamhouse_spark.core.python_values import to_ticks


def json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the JSON value of each row of a non-nested column."""
    types = pa.types
    if types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
    values: list[Any] = to_ticks(column).to_pylist()
    if types.is_floating(column.type) or types.is_decimal(column.type) or types.is_binary(column.type):
        return [_json_value(value) for value in values]
    return values


def _json_value(value: Any) -> Any:
    match value:
        case decimal.Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case _:
            return value


def parse_json_value(cell: Any, data_type: pa.DataType) -> Any:
    """Convert a JSON value of a non-nested column to a Python value. Dates and timestamps become Arrow scalars."""
    types = pa.types
    if cell is None:
        return None
    if types.is_temporal(data_type):
        return pa.scalar(cell, data_type)
    if types.is_decimal(data_type):
        return decimal.Decimal(cell)
    if types.is_floating(data_type):
        return float(cell)
    return base64.b64decode(cell) if types.is_binary(data_type) else cell


def is_same_json_value(left: Any, right: Any) -> bool:
    """Return whether two JSON values of a column are equal. Decimals compare regardless of scale."""
    if left == right or left is None or right is None:
        return bool(left == right)
    try:
        return type(left) is not bool and decimal.Decimal(left) == decimal.Decimal(right)
    except (decimal.InvalidOperation, TypeError, ValueError):
        return False
