"""Fast path for single rows: Python values of exactly their column's type, which need no conversion.

They are recognised without Arrow, so that many single rows can be buffered and become Arrow data at once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.schema.table_schema import Column

NOT_PLAIN: Final = -1
SizeOf = Callable[[Any], int]
"""Returns the approximate size of a value in bytes, or `NOT_PLAIN` if it needs conversion or would be rejected."""


def size_of_values(column: Column) -> SizeOf | None:
    """Return the function that recognises the column's non-null plain values, or None without one."""
    kind, types = column.type, pa.types
    if column.size is not None:
        return None
    if types.is_signed_integer(kind):
        return _integers(kind.bit_width)
    if types.is_decimal(kind):
        return _decimals(kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return _utc_times if kind.tz is not None else _local_times
    for is_kind, size_of in _SIZES:
        if is_kind(kind):
            return size_of
    return None


def _integers(num_bits: int) -> SizeOf:
    end = 1 << (num_bits - 1)
    return lambda value: num_bits // 8 if type(value) is int and -end <= value < end else NOT_PLAIN


def _decimals(precision: int, scale: int) -> SizeOf:
    def size_of(value: Any) -> int:
        if type(value) is not Decimal:
            return NOT_PLAIN
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):  # NaN or infinity
            return NOT_PLAIN
        fits = -scale <= exponent <= 0 and len(digits) + exponent <= precision - scale
        return 16 if fits else NOT_PLAIN

    return size_of


def _texts(value: Any) -> int:
    if type(value) is not str:
        return NOT_PLAIN
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        return NOT_PLAIN


def _bytes(value: Any) -> int:
    return len(value) if type(value) is bytes else NOT_PLAIN


def _floats(value: Any) -> int:
    return 8 if type(value) is float else NOT_PLAIN


def _booleans(value: Any) -> int:
    return 1 if type(value) is bool else NOT_PLAIN


def _dates(value: Any) -> int:
    return 4 if type(value) is dt.date else NOT_PLAIN


def _utc_times(value: Any) -> int:
    return 8 if type(value) is dt.datetime and value.tzinfo is dt.UTC else NOT_PLAIN


def _local_times(value: Any) -> int:
    return 8 if type(value) is dt.datetime and value.tzinfo is None else NOT_PLAIN


_SIZES: Final[tuple[tuple[Callable[[pa.DataType], bool], SizeOf], ...]] = (
    (pa.types.is_string, _texts),
    (pa.types.is_binary, _bytes),
    (pa.types.is_float64, _floats),
    (pa.types.is_boolean, _booleans),
    (pa.types.is_date32, _dates),
)
