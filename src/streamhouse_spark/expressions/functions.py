"""Functions and comparisons over Arrow columns with Spark's types and results.

Results equal Spark's in ANSI mode: null if an operand is null, an error if a number overflows. The year, day, hour and
string of a TIMESTAMP are in UTC, on every machine and in every session. Calendar fields are computed here, because
Arrow's functions store years in 16 bits and return wrong dates for other years.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.python_values import to_ticks
from streamhouse_spark.schema.ddl import DECIMAL_PRECISION_MAX

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
_COMPARISONS: Final = {"=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal"}
_MIRRORED: Final = {">": "<", ">=": "<="}
_ARITHMETIC: Final = ("add", "subtract", "multiply", "negative")
_LENGTHS: Final = ("length", "char_length", "character_length")
_EXACT_DIGITS_MAX: Final = 76
"""Digits of Arrow's widest decimal type, which holds sums and products exactly."""
_TEXT_SCALE_MAX: Final = 6
"""Arrow formats decimals of at most this scale without an exponent, as Spark does."""
_INT_DIGITS: Final[Mapping[int, int]] = {8: 3, 16: 5, 32: 10, 64: 20}
"""Bits of an integer type → digits of Spark's decimal type for it."""
_DATE_DAYS: Final = (-719162, 2932896)
_TIMESTAMP_MICROS: Final = tuple(day * 86_400_000_000 for day in (_DATE_DAYS[0], _DATE_DAYS[1] + 1))
ResolvedFunction = tuple[str, pa.DataType, Sequence[int], Any]
"""Resolved function: operator, result type, positions of its operands, and further argument."""


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


def extract_field(values: Any, name: str) -> Any:
    """Return a field of each date or timestamp."""
    return _map_ticks(values, pa.int32(), lambda ticks, is_date: FIELDS[name](_days(ticks, is_date=is_date)))


def extract_date(values: Any) -> Any:
    """Return the date of each timestamp."""
    return _map_ticks(values, pa.date32(), lambda ticks, is_date: _days(ticks, is_date=is_date))


def truncate_time(values: Any, unit: str) -> Any:
    """Truncate each date or timestamp to the unit. Raises ``pa.ArrowInvalid`` for a result below the type's range."""

    def begin(ticks: Ints, is_date: bool) -> Ints:  # noqa: FBT001
        if unit not in _BEGINNINGS:
            rounded = ticks - ticks % _MICROS[unit]
        elif is_date:
            rounded = _BEGINNINGS[unit](ticks)
        else:
            rounded = _BEGINNINGS[unit](_days(ticks, is_date=False)) * _DAY_MICROS
        if (rounded > ticks).any():  # wrapped around
            raise pa.ArrowInvalid(f"the beginning of the {unit} is before the first {values.type}")
        return rounded

    return _map_ticks(values, values.type, begin)


def _days(ticks: Ints, *, is_date: bool) -> Ints:
    return ticks if is_date else ticks // _DAY_MICROS


def _map_ticks(values: Any, kind: pa.DataType, function: Callable[[Ints, bool], Ints]) -> Any:
    """Apply a function to dates or timestamps as integers. Nulls remain null."""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([_map_ticks(chunk, kind, function) for chunk in values.chunks], kind)
    is_date = pa.types.is_date32(values.type)
    ticks = pc.fill_null(to_ticks(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    mask = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    of_ticks = pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
    return pa.array(function(ticks, is_date), of_ticks, mask=mask).cast(kind)


FUNCTIONS: Final = frozenset(
    [*FIELDS, *_TIMES, *_LENGTHS, "date", "to_date", "date_trunc", "trunc", "concat", "upper", "lower",
     "substring", "substr"]
)  # fmt: skip
"""The functions that an expression may call, in lower case."""


class UnsuitableError(Exception):
    """A function does not support operands of these types. The text names the supported operands."""


def resolve_function(name: str, types: Sequence[pa.DataType], constants: Sequence[Any]) -> ResolvedFunction:
    """Resolve a function by name and operand types. ``constants`` are the values of constant operands, else None.

    Raises `UnsuitableError`.
    """
    if name in _ARITHMETIC:
        return name, _number_type(name, types, constants), range(len(types)), None
    if name in _LENGTHS:
        name = "length"
    if name in ("concat", "upper", "lower", "length"):
        _require(
            types and all(kind == pa.string() for kind in types),
            "operands must be strings; convert other values with CAST(… AS STRING)",
        )
        _require(name == "concat" or len(types) == 1, "expected one string")
        return name, pa.int32() if name == "length" else pa.string(), range(len(types)), None
    if name in ("substring", "substr"):
        return "substring", pa.string(), [0], _span(types, constants)
    if name in ("date_trunc", "trunc"):
        return _truncation(name, types, constants)
    _require(len(types) == 1, "expected one value")
    if name in ("date", "to_date"):
        return resolve_cast(types[0], pa.date32()), pa.date32(), [0], None
    allowed = _DATES if name in FIELDS else _DATES[1:]
    _require(types[0] in allowed, "expected a timestamp" if name in _TIMES else "expected a date or a timestamp")
    return name, pa.int32(), [0], None


def resolve_cast(source: pa.DataType, target: pa.DataType) -> str:
    """Return the operator that casts ``source`` to ``target``.

    Raises `UnsuitableError` for other casts, whose results may depend on the machine or session.
    """
    if source == target:
        return "as same"
    if source in _DATES and target == pa.date32():
        return "as day"
    if source == pa.date32() and target in _DATES:
        return "as midnight"
    if pa.types.is_integer(source) and (pa.types.is_integer(target) or target == pa.string()):
        return "as cast"
    if _is_exact(source) and pa.types.is_decimal(target):
        return "as rounded"
    if _is_exact(source) and pa.types.is_floating(target):
        return "as nearest"
    if (source, target) in ((pa.float32(), pa.float64()), (pa.bool_(), pa.string())):
        return "as cast"
    if target == pa.string() and pa.types.is_decimal(source) and source.scale <= _TEXT_SCALE_MAX:
        return "as cast"
    if target == pa.string() and source in _DATES:
        return "as text"
    raise UnsuitableError(
        "supported are casts of whole numbers and decimals to numbers and strings, and of dates and timestamps to "
        "dates and strings"
    )


def decimal_type(kind: pa.DataType, constant: Any = None) -> pa.DataType:
    """Return Spark's decimal type for an integer or decimal type. A constant integer has the digits of its value."""
    if pa.types.is_decimal(kind):
        return kind
    return pa.decimal128(_INT_DIGITS[kind.bit_width] if constant is None else len(str(abs(constant))), 0)


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _number_type(name: str, types: Sequence[pa.DataType], constants: Sequence[Any]) -> pa.DataType:
    """Return the type of a sum, a product or a negation."""
    _require(
        all(_is_exact(kind) or pa.types.is_floating(kind) for kind in types),
        "operands must be numbers; convert other values with CAST",
    )
    if len({*types}) == 1 and not (pa.types.is_decimal(types[0]) and len(types) == 2):
        return types[0]
    if any(pa.types.is_floating(kind) for kind in types):
        return pa.float64()
    if all(pa.types.is_integer(kind) for kind in types):
        return max(types, key=lambda kind: kind.bit_width)
    return _decimal_result(name, *(decimal_type(kind, value) for kind, value in zip(types, constants, strict=True)))


def _decimal_result(name: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return Spark's type of a sum or product of decimals. Beyond 38 digits, Spark reduces the scale."""
    if name == "multiply":
        precision, scale = left.precision + right.precision + 1, left.scale + right.scale
    else:
        scale = max(left.scale, right.scale)
        precision = max(left.precision - left.scale, right.precision - right.scale) + scale + 1
    _require(precision <= _EXACT_DIGITS_MAX, f"the result may have more than {_EXACT_DIGITS_MAX} digits")
    if precision > DECIMAL_PRECISION_MAX:
        scale = max(DECIMAL_PRECISION_MAX - (precision - scale), min(scale, 6))
    return pa.decimal128(min(precision, DECIMAL_PRECISION_MAX), scale)


def _span(types: Sequence[pa.DataType], constants: Sequence[Any]) -> tuple[int, int | None]:
    """Return the half-open range of a substring's characters, counted from 0, or from the end if negative."""
    _require(len(types) in (2, 3) and types[0] == pa.string(), "expected a string, a position and a length")
    position, *length = constants[1:]
    _require(all(isinstance(n, int) for n in (position, *length)), "position and length must be whole numbers")
    first = position - 1 if position > 0 else position
    if not length:
        return first, None
    end = first + max(0, length[0])
    return first, None if first < 0 <= end else end


def _truncation(name: str, types: Sequence[pa.DataType], constants: Sequence[Any]) -> ResolvedFunction:
    _require(len(types) == 2, "expected a unit in quotes and a value")
    place = 0 if name == "date_trunc" else 1
    unit = _UNITS.get(str(constants[place]).lower()) if types[place] == pa.string() else None
    units = _DATE_UNITS if name == "trunc" else dict.fromkeys(_UNITS.values())
    _require(unit in units, f"the unit must be one of {', '.join(units)}, in quotes")
    kind = types[1 - place]
    if name == "trunc":
        _require(kind == pa.date32(), "expected a date")
    else:
        _require(kind == _TIMESTAMP, "expected a TIMESTAMP; truncate dates with trunc(…)")
    return "floor", kind, [1 - place], unit


def _require(holds: Any, why: str) -> None:
    if not holds:
        raise UnsuitableError(why)


def evaluate_function(operator: str, kind: pa.DataType, operands: Sequence[Any], argument: Any) -> Any:
    """Evaluate a function. Raises ``pa.ArrowInvalid`` if a number overflows its type."""
    if operator in _ARITHMETIC:
        return _calculate(operator, kind, operands)
    if operator == "concat":
        return pc.binary_join_element_wise(*operands, "")
    (values,) = operands
    match operator:
        case "upper" | "lower":
            return _change_case(values, operator)
        case "length":
            return pc.utf8_length(values)
        case "substring":
            return pc.utf8_slice_codeunits(values, argument[0], argument[1])
        case "floor":
            return truncate_time(values, argument)
    if operator in _CASTS:
        return _CASTS[operator](values, kind)
    if operator in FIELDS:
        return extract_field(values, operator)
    return _TIMES[operator](_to_local_time(values)).cast(kind)


def to_float(values: Any, kind: pa.DataType) -> Any:
    """Convert numbers to the nearest floats. Decimals are converted as strings, because Arrow's cast is inexact."""
    exact = pc.cast(values, pa.string()) if pa.types.is_decimal(values.type) else values
    return exact if exact.type == kind else pc.cast(exact, kind, safe=False)


def to_decimal256(values: Any) -> Any:
    """Convert integers and decimals to wide decimals, whose sums and products have exact Arrow types."""
    if pa.types.is_integer(values.type):
        values = pc.cast(values, pa.decimal128(19, 0))
    return pc.cast(values, pa.decimal256(values.type.precision, values.type.scale))


def _calculate(operator: str, kind: pa.DataType, operands: Sequence[Any]) -> Any:
    function = "negate" if operator == "negative" else operator
    if pa.types.is_floating(kind):
        return pc.call_function(function, [to_float(values, kind) for values in operands])
    if pa.types.is_integer(kind):
        return pc.call_function(f"{function}_checked", [values.cast(kind) for values in operands])
    return _round(pc.call_function(function, [to_decimal256(values) for values in operands]), kind)


def _round(values: Any, kind: pa.DataType) -> Any:
    """Round decimals to the scale of a type. Raises ``pa.ArrowInvalid`` for too many digits."""
    if values.type.scale > kind.scale:
        values = pc.round(values, ndigits=kind.scale, round_mode="half_towards_infinity")
    return pc.cast(values, kind)


def _time_text(values: Any) -> Any:
    """Format dates and timestamps as Spark does. Raises ``pa.ArrowInvalid`` for years outside 1 to 9999."""
    is_date = values.type == pa.date32()
    numbers = pc.cast(values, pa.int32() if is_date else pa.int64())
    first, last = _DATE_DAYS if is_date else (_TIMESTAMP_MICROS[0], _TIMESTAMP_MICROS[1] - 1)
    if pc.any(pc.or_(pc.less(numbers, first), pc.greater(numbers, last))).as_py():
        raise pa.ArrowInvalid("the year of a date is outside 1 to 9999")
    texts = pc.cast(_to_local_time(values), pa.string())
    return texts if is_date else pc.replace_substring_regex(texts, r"\.?0+$", "")


def _to_local_time(values: Any) -> Any:
    """Return a timestamp without its zone, in UTC. Needs no time zone database."""
    return values.cast(_TIMESTAMP_NTZ) if values.type == _TIMESTAMP else values


def _change_case(values: Any, operator: str) -> Any:
    """Change the case of strings by the full Unicode rules, by which one letter may become two."""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([_change_case(chunk, operator) for chunk in values.chunks], pa.string())
    if pc.all(pc.string_is_ascii(values)).as_py() is not False:
        return pc.call_function(f"ascii_{operator}", [values])
    encoded = values.dictionary_encode()
    cased = [getattr(text, operator)() for text in encoded.dictionary.to_pylist()]
    return pa.array(cased, pa.string()).take(encoded.indices)


_CASTS: Final[Mapping[str, Callable[[Any, pa.DataType], Any]]] = {
    "as same": lambda values, _: values,
    "as cast": lambda values, kind: values.cast(kind),
    "as midnight": lambda values, kind: values.cast(kind),
    "as day": lambda values, _: extract_date(values),
    "as nearest": to_float,
    "as rounded": lambda values, kind: _round(to_decimal256(values), kind),
    "as text": lambda values, _: _time_text(values),
}


def compare(operator: str, left: Any, right: Any) -> Any:
    """Compare values of one type by ``=``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``, null for null.

    NaN equals itself and is greater than every number, as in Spark.
    """
    if operator in _MIRRORED:
        return compare(_MIRRORED[operator], right, left)
    answer = pc.call_function(_COMPARISONS[operator], [left, right])
    if not pa.types.is_floating(left.type):
        return answer
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    match operator:
        case "=":
            return pc.or_(answer, pc.and_(left_nan, right_nan))
        case "!=":
            return pc.and_not(answer, pc.and_(left_nan, right_nan))
        case "<":
            return pc.or_(answer, pc.and_not(right_nan, left_nan))
    return pc.or_(answer, right_nan)


def exact_scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """Return a number, or another value of the type; None if the type does not hold exactly this value."""
    try:
        if pa.types.is_integer(kind) and value is not None:
            return pa.scalar(int(value), kind) if int(value) == value else None
        scalar = pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return None if pa.types.is_floating(kind) and scalar.as_py() != value else scalar
