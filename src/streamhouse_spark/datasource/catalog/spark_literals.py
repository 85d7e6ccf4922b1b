"""Values of columns in calls: JSON in Spark's internal form.

Dates are days, timestamps microseconds, decimals text, bytes base64; a float that is no JSON number is text.
"""

from __future__ import annotations

import base64
import decimal
import math
from typing import Any

import pyarrow as pa

from streamhouse_spark.core.python_values import to_ticks


def json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return one JSON value a row, of a column without nesting."""
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


def parse_cell(cell: Any, data_type: pa.DataType) -> Any:
    """Return the value of a JSON value of a column without nesting: as Python has it, dates and timestamps as Arrow."""
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


def is_same_cell(left: Any, right: Any) -> bool:
    """Tell whether two JSON values of a column are one value: decimals of another scale are."""
    if left == right or left is None or right is None:
        return bool(left == right)
    try:
        return type(left) is not bool and decimal.Decimal(left) == decimal.Decimal(right)
    except (decimal.InvalidOperation, TypeError, ValueError):
        return False
