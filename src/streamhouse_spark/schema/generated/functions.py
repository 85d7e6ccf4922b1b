"""Functions of generated columns: their types, and their values over columns of Arrow. Pure.

A value is the one that Spark has with ANSI mode on: null where an operand is null, an error where a whole number
overflows. A TIMESTAMP is a moment, and its year, day and hour are those of UTC, on every machine and in every session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.schema.generated import calendar

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_TIMESTAMP_NTZ: Final = pa.timestamp("us")
_DATES: Final = (pa.date32(), _TIMESTAMP, _TIMESTAMP_NTZ)
_UNITS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
    **dict.fromkeys(("month", "mon", "mm"), "month"),
    "week": "week",
    **dict.fromkeys(("day", "dd"), "day"),
    "hour": "hour",
    "minute": "minute",
    "second": "second",
    "millisecond": "millisecond",
    "microsecond": "microsecond",
}
_DATE_UNITS: Final = ("year", "quarter", "month", "week")
_TIMES: Final[Mapping[str, Callable[[Any], Any]]] = {"hour": pc.hour, "minute": pc.minute, "second": pc.second}
_ARITHMETIC: Final = ("add", "subtract", "multiply", "negative")
FUNCTIONS: Final = frozenset(
    [*calendar.FIELDS, *_TIMES, "date", "to_date", "date_trunc", "trunc", "concat", "upper", "lower", "length",
     "substring", "substr"]
)  # fmt: skip
"""The names that an expression may call, in small letters."""

Chosen = tuple[str, pa.DataType, Sequence[int], Any]
"""The function, the type of its value, the places of the operands that it is of, and what else it is told."""


class UnsuitableError(Exception):
    """There is no such function of operands of these types; the text says what there is."""


def function_of(name: str, types: Sequence[pa.DataType], constants: Sequence[Any]) -> Chosen:
    """Return the function of this name for operands of these types, of which some are constants.

    Raises `UnsuitableError`.
    """
    if name in _ARITHMETIC:
        return name, _common(types), range(len(types)), None
    if name in ("concat", "upper", "lower", "length"):
        _require(types and all(kind == pa.string() for kind in types), "texts are needed; CAST(… AS STRING) makes one")
        _require(name == "concat" or len(types) == 1, "one text is needed")
        return name, pa.int32() if name == "length" else pa.string(), range(len(types)), None
    if name in ("substring", "substr"):
        return "substring", pa.string(), [0], _span(types, constants)
    if name in ("date_trunc", "trunc"):
        return _truncation(name, types, constants)
    _require(len(types) == 1, "one value is needed")
    if name in ("date", "to_date"):
        return cast_function(types[0], pa.date32()), pa.date32(), [0], None
    allowed = _DATES if name in calendar.FIELDS else _DATES[1:]
    _require(types[0] in allowed, "a timestamp is needed" if name in _TIMES else "a date or a timestamp is needed")
    return name, pa.int32(), [0], None


def cast_function(given: pa.DataType, wanted: pa.DataType) -> str:
    """Return the function of a cast. Raises `UnsuitableError` for one that has another value on another machine."""
    if given == wanted:
        return "as same"
    if given in _DATES and wanted == pa.date32():
        return "as day"
    if given == pa.date32() and wanted in _DATES:
        return "as midnight"
    if pa.types.is_integer(given) and (pa.types.is_integer(wanted) or wanted == pa.string()):
        return "as cast"
    if pa.types.is_integer(given) and pa.types.is_floating(wanted):
        return "as nearest"
    if (given, wanted) == (pa.float32(), pa.float64()):
        return "as cast"
    raise UnsuitableError(
        "possible are whole numbers to whole numbers, floats and texts, and dates and timestamps to dates"
    )


def _common(types: Sequence[pa.DataType]) -> pa.DataType:
    if all(pa.types.is_integer(kind) for kind in types):
        return max(types, key=lambda kind: kind.bit_width)
    _require(
        all(kind in (pa.float32(), pa.float64()) for kind in types),
        "whole numbers are needed, or floats; CAST makes one of the other",
    )
    return max(types, key=lambda kind: kind.bit_width)


def _span(types: Sequence[pa.DataType], constants: Sequence[Any]) -> tuple[int, int | None]:
    """Return the characters of a substring: the first one from 0 on, and the one behind the last."""
    _require(len(types) in (2, 3) and types[0] == pa.string(), "a text, a position and a length are needed")
    told = constants[1:]
    _require(all(isinstance(n, int) and n >= 0 for n in told), "position and length have to be numbers from 0 on")
    first = max(0, told[0] - 1)
    return first, None if len(told) == 1 else first + told[1]


def _truncation(name: str, types: Sequence[pa.DataType], constants: Sequence[Any]) -> Chosen:
    _require(len(types) == 2, "a unit in quotes and a value are needed")
    place = 0 if name == "date_trunc" else 1
    unit = _UNITS.get(str(constants[place]).lower()) if types[place] == pa.string() else None
    known = _DATE_UNITS if name == "trunc" else dict.fromkeys(_UNITS.values())
    _require(unit in known, f"the unit has to be one of {', '.join(known)}, in quotes")
    kind = types[1 - place]
    if name == "trunc":
        _require(kind == pa.date32(), "a date is needed")
    else:
        _require(kind == _TIMESTAMP, "a TIMESTAMP is needed; of a date there is trunc(…)")
    return "floor", kind, [1 - place], unit


def _require(holds: Any, why: str) -> None:
    if not holds:
        raise UnsuitableError(why)


def value_of(operator: str, kind: pa.DataType, operands: Sequence[Any], told: Any) -> Any:
    """Return the values of a function. Raises ``pa.ArrowInvalid`` for a whole number that is too large for its type."""
    if operator in _ARITHMETIC:
        checked = f"{'negate' if operator == 'negative' else operator}{'_checked' if pa.types.is_integer(kind) else ''}"
        return pc.call_function(checked, [operand.cast(kind) for operand in operands])
    if operator == "concat":
        return pc.binary_join_element_wise(*operands, "")
    (values,) = operands
    match operator:
        case "upper" | "lower":
            return _cased(values, operator)
        case "length":
            return pc.utf8_length(values)
        case "substring":
            return pc.utf8_slice_codeunits(values, told[0], told[1])
        case "floor":
            return calendar.beginning_of(values, told)
        case "as day":
            return calendar.day_of(values)
        case "as midnight" | "as cast":
            return values.cast(kind)
        case "as nearest":
            return pc.cast(values, kind, safe=False)
        case "as same":
            return values
    if operator in calendar.FIELDS:
        return calendar.field_of(values, operator)
    return _TIMES[operator](_wall(values)).cast(kind)


def _wall(values: Any) -> Any:
    """Return a moment as a date and a time in UTC, which needs no list of time zones."""
    return values.cast(_TIMESTAMP_NTZ) if values.type == _TIMESTAMP else values


def _cased(values: Any, operator: str) -> Any:
    """Return texts in capitals or small letters, as many as Unicode says: one letter may become two."""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([_cased(chunk, operator) for chunk in values.chunks], pa.string())
    if pc.all(pc.string_is_ascii(values)).as_py() is not False:
        return pc.call_function(f"ascii_{operator}", [values])
    encoded = values.dictionary_encode()
    cased = [getattr(text, operator)() for text in encoded.dictionary.to_pylist()]
    return pa.array(cased, pa.string()).take(encoded.indices)
