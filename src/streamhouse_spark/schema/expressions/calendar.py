"""Calendar fields and truncation of dates and timestamps, over their whole range. Pure.

Arrow's own functions store years in 16 bits and return wrong dates for other years.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.python_values import to_ticks

Ints = npt.NDArray[np.int64]

_DAY_MICROS: Final = 86_400_000_000
_MICROS: Final[Mapping[str, int]] = {
    "day": _DAY_MICROS,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}


def _months(days: Ints) -> Ints:
    """Return the months since 1970."""
    return days.view("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def _first_day(months: Ints) -> Ints:
    return months.view("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _monday(days: Ints) -> Ints:
    return days - (days + 3) % 7


def _day_of_year(days: Ints) -> Ints:
    return days - _first_day(_months(days) // 12 * 12) + 1


FIELDS: Final[Mapping[str, Callable[[Ints], Ints]]] = {
    "year": lambda days: _months(days) // 12 + 1970,
    "quarter": lambda days: _months(days) % 12 // 3 + 1,
    "month": lambda days: _months(days) % 12 + 1,
    "day": lambda days: days - _first_day(_months(days)) + 1,
    "dayofmonth": lambda days: days - _first_day(_months(days)) + 1,
    "dayofyear": _day_of_year,
    "dayofweek": lambda days: (days + 4) % 7 + 1,
    "weekofyear": lambda days: (_day_of_year(_monday(days) + 3) - 1) // 7 + 1,
}
"""Date fields as functions of days since 1970. Weeks are those of ISO 8601; Sunday is the first day of a week."""
_BEGINNINGS: Final[Mapping[str, Callable[[Ints], Ints]]] = {
    "year": lambda days: _first_day(_months(days) // 12 * 12),
    "quarter": lambda days: _first_day(_months(days) // 3 * 3),
    "month": lambda days: _first_day(_months(days)),
    "week": _monday,
}


def field_of(values: Any, name: str) -> Any:
    """Return a field of each date or timestamp."""
    return _each(values, pa.int32(), lambda ticks, is_date: FIELDS[name](_days(ticks, is_date=is_date)))


def day_of(values: Any) -> Any:
    """Return the date of each timestamp."""
    return _each(values, pa.date32(), lambda ticks, is_date: _days(ticks, is_date=is_date))


def beginning_of(values: Any, unit: str) -> Any:
    """Truncate each date or timestamp to the unit.

    Raises ``pa.ArrowInvalid`` if the result is below the type's range.
    """

    def begin(ticks: Ints, is_date: bool) -> Ints:  # noqa: FBT001
        if unit not in _BEGINNINGS:
            rounded = ticks - ticks % _MICROS[unit]
        elif is_date:
            rounded = _BEGINNINGS[unit](ticks)
        else:
            rounded = _BEGINNINGS[unit](_days(ticks, is_date=False)) * _DAY_MICROS
        if (rounded > ticks).any():  # wrapped around
            raise pa.ArrowInvalid(f"the beginning of the {unit} is before the least {values.type}")
        return rounded

    return _each(values, values.type, begin)


def _days(ticks: Ints, *, is_date: bool) -> Ints:
    return ticks if is_date else ticks // _DAY_MICROS


def _each(values: Any, kind: pa.DataType, function: Callable[[Ints, bool], Ints]) -> Any:
    """Apply a function to the integers of dates or timestamps, null for null."""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([_each(chunk, kind, function) for chunk in values.chunks], kind)
    is_date = pa.types.is_date32(values.type)
    ticks = pc.fill_null(to_ticks(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    mask = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    of_ticks = pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
    return pa.array(function(ticks, is_date), of_ticks, mask=mask).cast(kind)
