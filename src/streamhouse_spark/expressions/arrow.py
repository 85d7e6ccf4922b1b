"""Translation of predicate trees to Arrow expressions, and a tree node for an opaque Arrow expression."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.expressions.predicates import (
    ANYTHING,
    FALSE,
    NULL,
    And,
    Bounds,
    Compare,
    In,
    IsNull,
    Node,
    Not,
    Or,
    family_of,
)

COMPARISONS: Final[Mapping[str, Callable[[pc.Expression, Any], pc.Expression]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT_TESTS: Final[Mapping[str, Callable[[pc.Expression, str], pc.Expression]]] = {
    "STARTS_WITH": pc.starts_with,
    "ENDS_WITH": pc.ends_with,
    "CONTAINS": pc.match_substring,
}


def to_expression(node: Node, types: Mapping[str, pa.DataType]) -> pc.Expression | None:
    """Translate a tree to an expression that has Spark's value for every row; None if Arrow has no such expression.

    Floats support only equality and IN, because Arrow orders NaN and -0.0 differently.
    """
    match node:
        case And(children) | Or(children):
            parts = [to_expression(child, types) for child in children]
            if not parts or any(part is None for part in parts):
                return None
            return reduce(operator.and_ if isinstance(node, And) else operator.or_, parts)
        case Not(child):
            part = to_expression(child, types)
            return None if part is None else ~part
        case IsNull(column):
            return pc.field(column).is_null()
        case In(column, values, False) if values:  # an OR, so that null yields null
            return to_expression(Or(tuple(Compare("=", column, value) for value in values)), types)
        case Compare("<=>", column, value):
            equal = to_expression(Compare("=", column, value), types)
            return None if equal is None else pc.field(column).is_valid() & equal
        case Compare(test, column, str() as text) if test in _TEXT_TESTS:
            return _TEXT_TESTS[test](pc.field(column), text) if pa.types.is_string(types[column]) else None
        case Compare(test, column, value) if test in COMPARISONS:
            return _compare(test, pc.field(column), value, types[column])
    return None


def _compare(test: str, column: pc.Expression, value: Any, kind: pa.DataType) -> pc.Expression | None:
    is_float = pa.types.is_floating(kind)
    if is_float and test != "=":
        return None
    if is_float and math.isnan(value):
        return column.is_nan()
    try:
        scalar = pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
    return None if is_float and scalar.as_py() != value else COMPARISONS[test](column, scalar)


@dataclass(frozen=True, eq=False)
class ArrowFilter(Node):
    """A predicate that is an opaque Arrow expression, pruned by Arrow as it prunes Parquet row groups.

    Bounds become a guarantee. Arrow simplifies the expression under the guarantee, to "never true" if it can.
    """

    expression: pc.Expression
    schema: pa.Schema

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        named_bounds = {name: column_bounds for name, column_bounds in bounds.items() if name in self._column_names}
        guarantee = _make_guarantees(named_bounds, self.schema)
        return FALSE | NULL if guarantee is not None and self._is_excluded_by(guarantee) else ANYTHING

    def _is_excluded_by(self, guarantee: pc.Expression) -> bool:
        import pyarrow.dataset as ds  # imports pandas if installed

        file_format = ds.IpcFileFormat()
        fragment = file_format.make_fragment(pa.py_buffer(b""), partition_expression=guarantee)
        dataset = ds.FileSystemDataset([fragment], self.schema, file_format)
        try:
            return next(iter(dataset.get_fragments(filter=self.expression)), None) is None
        except pa.ArrowInvalid:  # a bound does not fit the type of the comparison; only pruning needs that cast
            return False

    def columns(self) -> frozenset[str]:
        return self._column_names

    @cached_property
    def _column_names(self) -> frozenset[str]:
        """Columns whose names occur in the expression's text: all referenced columns, and perhaps others.

        Float columns are omitted from an expression with NaN, because Arrow simplifies comparisons with NaN wrongly.
        """
        text = str(self.expression)
        has_nan = "nan" in text.casefold()
        named = (field for field in self.schema if field.name in text)
        return frozenset(field.name for field in named if not (has_nan and pa.types.is_floating(field.type)))


def _make_guarantees(bounds: Mapping[str, Bounds], schema: pa.Schema) -> pc.Expression | None:
    combined: pc.Expression | None = None
    for name, column_bounds in bounds.items():
        index = schema.get_field_index(name)
        part = _make_guarantee(pc.field(name), column_bounds, schema.field(index).type) if index >= 0 else None
        if part is not None:
            combined = part if combined is None else combined & part
    return combined


def _make_guarantee(field: pc.Expression, bounds: Bounds, data_type: pa.DataType) -> pc.Expression | None:
    """Return the bounds of a column as an expression; None if Arrow cannot express them, as with NaN."""
    if not bounds.may_have_value:
        return field.is_null()
    low, high = _to_scalar(bounds.low, data_type), _to_scalar(bounds.high, data_type)
    if low is None or high is None or bounds.may_be_nan:
        return None
    above, below = field >= low, field <= high
    if bounds.may_be_null:  # repeated for each bound, because Arrow does not use a nested condition
        above, below = above | field.is_null(), below | field.is_null()
    return above & below


def _to_scalar(value: Any, data_type: pa.DataType) -> pa.Scalar | None:
    """Return a bound in the column's type; None if there is no bound, or the type does not hold it."""
    if value is None or family_of(data_type) is None:
        return None
    if isinstance(value, tuple):
        is_nan, value = value
        if is_nan:
            return None
    try:
        return pa.scalar(value, data_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
