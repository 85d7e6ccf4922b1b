"""Rows of a batch that may satisfy a predicate, as masks.

A mask is a pre-filter before an engine applies the filter itself: it may keep too many rows, never too few. Values
compare as in Spark: NaN equals itself and is greater than every number, -0.0 equals 0.0, and strings compare by bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import drop_rows
from streamhouse_spark.expressions.functions import compare, exact_scalar
from streamhouse_spark.expressions.predicates import FALSE, TRUE, And, Compare, Constant, In, IsNull, Node, Not, Or

Bools = npt.NDArray[np.bool_]
_KEPT_SHARE_MAX: Final = 0.75
"""If more than this share of a batch may match, all rows are kept. Copying the matching rows would cost more than
filtering out the others later."""
_TEXT_TESTS: Final[Mapping[str, str]] = {
    "STARTS_WITH": "starts_with",
    "ENDS_WITH": "ends_with",
    "CONTAINS": "match_substring",
}


def mask_possible_rows(node: Node, batch: pa.RecordBatch) -> Bools | None:
    """Return the rows for which the predicate may be true; None for all rows.

    Columns missing in the batch may have any value.
    """
    return _possible_mask(node, batch, TRUE)


def mask_rows_to_keep(node: Node, batch: pa.RecordBatch) -> Bools | None:
    """Return the rows for which the predicate may be true; None for all, or if a copy would not pay off."""
    possible = mask_possible_rows(node, batch)
    if possible is None or np.count_nonzero(possible) > _KEPT_SHARE_MAX * batch.num_rows:
        return None
    return possible


def drop_mismatches(node: Node, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without rows for which the predicate cannot be true, if that justifies a copy."""
    possible = mask_rows_to_keep(node, batch)
    return batch if possible is None else drop_rows(batch, ~possible)


def _possible_mask(node: Node, batch: pa.RecordBatch, outcome: int) -> Bools | None:
    """Return the rows for which the node may have the outcome, `TRUE` or `FALSE`; None for all rows."""
    match node:
        case Constant(possible):
            return None if possible & outcome else np.zeros(batch.num_rows, np.bool_)
        case Not(child):
            return _possible_mask(child, batch, TRUE if outcome == FALSE else FALSE)
        case And(children) | Or(children):
            masks = [mask for child in children if (mask := _possible_mask(child, batch, outcome)) is not None]
            if isinstance(node, And) is (outcome == TRUE):
                return reduce(np.logical_and, masks) if masks else None
            return reduce(np.logical_or, masks) if masks and len(masks) == len(children) else None
        case IsNull(column) | Compare(_, column) | In(column):
            index = batch.schema.get_field_index(column)
            return None if index < 0 else _column_mask(node, batch.column(index), outcome)
    return None


def _column_mask(node: IsNull | Compare | In, column: pa.Array, outcome: int) -> Bools | None:
    try:
        answers = _evaluate(node, column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # Arrow does not compare this type
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
        case Compare(is_false_for_nan=True):
            return None  # its value may be rounded: the filter of the read decides
        case Compare(operator, _, value) if operator in _TEXT_TESTS:
            return pc.call_function(_TEXT_TESTS[operator], [column], options=pc.MatchSubstringOptions(value))
        case Compare(operator, _, value):
            constant = exact_scalar(value, column.type)
            if constant is None:
                return None
            if operator == "<=>":
                return pc.fill_null(compare("=", column, constant), False)
            return compare(operator, column, constant)
        case In(_, _, has_null):
            values = None if has_null else _to_values(node, column.type)
            return None if values is None else _is_in_values(column, values)


def _is_in_values(column: pa.Array, values: pa.Array) -> pa.BooleanArray:
    """Return whether each value is in ``values``, null for null. Floats compare as numbers, so 0.0 equals -0.0."""
    if pa.types.is_floating(column.type):
        column, values = (pc.add(floats, pa.scalar(0.0, column.type)) for floats in (column, values))
    is_member = pc.is_in(column, value_set=values)
    return pc.if_else(column.is_valid(), is_member, None) if column.null_count else is_member


@lru_cache(maxsize=16)
def _to_values(node: In, column: pa.DataType) -> pa.Array | None:
    """Return the values in the column's type; None if it does not hold all of them exactly, or there are none."""
    scalars = [exact_scalar(value, column) for value in node.values]
    return pa.array(scalars, column) if scalars and all(scalar is not None for scalar in scalars) else None
