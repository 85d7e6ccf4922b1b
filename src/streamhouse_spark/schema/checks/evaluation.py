"""Conditions of CHECK constraints over columns of Arrow: true, false or null for each row. Pure.

Values compare as in Spark: NaN equals itself and is above every number, -0.0 equals 0.0, texts compare by their bytes.
Integers and decimals are calculated and compared exactly. Beside a float they are floats.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.schema.checks.parser import Kind, Part

_FUNCTIONS: Final[Mapping[str, str]] = {
    "=": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "+": "add",
    "-": "subtract",
    "*": "multiply",
}
_NATIVE_DIGITS: Final = 18
"""Whole numbers of so many digits are calculated as integers of 64 bits."""
_MIRRORED: Final = {">": "<", ">=": "<="}


def evaluated(part: Part, rows: pa.Table | pa.RecordBatch) -> Any:
    """Return the value of a part for each row; of a condition true, false or null."""
    match part.operator:
        case "column":
            return rows.column(part.value)
        case "constant":
            return part.value if isinstance(part.value, pa.Scalar) else _constant(part)
        case "and":
            return reduce(pc.and_kleene, (evaluated(one, rows) for one in part.operands))
        case "or":
            return reduce(pc.or_kleene, (evaluated(one, rows) for one in part.operands))
        case "not":
            return pc.invert(evaluated(part.operands[0], rows))
        case "is null":
            return pc.is_null(evaluated(part.operands[0], rows))
        case "like":
            return pc.match_like(evaluated(part.operands[0], rows), part.value)
        case "length":
            return pc.utf8_length(evaluated(part.operands[0], rows))
    left, right = (evaluated(one, rows) for one in part.operands)
    if part.operator in "+-*":
        return _calculated(part, left, right)
    return _compared(part, left, right)


def _constant(part: Part) -> pa.Scalar:
    if part.kind.family == "exact":
        return pa.scalar(part.value, _exact_type(part.kind))
    types = {"float": pa.float64(), "string": pa.string(), "boolean": pa.bool_()}
    return pa.scalar(part.value, types[part.kind.family])


def _exact_type(kind: Kind) -> pa.DataType:
    digits = max(1, kind.whole + kind.scale)
    return pa.decimal128(digits, kind.scale) if digits <= 38 else pa.decimal256(digits, kind.scale)


def _calculated(part: Part, left: Any, right: Any) -> Any:
    function = _FUNCTIONS[part.operator]
    if part.kind.family == "float":
        return pc.call_function(function, [_as_float(left), _as_float(right)])
    if part.kind.scale == 0 and part.kind.whole <= _NATIVE_DIGITS:
        return pc.call_function(function, [_as_int64(left), _as_int64(right)])
    return pc.call_function(function, [_wide(left, part.operands[0].kind), _wide(right, part.operands[1].kind)])


def _wide(value: Any, kind: Kind) -> Any:
    """Return exact numbers as decimals of their digits, whose sums and products Arrow makes as wide as the parser."""
    return pc.cast(_as_exact(value, kind), pa.decimal256(kind.whole + kind.scale, kind.scale))


def _compared(part: Part, left: Any, right: Any) -> Any:
    first, second = part.operands
    families = {first.kind.family, second.kind.family}
    if "float" in families:
        return _compared_floats(part.operator, _as_float(left), _as_float(right))
    if families == {"exact"}:
        left, right = _alike(first, second, left, right)
    return pc.call_function(_FUNCTIONS[part.operator], [left, right])


def _alike(first: Part, second: Part, left: Any, right: Any) -> tuple[Any, Any]:
    """Return exact numbers in one type: that of the column itself beside a constant that it can hold."""
    for one, other, is_left in ((left, second, False), (right, first, True)):
        if other.operator == "constant" and (scalar := _held(other.value, one.type)) is not None:
            return (scalar, one) if is_left else (one, scalar)
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        return _as_int64(left), _as_int64(right)
    kind = Kind(
        "exact",
        max(first.kind.whole, second.kind.whole, 1),
        max(first.kind.scale, second.kind.scale),
    )
    return _as_exact(left, kind), _as_exact(right, kind)


def _held(value: decimal.Decimal, kind: pa.DataType) -> pa.Scalar | None:
    try:
        if pa.types.is_integer(kind):
            return pa.scalar(int(value), kind) if int(value) == value else None
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return None


def _as_int64(value: Any) -> Any:
    return value if value.type == pa.int64() else pc.cast(value, pa.int64())


def _as_exact(value: Any, kind: Kind) -> Any:
    wanted = _exact_type(kind)
    if value.type == wanted:
        return value
    if pa.types.is_integer(value.type):
        return pc.cast(pc.cast(value, pa.decimal128(19, 0)), wanted)
    return pc.cast(value, wanted)


def _as_float(value: Any) -> Any:
    return value if value.type == pa.float64() else pc.cast(value, pa.float64(), safe=False)


def _compared_floats(operator: str, left: Any, right: Any) -> Any:
    if operator in _MIRRORED:
        return _compared_floats(_MIRRORED[operator], right, left)
    found = pc.call_function(_FUNCTIONS[operator], [left, right])
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    match operator:
        case "=":
            return pc.or_(found, pc.and_(left_nan, right_nan))
        case "!=":
            return pc.and_not(found, pc.and_(left_nan, right_nan))
        case "<":
            return pc.or_(found, pc.and_not(right_nan, left_nan))
    return pc.or_(found, right_nan)
