"""Filters of reads: a ``pyarrow.compute`` expression, or a list of ``(column, operator, value)`` that must all hold.

An expression means what Arrow makes of it. Of predicates more is promised: column names count without regard to case,
numbers are compared exactly whatever their type (Arrow compares decimals of different scales wrongly), and null equals
nothing, as in SQL.
"""

from __future__ import annotations

import datetime as dt
import decimal
import numbers
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.values import nearest

Predicate = tuple[str, str, Any]

_COMPARISONS: Mapping[str, Callable[[pc.Expression, Any], pc.Expression]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATORS = (*_COMPARISONS, "in", "is null", "not null")
_ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError)
_UNKNOWN_FIELD = re.compile(r"No match for FieldRef\.(?:Name)?\(?([^)\s]+)\)?")


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter as the user gave it; `bound` makes it one for the columns of a read."""

    given: pc.Expression | None
    predicates: tuple[Predicate, ...] = ()
    """Where it was given as such: these prune lake files."""

    def bound(self, schema: pa.Schema) -> BoundFilter:
        """The filter for rows of this schema: names in its spelling, values compared as its types.

        Raises `SchemaMismatchError` for an unknown column, `InvalidOptionError` for a comparison that cannot be.
        """
        fields = [find_field(schema, name) for name, _, _ in self.predicates]
        predicates = tuple((f.name, o, v) for f, (_, o, v) in zip(fields, self.predicates, strict=True))
        terms = [_term(f, o, v) for f, (_, o, v) in zip(fields, predicates, strict=True)]
        if self.given is not None:
            terms.append(self.given)
        bound = BoundFilter(reduce(operator.and_, terms), predicates)
        _check(bound.expression, schema)
        return bound


@dataclass(frozen=True, slots=True)
class BoundFilter:
    expression: pc.Expression
    predicates: tuple[Predicate, ...] = ()


def parse_filter(value: pc.Expression | Sequence[Any] | None) -> Filter | None:
    """Raises `InvalidOptionError` for anything but an expression or a list of (column, operator, value)."""
    if value is None:
        return None
    if isinstance(value, pc.Expression):
        return Filter(value)
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        _refuse(value)
    predicates = tuple(_parsed(item) for item in value)
    return Filter(None, predicates) if predicates else None


def find_field(schema: pa.Schema, name: str) -> pa.Field:
    """The field of that name, without regard to case. Raises `SchemaMismatchError` with the nearest name."""
    for field in schema:
        if field.name == name or field.name.casefold() == str(name).casefold():
            return field
    near = nearest(str(name), schema.names)
    hint = f"; did you mean '{near}'?" if near else ";"
    shown = ", ".join(schema.names[:30]) + (", …" if len(schema.names) > 30 else "")
    raise SchemaMismatchError(f"there is no column '{name}'{hint} The columns are {shown}")


def _parsed(item: Any) -> Predicate:
    match item:
        case (str() as column, str() as name, value):
            folded = "=" if name == "==" else name.lower()
            if isinstance(item, tuple) and folded in _OPERATORS:
                return column, folded, value.as_py() if isinstance(value, pa.Scalar) else value
    _refuse(item)


def _refuse(item: Any) -> NoReturn:
    raise InvalidOptionError(
        f"filter {item!r}: expected a list of (column, operator, value) with an operator of {', '.join(_OPERATORS)}, "
        "or a pyarrow.compute expression",
    )


def _term(field: pa.Field, name: str, value: Any) -> pc.Expression:
    """The predicate as an expression over a column of this type."""
    column = pc.field(field.name)
    match name:
        case "is null":
            return column.is_null()
        case "not null":
            return column.is_valid()
        case "in":
            members = [_member(field, v) for v in _members(field.name, value) if v is not None]
            return column.isin(pa.array([m for m in members if m is not None], field.type))
    numeric = pa.types.is_integer(field.type) or pa.types.is_decimal(field.type)
    if numeric and _is_exact_number(value):
        return _exact_comparison(column, field.type, name, decimal.Decimal(value))
    try:
        return _COMPARISONS[name](column, value)
    except _ARROW_ERRORS as error:
        raise InvalidOptionError(
            f"filter ({field.name!r}, {name!r}, {value!r}): {error}; give another value"
        ) from error


def _members(column: str, value: Any) -> list[Any]:
    if isinstance(value, pa.Array | pa.ChunkedArray):
        value = value.to_pylist()
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidOptionError(f"filter ({column!r}, 'in', {value!r}): expected a list of values")
    return list(value)


def _is_exact_number(value: Any) -> bool:
    if isinstance(value, decimal.Decimal):
        return value.is_finite()
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _exact_comparison(column: pc.Expression, kind: pa.DataType, name: str, value: decimal.Decimal) -> pc.Expression:
    floor = _floor(value, kind)
    scalar = _number(floor, kind)
    if scalar is None:  # beyond all values of the type
        always = name in (("!=", "<", "<=") if value > 0 else ("!=", ">", ">="))
        return column == column if always else column != column  # noqa: PLR0124 - null for null
    if floor == value:
        return _COMPARISONS[name](column, scalar)
    match name:
        case "<" | "<=":
            return column <= scalar
        case ">" | ">=":
            return column > scalar
        case "=":
            return column != column  # noqa: PLR0124 - false, and null for null
    return column == column  # noqa: PLR0124 - true, and null for null


_EXACT = decimal.Context(prec=400, rounding=decimal.ROUND_FLOOR)


def _floor(value: decimal.Decimal, kind: pa.DataType) -> decimal.Decimal:
    """The largest number of the type's scale that is not above the value."""
    scale = kind.scale if pa.types.is_decimal(kind) else 0
    exponent = value.as_tuple().exponent
    if value.adjusted() > 300 or not isinstance(exponent, int) or exponent >= -scale:
        return value
    return value.quantize(decimal.Decimal((0, (1,), -scale)), context=_EXACT)


def _number(value: decimal.Decimal, kind: pa.DataType) -> pa.Scalar | None:
    if value.adjusted() > 40:
        return None
    try:
        return pa.scalar(int(value) if pa.types.is_integer(kind) else value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return None


def _member(field: pa.Field, value: Any) -> Any:
    """The value as one of the column's type, None where no such value equals it."""
    kind, types = field.type, pa.types
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if types.is_integer(kind) or types.is_decimal(kind):
        if isinstance(value, float) and np.isfinite(value):
            value = decimal.Decimal(repr(float(value)))
        if _is_exact_number(value):
            number = decimal.Decimal(value)
            scalar = _number(number, kind) if _floor(number, kind) == number else None
            return None if scalar is None else scalar.as_py()
        fits = isinstance(value, float)
        value = None
    elif types.is_floating(kind):
        fits = isinstance(value, numbers.Real | decimal.Decimal) and not isinstance(value, bool)
        value = float(value) if fits else None
        if fits and types.is_float32(kind) and not (np.float32(value) == value or np.isnan(value)):
            value = None
    elif types.is_timestamp(kind):
        fits = isinstance(value, dt.datetime) and (value.tzinfo is None) == (kind.tz is None)
    elif types.is_date(kind):
        fits = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    else:
        wanted = {"string": str, "binary": bytes, "bool": bool}.get(str(kind))
        fits = wanted is not None and isinstance(value, wanted)
    if not fits:
        raise InvalidOptionError(
            f"filter on column '{field.name}' of type {kind}: found a value of type {type(value).__name__}; "
            "give one of the column's type",
        )
    return value


def _check(expression: pc.Expression, schema: pa.Schema) -> None:
    """Bind the expression as a read would, so that what cannot be is refused before anything is read."""
    import pyarrow.dataset as ds  # loads pandas, where there is one

    try:
        ds.dataset(schema.empty_table()).scanner(filter=expression, use_threads=False).to_table()
    except _ARROW_ERRORS as error:
        unknown = _UNKNOWN_FIELD.search(str(error))
        if unknown is not None:
            find_field(schema, unknown[1])
        first = str(error).splitlines()[0]
        raise InvalidOptionError(f"filter {expression}: {first}; compare columns with values of their types") from error
