"""Filters of reads: a ``pyarrow.compute`` expression, or predicates ``(column, operator, value)`` as in pyarrow.

A list of predicates must hold in full; of a list of such lists, one must (disjunctive normal form). An expression means
the same as in Arrow. Predicates guarantee more: column names are case-insensitive, and null equals nothing, as in SQL.
Integers and decimals are compared exactly with numbers of any type, while Arrow miscompares decimals of different
scales and does not compare large integers with floats; next to a decimal, a float has its decimal notation's value.
Dates and timestamps compare as integers of any size, and those beyond Python's range are given as Arrow scalars.

A `Projection` describes a read: the columns to read, the filter to apply, and the columns of the result.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import numbers
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import evaluate_filter, select_matching_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.core.python_values import scalar_to_ticks
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError, quote
from streamhouse_spark.expressions.arrow import COMPARISONS, ArrowFilter
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, UNKNOWN, And, Compare, In, IsNull, Node, Not, Or
from streamhouse_spark.schema.table_schema import TableSchema

Predicate: TypeAlias = tuple[str, str, Any]
FilterLike: TypeAlias = "str | pc.Expression | Sequence[Predicate] | Sequence[Sequence[Predicate]]"
"""What users give: SQL text, an expression, or predicates."""

_OPERATORS = (*COMPARISONS, "in", "not in", "is null", "not null")
_ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError)
_UNKNOWN_FIELD = re.compile(r"No match for FieldRef\.(?:Name)?\(?([^)\s]+)\)?")
_EXACT = decimal.Context(prec=400, rounding=decimal.ROUND_FLOOR)
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the zone is added if the value has one
_UNIT_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter as given by the user. `bind` converts it for the columns of a read."""

    expression: pc.Expression | None
    groups: tuple[tuple[Predicate, ...], ...] = ()
    """Without an expression: the predicates of at least one group must all hold."""
    node: Node | None = None
    """The predicate tree of the expression, if the caller has it."""

    def bind(self, schema: pa.Schema) -> BoundFilter:
        """Return the filter for rows of this schema: names as the schema spells them, values in the columns' types.

        Raises `SchemaMismatchError` for an unknown column, `InvalidOptionError` for an impossible comparison.
        """
        if self.expression is None:
            bound = _bind_groups(self.groups, schema)
        elif self.node is None:
            columns = _find_columns(self.expression, schema)
            bound = BoundFilter(self.expression, ArrowFilter(self.expression, schema), columns)
        else:
            bound = BoundFilter(self.expression, self.node, tuple(sorted(self.node.columns())))
        _check(bound.expression, schema)
        return bound


@dataclass(frozen=True, slots=True)
class AllOf(Filter):
    """Filters that must all hold."""

    filters: tuple[Filter, ...] = ()

    def bind(self, schema: pa.Schema) -> BoundFilter:
        parts = [filter_.bind(schema) for filter_ in self.filters]
        columns = [part.columns for part in parts if part.columns is not None]
        names = tuple(dict.fromkeys(chain.from_iterable(columns))) if len(columns) == len(parts) else None
        expression = reduce(operator.and_, (part.expression for part in parts))
        return BoundFilter(expression, And(tuple(part.node for part in parts)), names)


@dataclass(frozen=True, slots=True)
class BoundFilter:
    """A filter for rows of one schema. Rows match if the expression is true, and not if it is null."""

    expression: pc.Expression
    node: Node
    """Predicate that all matching rows satisfy, for skipping files and segments."""
    columns: tuple[str, ...] | None
    """The distinct columns that the filter reads; None if unknown."""

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which of the rows match."""
        matches: npt.NDArray[np.bool_] = pc.fill_null(evaluate_filter(rows, self.expression), False).to_numpy()
        return matches


def parse_filter(value: Any) -> Filter | None:
    """Parse an expression or predicates; None for an empty list. Raises `InvalidOptionError` for anything else.

    `where.parse_condition` takes SQL text too.
    """
    if value is None or isinstance(value, Filter):
        return value
    if isinstance(value, pc.Expression):
        return Filter(value)
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable) or not getattr(value, "ndim", 1):
        _refuse(value)
    items = list(value)
    groups = items if items and all(isinstance(item, list) and item for item in items) else [items]
    parsed = tuple(tuple(_parse_term(item) for item in group) for group in groups)
    return Filter(None, parsed) if items else None


def find_field(schema: pa.Schema, name: str) -> pa.Field:
    """Return the field with that name, case-insensitively. Raises `SchemaMismatchError` with the nearest name."""
    for field in schema:
        if field.name == name or field.name.casefold() == str(name).casefold():
            return field
    nearest_name = find_nearest(str(name), schema.names)
    hint = f"; did you mean '{nearest_name}'?" if nearest_name else ";"
    listed = ", ".join(schema.names[:30]) + (", …" if len(schema.names) > 30 else "")
    raise SchemaMismatchError(f"there is no column '{name}'{hint} The columns are {listed}")


def _parse_term(item: Any) -> Predicate:
    match item:
        case (str() as column, str() as name, value):
            folded = "=" if name == "==" else name.lower()
            if isinstance(item, tuple) and folded in _OPERATORS:
                return column, folded, value
    _refuse(item)


def _refuse(item: Any) -> NoReturn:
    raise InvalidOptionError(
        f"filter {quote(item)}: expected SQL text, a pyarrow.compute expression, a list of (column, operator, value) "
        f"that must all hold, or a list of such lists of which one must; operators are {', '.join(_OPERATORS)}"
    )


def _bind_groups(groups: Sequence[Sequence[Predicate]], schema: pa.Schema) -> BoundFilter:
    columns: list[str] = []
    expressions: list[pc.Expression] = []
    nodes: list[Node] = []
    for group in groups:
        fields = [find_field(schema, name) for name, _, _ in group]
        terms = [_bind(field, op, value) for field, (_, op, value) in zip(fields, group, strict=True)]
        columns += (field.name for field in fields)
        expressions.append(reduce(operator.and_, (expression for expression, _ in terms)))
        nodes.append(And(tuple(node for _, node in terms)))
    node = nodes[0] if len(nodes) == 1 else Or(tuple(nodes))
    return BoundFilter(reduce(operator.or_, expressions), node, tuple(dict.fromkeys(columns)))


def _bind(field: pa.Field, name: str, operand: Any) -> tuple[pc.Expression, Node]:
    """Return a comparison as an Arrow expression, and as a predicate tree that all of its rows satisfy.

    The tree has values of the column's type, whose rounding loses no row. Bounds are unreliable for infinities.
    """
    column, kind, value = pc.field(field.name), field.type, _parse_operand(operand)
    match name:
        case "is null":
            return column.is_null(), IsNull(field.name)
        case "not null":
            return column.is_valid(), Not(IsNull(field.name))
        case "in":
            return _bind_members(field, value)
        case "not in":
            members, node = _bind_members(field, value)
            return ~members & column.is_valid(), Not(node)
    _require_single(field.name, name, value)
    if (number := _exact(value, kind)) is not None:
        return _bind_number(field, name, number)
    if pa.types.is_timestamp(kind) and _is_time(value):
        _to_member(field, value)  # Arrow rejects a time with the wrong zone only when it reads rows
    try:
        expression = COMPARISONS[name](column, value)
    except _ARROW_ERRORS as error:
        raise _incomparable_error(field, name, value, error) from error
    if pa.types.is_floating(kind):
        finite = _float(value) if _is_number(value) else None
        is_bounded = finite is not None and math.isfinite(finite)
        return expression, _compare(field.name, name, finite) if is_bounded else UNKNOWN
    try:
        return expression, _compare(field.name, name, _to_member(field, value))
    except InvalidOptionError:  # Arrow may be able to compare them
        return expression, UNKNOWN


def _bind_members(field: pa.Field, value: Any) -> tuple[pc.Expression, Node]:
    try:
        members = [_to_member(field, v) for v in _parse_members(field.name, value) if v is not None]
        non_null = [m for m in members if m is not None]
        expression = pc.field(field.name).isin(pa.array(non_null, field.type))
    except _ARROW_ERRORS as error:
        raise _incomparable_error(field, "in", value, error) from error
    has_bounds = all(not isinstance(m, float) or math.isfinite(m) for m in non_null)
    return expression, In(field.name, tuple(non_null), has_null=False) if has_bounds else UNKNOWN


def _bind_number(field: pa.Field, name: str, value: decimal.Decimal) -> tuple[pc.Expression, Node]:
    """Compare exactly: round the value down to the column's type, and adapt the operator to the rounding."""
    column, kind = pc.field(field.name), field.type
    always = column == column  # noqa: PLR0124 - null for null
    never = column != column  # noqa: PLR0124 - null for null
    if value.is_nan():
        return (always if name == "!=" else never), UNKNOWN
    floor = _floor(value, kind)
    scalar = _number(floor, kind)
    if scalar is None:  # outside the range of the type
        return (always if name in (("!=", "<", "<=") if value > 0 else ("!=", ">", ">=")) else never), UNKNOWN
    folded = name if floor == value else {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}.get(name)
    if folded is None:
        return (always if name == "!=" else never), UNKNOWN
    return COMPARISONS[folded](column, scalar), _compare(field.name, folded, scalar_to_ticks(scalar))


def _incomparable_error(field: pa.Field, name: str, value: Any, error: Exception) -> InvalidOptionError:
    return InvalidOptionError(f"filter ({field.name!r}, {name!r}, {quote(value)}): {error}; give another value")


def _parse_members(column: str, value: Any) -> list[Any]:
    if isinstance(value, pa.Array | pa.ChunkedArray) and not pa.types.is_temporal(value.type):
        value = value.to_pylist()
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidOptionError(f"filter ({column!r}, 'in', {quote(value)}): expected a list of values")
    members = [_parse_operand(member) for member in value]
    for member in members:
        _require_single(column, "in", member)
    return members


def _require_single(column: str, name: str, value: Any) -> None:
    """Reject a list or mapping with `InvalidOptionError`: Arrow crashes if it contains itself."""
    if isinstance(value, list | tuple | set | Mapping):
        raise InvalidOptionError(f"filter ({column!r}, {name!r}, …): expected single values, found {quote(value)}")


def _parse_operand(value: Any) -> Any:
    """Convert an Arrow scalar to Python, except dates and timestamps, which may be beyond Python's range."""
    is_plain = isinstance(value, pa.Scalar) and not pa.types.is_temporal(value.type)
    return value.as_py() if is_plain or (isinstance(value, pa.Scalar) and not value.is_valid) else value


def _compare(column: str, name: str, value: Any) -> Node:
    if name == "!=":
        return Not(Compare("=", column, value))
    return Compare(name, column, value, is_false_for_nan=isinstance(value, float))


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether values of the type are compared as `_exact` numbers."""
    types = pa.types
    return any(is_kind(kind) for is_kind in (types.is_integer, types.is_decimal, types.is_date32, types.is_timestamp))


def _is_time(value: Any) -> bool:
    return isinstance(value, dt.datetime) or (isinstance(value, pa.Scalar) and pa.types.is_timestamp(value.type))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real | decimal.Decimal) and not isinstance(value, bool)


def _exact(value: Any, kind: pa.DataType) -> decimal.Decimal | None:
    """Return the value as an exact number that compares with a column of this type, or None if it is not a number.

    Dates and timestamps are numbers as in `scalar_to_ticks`.
    """
    if pa.types.is_date32(kind):
        return _days(value)
    if pa.types.is_timestamp(kind):
        return _ticks(value, kind)
    if not _is_exact(kind) or not _is_number(value):
        return None
    if isinstance(value, decimal.Decimal):
        return value
    if isinstance(value, numbers.Integral):
        return decimal.Decimal(int(value))
    return decimal.Decimal(float(value) if pa.types.is_integer(kind) else repr(float(value)))


def _days(value: Any) -> decimal.Decimal | None:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return decimal.Decimal((value - _EPOCH.date()).days)
    is_date = isinstance(value, pa.Scalar) and pa.types.is_date(value.type)
    return decimal.Decimal(scalar_to_ticks(value.cast(pa.date32()))) if is_date else None


def _ticks(value: Any, kind: pa.DataType) -> decimal.Decimal | None:
    """Return a time in units of a timestamp type; None if only the time or only the type has a zone."""
    if isinstance(value, dt.datetime):
        if (value.tzinfo is None) is not (kind.tz is None):
            return None
        since_1970 = value - (_EPOCH if value.tzinfo is None else _EPOCH.replace(tzinfo=dt.UTC))
        nanos = since_1970 // dt.timedelta(microseconds=1) * 1_000 + getattr(
            value, "nanosecond", 0
        )  # pandas has nanoseconds
    elif _is_time(value) and (value.type.tz is None) is (kind.tz is None):
        nanos = scalar_to_ticks(value) * _UNIT_NANOS[value.type.unit]
    else:
        return None
    return _EXACT.divide(nanos, _UNIT_NANOS[kind.unit])


def _float(value: Any) -> float | None:
    """Return the number as a float; None if it exceeds all floats."""
    try:
        return float(value)
    except OverflowError:
        return None


def _floor(value: decimal.Decimal, kind: pa.DataType) -> decimal.Decimal:
    """Return the largest number of the type's scale that is not greater than the value."""
    scale = kind.scale if pa.types.is_decimal(kind) else 0
    exponent = value.as_tuple().exponent
    if value.adjusted() > 300 or not isinstance(exponent, int) or exponent >= -scale:
        return value
    return value.quantize(decimal.Decimal((0, (1,), -scale)), context=_EXACT)


def _number(value: decimal.Decimal, kind: pa.DataType) -> pa.Scalar | None:
    if value.adjusted() > 40:
        return None
    try:
        return pa.scalar(value if pa.types.is_decimal(kind) else int(value), kind)
    except (pa.ArrowInvalid, OverflowError):
        return None


def _to_member(field: pa.Field, value: Any) -> Any:
    """Return the value in the column's type, or None if no value of the type equals it.

    Dates and timestamps are integers as in `scalar_to_ticks`.
    """
    kind, types = field.type, pa.types
    if _is_exact(kind):
        number = _exact(value, kind)
        fits = number is not None
        if number is not None:
            is_of_type = number.is_finite() and _floor(number, kind) == number
            scalar = _number(number, kind) if is_of_type else None
            value = None if scalar is None else scalar_to_ticks(scalar)
    elif types.is_floating(kind):
        fits = _is_number(value)
        value = _float(value) if fits else None
        if value is not None and types.is_float32(kind) and not _is_float32(value):
            value = None
    else:
        python_type = {"string": str, "binary": bytes, "bool": bool}.get(str(kind))
        fits = python_type is not None and isinstance(value, python_type)
    if not fits:
        raise InvalidOptionError(
            f"filter on column '{field.name}' of type {kind}: found a value of type {type(value).__name__}; "
            "specify a value of the column's type"
        )
    return value


def _is_float32(value: float) -> bool:
    with np.errstate(over="ignore"):
        return bool(math.isnan(value) or float(np.float32(value)) == value)


def _find_columns(expression: pc.Expression, schema: pa.Schema) -> tuple[str, ...] | None:
    """Return columns that include all that an expression references; None if its text does not tell."""
    text = str(expression)
    names = tuple(name for name in schema.names if name in text)
    if "FieldPath" in text:  # by place
        return None
    try:
        _check(expression, pa.schema([schema.field(name) for name in names]))
    except (InvalidOptionError, SchemaMismatchError):
        return None
    return names


def _check(expression: pc.Expression, schema: pa.Schema) -> None:
    """Evaluate the expression over no rows, so that an invalid expression is rejected before anything is read."""
    import pyarrow.dataset as ds  # imports pandas if installed

    try:
        ds.dataset(schema.empty_table()).scanner(filter=expression, use_threads=False).to_table()
    except _ARROW_ERRORS as error:
        unknown = _UNKNOWN_FIELD.search(str(error))
        if unknown is not None:
            find_field(schema, unknown[1])
        first = str(error).splitlines()[0]
        raise InvalidOptionError(f"filter {expression}: {first}; compare columns with values of their types") from error


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns of a read's result, and its filter."""

    schema: pa.Schema
    columns: tuple[str, ...]
    read_columns: tuple[str, ...] | None
    """``columns`` and the columns of the filter; None for all."""
    filter: pc.Expression | None = None
    node: Node = ALWAYS_TRUE
    """The filter as a predicate tree, for skipping files, segments and rows."""

    @classmethod
    def of(cls, schema: TableSchema, columns: Sequence[str] | None, filter_: Filter | None) -> Projection:
        """Create the projection of a read.

        Raises `SchemaMismatchError` for an unknown or duplicate column, and `InvalidOptionError` for a filter that the
        columns' types do not support.
        """
        names = schema.names if columns is None else _names(schema.arrow, columns)
        bound = filter_.bind(schema.arrow) if filter_ is not None else None
        out = pa.schema([schema.arrow.field(n) for n in names])
        needed = bound.columns if bound is not None else ()
        if columns is None or needed is None:
            read: tuple[str, ...] | None = None  # the columns of an expression are unknown
        else:
            read = tuple(dict.fromkeys([*names, *needed])) or schema.names[:1]
        return cls(out, names, read, bound.expression if bound else None, bound.node if bound else ALWAYS_TRUE)

    def finish(self, table: pa.Table) -> pa.Table:
        """Return the requested columns, in the requested order."""
        return table if table.schema.equals(self.schema) else table.select(list(self.columns))

    def joined(self, parts: Sequence[pa.Table]) -> pa.Table:
        """Concatenate finished tables."""
        if not self.columns:  # Arrow loses the row count of tables without columns
            return pa.table([pa.nulls(sum(part.num_rows for part in parts))], names=[""]).select([])
        return pa.concat_tables([self.schema.empty_table(), *parts])


def filter_and_project(rows: pa.Table, columns: Sequence[str] | None, filter_: Filter | None) -> pa.Table:
    """Filter rows of any schema and return the requested columns. Raises the errors of `Projection.of`."""
    names = None if columns is None else _names(rows.schema, columns)
    if filter_ is not None:
        rows = select_matching_rows(rows, filter_.bind(rows.schema).expression)
    return rows if names is None else rows.select(list(names))


def _names(schema: pa.Schema, columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise InvalidOptionError(f"columns is {columns!r}, expected a list of names")
    names = tuple(find_field(schema, name).name for name in columns)
    for name in names:
        if names.count(name) > 1:
            raise SchemaMismatchError(f"column '{name}' is requested twice; name it once")
    return names
