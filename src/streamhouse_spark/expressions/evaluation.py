"""Evaluation of expressions and predicates over Arrow columns. Pure.

Values compare as in Spark: NaN equals itself and is greater than every number, -0.0 equals 0.0, and texts compare by
bytes. Integers and decimals compare exactly; next to a float they become floats. A row mask is a pre-filter before an
engine applies the filter itself: it may keep too many rows, never too few.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import drop_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.expressions.functions import to_decimal256, to_float, value_of
from streamhouse_spark.expressions.predicates import FALSE, TRUE, And, Compare, Constant, In, IsNull, Node, Not, Or
from streamhouse_spark.expressions.sql import Part

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


Bools = npt.NDArray[np.bool_]

_KEPT_SHARE_MAX: Final = 0.75
"""If more than this share of a batch may match, all rows are kept, because a copy costs more than filtering the
rest.
"""
_OPERATORS: Final[Mapping[str, str]] = {
    "=": "equal",
    "<=>": "equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_TEXT_TESTS: Final[Mapping[str, str]] = {
    "STARTS_WITH": "starts_with",
    "ENDS_WITH": "ends_with",
    "CONTAINS": "match_substring",
}
_UNCOMPARED = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""Arrow errors for a constant that the column's type does not hold, or a type that it does not compare."""


@dataclass(frozen=True, slots=True)
class RowMask:
    """Finds rows of batches that surely do not match a filter. Columns missing in a batch may have any value."""

    node: Node

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the filter."""
        return self.node.columns()

    def of(self, batch: pa.RecordBatch) -> Bools | None:
        """Return the rows for which the filter may be true; None for all rows."""
        return _possible_mask(self.node, batch, TRUE)

    def matches(self, batch: pa.RecordBatch) -> Bools | None:
        """Return the rows for which the filter may be true; None for all, or if a copy would not pay off."""
        possible = self.of(batch)
        if possible is None or np.count_nonzero(possible) > _KEPT_SHARE_MAX * batch.num_rows:
            return None
        return possible

    def filter_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch without rows for which the filter cannot be true, if that justifies a copy."""
        possible = self.matches(batch)
        return batch if possible is None else drop_rows(batch, ~possible)


def mask_of(node: Node) -> RowMask | None:
    """Return the mask of a filter; None if it references no column."""
    return RowMask(node) if node.columns() else None


def _possible_mask(node: Node, batch: pa.RecordBatch, outcome: int) -> Bools | None:
    """Return the rows for which the node may have the outcome, `TRUE` or `FALSE`; None for all rows."""
    match node:
        case Constant(possible):
            return None if possible & outcome else np.zeros(batch.num_rows, np.bool_)
        case Not(child):
            return _possible_mask(child, batch, TRUE if outcome == FALSE else FALSE)
        case And(children):
            parts = [_possible_mask(child, batch, outcome) for child in children]
            return _all_masks(parts) if outcome == TRUE else _any_mask(parts)
        case Or(children):
            parts = [_possible_mask(child, batch, outcome) for child in children]
            return _any_mask(parts) if outcome == TRUE else _all_masks(parts)
        case IsNull(column) | Compare(_, column) | In(column):
            index = batch.schema.get_field_index(column)
            return None if index < 0 else _column_mask(node, batch.column(index), outcome)
    return None


def _all_masks(parts: list[Bools | None]) -> Bools | None:
    masks = [part for part in parts if part is not None]
    return reduce(np.logical_and, masks) if masks else None


def _any_mask(parts: list[Bools | None]) -> Bools | None:
    masks = [part for part in parts if part is not None]
    return reduce(np.logical_or, masks) if masks and len(masks) == len(parts) else None


def _column_mask(node: IsNull | Compare | In, column: pa.Array, outcome: int) -> Bools | None:
    try:
        answers = _evaluate(node, column)
    except _UNCOMPARED:
        return None
    if answers is None:
        return None
    mask = answers if outcome == TRUE else pc.invert(answers)
    result: Bools = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
    return result


def _evaluate(node: IsNull | Compare | In, column: pa.Array) -> pa.BooleanArray | None:
    """Return the node's result for each row, which may be null; None if unknown."""
    match node:
        case IsNull():
            return pc.is_null(column)
        case Compare(operator, _, value) if operator in _TEXT_TESTS:
            return pc.call_function(_TEXT_TESTS[operator], [column], options=pc.MatchSubstringOptions(value))
        case Compare(operator, _, value):
            return _compare_values(operator, column, value)
        case In(_, _, has_null):
            values = None if has_null else _to_values(node, column.type)
            return None if values is None else _is_in_values(column, values)


def _compare_values(operator: str, column: pa.Array, value: Any) -> pa.BooleanArray | None:
    constant = _to_value(value, column.type)
    if constant is None:
        return None
    matches = pc.call_function(_OPERATORS[operator], [column, constant])
    if pa.types.is_floating(column.type) and operator in (">", ">="):  # in Spark, NaN is greater than all numbers
        matches = pc.or_(matches, pc.is_nan(column))
    return pc.fill_null(matches, False) if operator == "<=>" else matches


def _is_in_values(column: pa.Array, values: pa.Array) -> pa.BooleanArray:
    """Return whether each value is in ``values``, null for null. Floats compare as numbers, so 0.0 equals -0.0."""
    if pa.types.is_floating(column.type):
        column, values = (pc.add(floats, pa.scalar(0.0, column.type)) for floats in (column, values))
    is_member = pc.is_in(column, value_set=values)
    return pc.if_else(column.is_valid(), is_member, None) if column.null_count else is_member


@lru_cache(maxsize=16)
def _to_values(node: In, column: pa.DataType) -> pa.Array | None:
    """Return the values in the column's type; None without values, or if one has no exact form there."""
    scalars = [_to_value(value, column) for value in node.values]
    return pa.array(scalars, column) if scalars and all(scalar is not None for scalar in scalars) else None


def _to_value(value: Any, column: pa.DataType) -> pa.Scalar | None:
    """Return the value in the column's type; None if it would be rounded, or compares differently."""
    types = pa.types
    if types.is_floating(column):
        scalar = pa.scalar(value, column)
        return scalar if scalar.as_py() == value else None
    if types.is_integer(column):
        return pa.scalar(int(value), column) if int(value) == value else None
    return pa.scalar(value, column)
