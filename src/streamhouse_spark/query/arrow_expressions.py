"""A filter that the user gave as an expression of Arrow, as a part of a predicate tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.fork_safety import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.query.predicates import ANYTHING, FALSE, NULL, Bounds, family_of


@dataclass(frozen=True, eq=False)
class ArrowFilter:
    """See `Node`. Nobody but Arrow looks into an expression: it is asked as it asks itself of Parquet row groups.

    Arrow simplifies the expression under the guarantee that bounds give, to one that is never true where it can.
    """

    expression: pc.Expression
    schema: pa.Schema

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        named_bounds = {name: column_bounds for name, column_bounds in bounds.items() if name in self._column_names}
        guarantee = _make_guarantees(named_bounds, self.schema)
        return FALSE | NULL if guarantee is not None and self._is_excluded_by(guarantee) else ANYTHING

    def _is_excluded_by(self, guarantee: pc.Expression) -> bool:
        import pyarrow.dataset as ds  # loads pandas, where there is one

        file_format = ds.IpcFileFormat()
        fragment = file_format.make_fragment(pa.py_buffer(b""), partition_expression=guarantee)
        dataset = ds.FileSystemDataset([fragment], self.schema, file_format)
        try:
            return next(iter(dataset.get_fragments(filter=self.expression)), None) is None
        except pa.ArrowInvalid:  # Arrow cannot cast a bound to the type it compares in; only pruning needs that cast
            return False

    def values_of(self, column: str) -> frozenset[Any] | None:  # noqa: ARG002
        return None

    def columns(self) -> frozenset[str]:
        return self._column_names

    @cached_property
    def _column_names(self) -> frozenset[str]:
        """Columns whose names its text has: all that it speaks of by name, perhaps more.

        Arrow simplifies comparisons with NaN wrongly: beside one, floats are left to the rows.
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
    """Guarantee that Arrow may use of a column; None for none, as where there may be NaN, which it cannot say."""
    if not bounds.may_have_value:
        return field.is_null()
    low, high = _to_scalar(bounds.low, data_type), _to_scalar(bounds.high, data_type)
    if low is None or high is None or bounds.may_be_nan:
        return None
    above, below = field >= low, field <= high
    if bounds.may_be_null:  # said of each bound: Arrow looks no deeper
        above, below = above | field.is_null(), below | field.is_null()
    return above & below


def _to_scalar(value: Any, data_type: pa.DataType) -> pa.Scalar | None:
    """A bound as a value of the column; None where there is none, or it is no such value."""
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
