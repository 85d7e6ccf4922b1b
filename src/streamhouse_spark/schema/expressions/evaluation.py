"""Evaluation of SQL expressions over Arrow columns. Pure.

Values compare as in Spark: NaN equals itself and is greater than every number, -0.0 equals 0.0, and texts compare by
bytes. Integers and decimals compare exactly; next to a float they become floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.schema.expressions.functions import to_decimal256, to_float, value_of
from streamhouse_spark.schema.expressions.parser import Part

_COMPARISONS: Final[Mapping[str, str]] = {
    "=": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_MIRRORED: Final = {">": "<", ">=": "<="}


def evaluate(part: Part, rows: pa.Table | pa.RecordBatch) -> Any:
    """Return the value of an expression for each row; for a condition true, false or null.

    Raises ``pa.ArrowInvalid`` if a number overflows its type.
    """
    match part.operator:
        case "column":
            return rows.column(part.value)
        case "constant":
            return part.value if isinstance(part.value, pa.Scalar) else pa.scalar(part.value, part.type)
        case "and" | "or":
            return _evaluate_chain(part, rows)
    operands = [evaluate(operand, rows) for operand in part.operands]
    match part.operator:
        case "not":
            return pc.invert(operands[0])
        case "is null":
            return pc.is_null(operands[0])
        case "like":
            return pc.match_like(operands[0], part.value)
    if part.operator in _COMPARISONS:
        return _compare(part, *operands)
    return value_of(part.operator, part.type, operands, part.value)


def _evaluate_chain(part: Part, rows: pa.Table | pa.RecordBatch) -> Any:
    """Evaluate AND or OR. As in Spark, an operand may fail for rows that an earlier operand has decided."""
    connect = pc.and_kleene if part.operator == "and" else pc.or_kleene
    answer = evaluate(part.operands[0], rows)
    for operand in part.operands[1:]:
        try:
            values = evaluate(operand, rows)
        except pa.ArrowInvalid:
            if isinstance(answer, pa.Scalar):
                raise
            is_open = pc.fill_null(pc.equal(answer, part.operator == "and"), True)
            undecided = pc.indices_nonzero(is_open)
            places = pc.index_in(pa.array(range(rows.num_rows), pa.uint64()), value_set=undecided)
            values = pc.take(evaluate(operand, rows.take(undecided)), places)
        answer = connect(answer, values)
    return answer


def _compare(part: Part, left: Any, right: Any) -> Any:
    first, second = part.operands
    if pa.types.is_floating(first.type) or pa.types.is_floating(second.type):
        return _compare_floats(part.operator, to_float(left, pa.float64()), to_float(right, pa.float64()))
    if first.type != second.type:
        left, right = _align_decimals(first, second, left, right)
    return pc.call_function(_COMPARISONS[part.operator], [left, right])


def _align_decimals(first: Part, second: Part, left: Any, right: Any) -> tuple[Any, Any]:
    """Return exact numbers in one type: the column's type if it can hold the constant next to it."""
    for constant, part, values, is_left in ((first, second, right, True), (second, first, left, False)):
        if constant.operator == "constant" and (scalar := _scalar_of(constant.value, part.type)) is not None:
            return (scalar, values) if is_left else (values, scalar)
    if pa.types.is_integer(first.type) and pa.types.is_integer(second.type):
        return pc.cast(left, pa.int64()), pc.cast(right, pa.int64())
    left, right = to_decimal256(left), to_decimal256(right)
    integer_digits = max(side.type.precision - side.type.scale for side in (left, right))
    scale = max(left.type.scale, right.type.scale)
    kind = pa.decimal256(integer_digits + scale, scale)
    return pc.cast(left, kind), pc.cast(right, kind)


def _scalar_of(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    try:
        if pa.types.is_integer(kind) and value is not None:
            return pa.scalar(int(value), kind) if int(value) == value else None
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return None


def _compare_floats(operator: str, left: Any, right: Any) -> Any:
    if operator in _MIRRORED:
        return _compare_floats(_MIRRORED[operator], right, left)
    answer = pc.call_function(_COMPARISONS[operator], [left, right])
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    match operator:
        case "=":
            return pc.or_(answer, pc.and_(left_nan, right_nan))
        case "!=":
            return pc.and_not(answer, pc.and_(left_nan, right_nan))
        case "<":
            return pc.or_(answer, pc.and_not(right_nan, left_nan))
    return pc.or_(answer, right_nan)
