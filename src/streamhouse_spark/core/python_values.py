"""Arrow values as Python values and as ISO text, over the whole range of Arrow's dates and timestamps.

Python's ``datetime`` covers the years 1 to 9999. Other dates and timestamps become signed ISO texts in the format of
Java and Spark: ``+294247-01-10T04:00:54.775807Z``. Comparisons use integers: days, or microseconds, since 1970.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Values = TypeVar("Values", pa.Scalar, pa.Array, pa.ChunkedArray, pa.Array | pa.ChunkedArray)

_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - for times without a zone
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
DAYS: Final = (1 - _EPOCH_DAY, dt.date.max.toordinal() - _EPOCH_DAY)
"""The first and the last date of Python, in days since 1970."""
_DAY_MICROS: Final = 86_400_000_000
MICROS: Final = (DAYS[0] * _DAY_MICROS, (DAYS[1] + 1) * _DAY_MICROS - 1)
"""The first and the last ``datetime`` of Python, in microseconds since 1970."""
_YEAR_DIGITS: Final = 4
_BEYOND_PYTHON: Final = (OverflowError, ValueError)
_ISO: Final = re.compile(  # 24:00 is no time of the day, though Python 3.14 takes it for midnight
    r"(?P<date>[+-]?[0-9]{4,7}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ](?P<time>(?!24)[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?)(?P<zone>Z?))?"
)


def to_ticks(values: Values) -> Values:
    """Convert dates to days and timestamps to their unit since 1970; return other values unchanged."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def scalar_to_ticks(scalar: pa.Scalar) -> Any:
    """Return a date or timestamp as the integer of `to_ticks`, and any other scalar as its Python value.

    ``pa.scalar`` converts the integer back if it is given the type.
    """
    is_time = pa.types.is_date32(scalar.type) or pa.types.is_timestamp(scalar.type)
    return scalar.value if is_time else scalar.as_py()


def to_python(scalar: pa.Scalar) -> Any:
    """Return the Python value. Dates and timestamps beyond Python's range become ISO text, also in nested values."""
    try:
        return scalar.as_py()
    except _BEYOND_PYTHON:
        return _convert_beyond_python(scalar)


def to_python_list(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column, see `to_python`."""
    try:
        values: list[Any] = column.to_pylist()
    except _BEYOND_PYTHON:
        return [to_python(scalar) for scalar in column]
    return values


def to_python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as dicts of values, see `to_python`."""
    try:
        dicts: list[dict[str, Any]] = rows.to_pylist()
    except _BEYOND_PYTHON:
        columns = [to_python_list(column) for column in rows.columns]
        return [dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
    return dicts


def is_beyond_python(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether the column has a date or timestamp beyond Python's range."""
    return first_beyond_python(column) is not None


def first_beyond_python(column: pa.Array | pa.ChunkedArray) -> pa.Scalar | None:
    """Return the first date or timestamp of a column beyond Python's range, or None."""
    if not (pa.types.is_date32(column.type) or pa.types.is_timestamp(column.type)):
        return None
    least, greatest = pc.min_max(to_ticks(column)).values()
    first, last = _limits(column.type)
    if not least.is_valid or first <= least.as_py() <= greatest.as_py() <= last:
        return None
    return column.filter(_is_beyond(column))[0]


def _is_beyond(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    first, last = _limits(column.type)
    ticks = to_ticks(column)
    return pc.fill_null(pc.or_(pc.less(ticks, first), pc.greater(ticks, last)), False)


def _limits(kind: pa.DataType) -> tuple[int, int]:
    return DAYS if pa.types.is_date32(kind) else MICROS


def python_date(days: int) -> dt.date | str:
    """Return the date of a number of days since 1970, as ISO text beyond Python's range."""
    return dt.date.fromordinal(_EPOCH_DAY + days) if DAYS[0] <= days <= DAYS[1] else iso_date(days)


def python_timestamp(micros: int, *, zoned: bool) -> dt.datetime | str:
    """Return the timestamp of a number of microseconds since 1970, in UTC if zoned; ISO text beyond Python's range."""
    if MICROS[0] <= micros <= MICROS[1]:
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC if zoned else None) + dt.timedelta(microseconds=micros)
    return iso_timestamp(micros) + ("Z" if zoned else "")


def iso_date(days: int) -> str:
    """Return the date as ISO text, signed outside the years 0 to 9999."""
    return add_year_sign(str(np.datetime64(days, "D")))


def add_year_sign(text: str) -> str:
    """Add the sign of ISO 8601 and Java to a year outside 0000 to 9999 in NumPy's text of a date or timestamp."""
    if text[_YEAR_DIGITS] == "-" and text[0] != "-":
        return text
    year, _, remainder = text.removeprefix("-").partition("-")
    return f"{'-' if text[0] == '-' else '+'}{year:0>4}-{remainder}"


def iso_timestamp(micros: int) -> str:
    """Return the UTC timestamp as ISO text without a zone. Microseconds are omitted if they are 0."""
    days, micros_of_day = divmod(micros, _DAY_MICROS)
    time = (_EPOCH + dt.timedelta(microseconds=micros_of_day)).time()
    return f"{iso_date(days)}T{time.isoformat()}"


def from_text(text: str, data_type: pa.DataType) -> pa.Scalar:
    """Parse a value of a plain type like Arrow. Dates and timestamps may also be ISO text of any year.

    Raises ``pa.ArrowInvalid`` or ``pa.ArrowNotImplementedError``.
    """
    try:
        return pa.scalar(text, pa.string()).cast(data_type)
    except pa.ArrowInvalid:
        ticks = _parsed_ticks(text, data_type)
        if ticks is None:
            raise
        return pa.scalar(ticks, data_type)


def _parsed_ticks(text: str, data_type: pa.DataType) -> int | None:
    """Parse ISO text of any year. Returns None for other text, or a value outside the range of the type."""
    match = _ISO.fullmatch(text.strip())
    is_date = pa.types.is_date32(data_type)
    if match is None or not (is_date or pa.types.is_timestamp(data_type)):
        return None
    has_zone = not is_date and data_type.tz is not None
    if is_date is (match["time"] is not None) or bool(match["zone"]) is not has_zone:
        return None
    try:
        ticks = int(np.datetime64(match["date"], "D").astype(np.int64))
        if not is_date:
            time = dt.time.fromisoformat(match["time"])
            since_midnight = dt.datetime.combine(_EPOCH, time) - _EPOCH
            ticks = ticks * _DAY_MICROS + since_midnight // dt.timedelta(microseconds=1)
    except ValueError:
        return None
    limit = 1 << (31 if is_date else 63)
    return ticks if -limit <= ticks < limit else None


def _convert_beyond_python(scalar: pa.Scalar) -> Any:
    """Convert a value that Arrow does not convert, including nested values."""
    kind, types = scalar.type, pa.types
    if types.is_date32(kind):
        return iso_date(scalar_to_ticks(scalar))
    if types.is_timestamp(kind):
        micros = scalar_to_ticks(scalar.cast(pa.timestamp("us", kind.tz), safe=False))
        return python_timestamp(micros, zoned=kind.tz is not None)
    if types.is_struct(kind):
        return {field.name: to_python(scalar[place]) for place, field in enumerate(kind)}
    if types.is_map(kind):
        return [(to_python(pair[0]), to_python(pair[1])) for pair in scalar.values]
    if types.is_list(kind) or types.is_large_list(kind):
        return [to_python(value) for value in scalar.values]
    return str(scalar.cast(pa.string()))
