"""Predicate trees and data skipping: whether any row may match, decided before a row is read.

Filters pushed by Spark and filters of the Python interface are converted to predicate trees. Scan planners compare a
tree with the bounds of columns in segments, lake files and manifests (`may_match`). `row_masks` applies a tree to rows.

A tree may keep too many rows, never too few: parts of a filter that it cannot express are `UNKNOWN`. Exact values, as
CHECK constraints and generated columns need them, are computed by the typed expressions of `sql` instead.

For rows known only by their bounds, a filter may be true, false or null. `Node.outcomes` returns which of the three are
possible for at least one of these rows. Values compare as in Spark: NaN equals itself and is greater than every number,
and -0.0 equals 0.0. Dates are days, timestamps microseconds.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass

TRUE, FALSE, NULL = 1, 2, 4
ANYTHING = TRUE | FALSE | NULL


@dataclass(frozen=True, slots=True)
class Bounds:
    """The possible values of a column: nulls, and values of `to_comparable` from ``low`` to ``high`` inclusive.

    A bound is None if it is unknown. The interval may be too wide.
    """

    low: Any = None
    high: Any = None
    may_be_null: bool = True
    may_have_value: bool = True
    may_be_nan: bool = False
    """Whether NaN may occur although it is outside the interval."""


_NAN: Final = (1, 0.0)
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - zones are removed before use
_MICROSECOND: Final = dt.timedelta(microseconds=1)
UNKNOWN_BOUNDS = Bounds()
ONLY_NULLS = Bounds(may_have_value=False)


def constant_bounds(value: Any) -> Bounds:
    """Return the bounds of a column whose value is the same in every row; None is null."""
    return ONLY_NULLS if value is None else Bounds(to_comparable(value), to_comparable(value), may_be_null=False)


def to_comparable(value: Any) -> Any:
    """Return the value in a form that orders as in Spark, with NaN above all other floats."""
    if isinstance(value, float):
        return _NAN if value != value else (0, value)  # noqa: PLR0124 - NaN
    return value


def to_plan_value(value: Any) -> Any:
    """Convert dates to days and timestamps to microseconds; return other values unchanged."""
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    if isinstance(value, dt.date):
        return (value - _EPOCH.date()).days
    return value


def family_of(column: pa.DataType) -> str | None:
    """Return the family of types whose values are comparable; None for types without bounds."""
    types = pa.types
    if types.is_integer(column) or types.is_decimal(column):
        return "number"
    if types.is_floating(column):
        return "float"
    if types.is_timestamp(column):
        return "timestamp" if column.tz else "timestamp_ntz"
    simple = {pa.string(): "string", pa.binary(): "binary", pa.bool_(): "boolean", pa.date32(): "date"}
    return simple.get(column)


class Node(ABC):
    """A node of a predicate tree."""

    __slots__ = ()

    @abstractmethod
    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        """Return the possible outcomes for rows within the bounds, as a set of the bits `TRUE`, `FALSE` and `NULL`.

        Columns without bounds may have any value.
        """

    def values_of(self, column: str) -> frozenset[Any] | None:  # noqa: ARG002 - unknown by default
        """Return the values of the column for which the filter may be true (None is null); None if unrestricted."""
        return None

    def columns(self) -> frozenset[str]:
        """Return the columns whose bounds are needed."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """A predicate with the same possible outcomes for every row."""

    possible: int = ANYTHING

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:  # noqa: ARG002
        return self.possible

    def values_of(self, column: str) -> frozenset[Any] | None:  # noqa: ARG002
        return None if self.possible & TRUE else frozenset()


UNKNOWN = Constant()
ALWAYS_TRUE = Constant(TRUE)


@dataclass(frozen=True, slots=True)
class Not(Node):
    child: Node

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        outcomes = self.child.outcomes(bounds)
        return (outcomes & NULL) | _invert_outcomes(outcomes)

    def columns(self) -> frozenset[str]:
        return self.child.columns()


class _Connective(Node):
    """AND or OR."""

    __slots__ = ()
    children: tuple[Node, ...]

    def columns(self) -> frozenset[str]:
        return frozenset[str]().union(*(child.columns() for child in self.children))


@dataclass(frozen=True, slots=True)
class And(_Connective):
    children: tuple[Node, ...]

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        outcomes = TRUE
        for child in self.children:
            outcomes = _AND[outcomes][child.outcomes(bounds)]
        return outcomes

    def values_of(self, column: str) -> frozenset[Any] | None:
        value_sets = [values for child in self.children if (values := child.values_of(column)) is not None]
        return frozenset.intersection(*value_sets) if value_sets else None


@dataclass(frozen=True, slots=True)
class Or(_Connective):
    children: tuple[Node, ...]

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        outcomes = FALSE
        for child in self.children:
            outcomes = _OR[outcomes][child.outcomes(bounds)]
        return outcomes

    def values_of(self, column: str) -> frozenset[Any] | None:
        value_sets = [values for child in self.children if (values := child.values_of(column)) is not None]
        return frozenset[Any]().union(*value_sets) if len(value_sets) == len(self.children) else None


class _ColumnTest(Node):
    """A test of one column."""

    __slots__ = ()
    column: str

    def columns(self) -> frozenset[str]:
        return frozenset([self.column])


@dataclass(frozen=True, slots=True)
class IsNull(_ColumnTest):
    column: str

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        column_bounds = bounds.get(self.column, UNKNOWN_BOUNDS)
        return (TRUE if column_bounds.may_be_null else 0) | (FALSE if column_bounds.may_have_value else 0)

    def values_of(self, column: str) -> frozenset[Any] | None:
        return frozenset([None]) if column == self.column else None


@dataclass(frozen=True, slots=True)
class Compare(_ColumnTest):
    """``column operator value``: ``= < <= > >= <=> STARTS_WITH ENDS_WITH CONTAINS``. The value is never null."""

    operator: str
    column: str
    value: Any
    is_false_for_nan: bool = False
    """Whether NaN never satisfies the comparison, as in Arrow. By default NaN compares as in Spark."""

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        column_bounds = bounds.get(self.column, UNKNOWN_BOUNDS)
        of_null = FALSE if self.operator == "<=>" else NULL
        possible = of_null if column_bounds.may_be_null else 0
        if column_bounds.may_have_value:
            if self.is_false_for_nan:
                column_bounds = replace(column_bounds, may_be_nan=False)
                possible |= FALSE
            possible |= _compare_outcomes(self.operator, column_bounds, to_comparable(self.value))
        return possible

    def values_of(self, column: str) -> frozenset[Any] | None:
        return frozenset([self.value]) if column == self.column and self.operator in ("=", "<=>") else None


@dataclass(frozen=True, slots=True)
class In(_ColumnTest):
    column: str
    values: tuple[Any, ...]
    """The values other than null."""
    has_null: bool
    """Whether the list contains null."""
    ascending: tuple[Any, ...] | None = field(init=False, repr=False, compare=False)
    """The sorted `to_comparable` values, for binary search; None if they are not mutually comparable."""

    def __post_init__(self) -> None:
        try:
            ascending = tuple(sorted(map(to_comparable, self.values)))
        except TypeError:
            ascending = None
        object.__setattr__(self, "ascending", ascending)

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        column_bounds = bounds.get(self.column, UNKNOWN_BOUNDS)
        of_null = NULL if self.values or self.has_null else NULL | FALSE  # a Spark setting decides about empty lists
        possible = of_null if column_bounds.may_be_null else 0
        if column_bounds.may_have_value:
            possible |= TRUE if self._may_have(column_bounds) else 0
            if not self._has_all(column_bounds):
                possible |= NULL if self.has_null else FALSE
        return possible

    def _may_have(self, bounds: Bounds) -> bool:
        if self.ascending is None:
            return True
        place = bisect_left(self.ascending, bounds.low) if bounds.low is not None else 0
        is_inside = place < len(self.ascending) and (bounds.high is None or self.ascending[place] <= bounds.high)
        return is_inside or (bounds.may_be_nan and self.ascending[-1:] == (_NAN,))

    def _has_all(self, bounds: Bounds) -> bool:
        """Return whether every value within the bounds is in the list."""
        is_constant = bounds.low is not None and bounds.low == bounds.high
        return (
            is_constant
            and self.ascending is not None
            and self._may_have(replace(bounds, may_be_nan=False))
            and (not bounds.may_be_nan or bounds.low == _NAN)
        )

    def values_of(self, column: str) -> frozenset[Any] | None:
        return frozenset(self.values) if column == self.column else None


# -- three-valued logic over sets of outcomes -------------------------------------------------------------------------


def _combine_outcomes(dominant: int, neutral: int) -> list[list[int]]:
    """Return the table that combines two sets of outcomes by AND (dominant `FALSE`) or OR (dominant `TRUE`)."""

    def combine(a: int, b: int) -> int:
        if dominant in (a, b):
            return dominant
        return NULL if NULL in (a, b) else neutral

    def combine_sets(first: int, second: int) -> int:
        outcomes = 0
        for a in (TRUE, FALSE, NULL):
            for b in (TRUE, FALSE, NULL):
                if first & a and second & b:
                    outcomes |= combine(a, b)
        return outcomes

    return [[combine_sets(first, second) for second in range(ANYTHING + 1)] for first in range(ANYTHING + 1)]


_AND = _combine_outcomes(FALSE, TRUE)
_OR = _combine_outcomes(TRUE, FALSE)


# -- a value against an interval --------------------------------------------------------------------------------------


def _equals(low: Any, high: Any, value: Any) -> int:
    may_equal = (low is None or low <= value) and (high is None or value <= high)
    is_constant = low is not None and high is not None and low == high == value
    return (TRUE if may_equal else 0) | (0 if is_constant else FALSE)


def _less(low: Any, high: Any, value: Any) -> int:
    return (TRUE if low is None or low < value else 0) | (FALSE if high is None or high >= value else 0)


def _less_or_equal(low: Any, high: Any, value: Any) -> int:
    return (TRUE if low is None or low <= value else 0) | (FALSE if high is None or high > value else 0)


def _invert_outcomes(outcomes: int) -> int:
    return (TRUE if outcomes & FALSE else 0) | (FALSE if outcomes & TRUE else 0)


def _starts_with(low: Any, high: Any, prefix: str) -> int:
    """Return the possible outcomes of a prefix test: strings with the prefix are contiguous, and it is the first."""
    is_below = high is not None and high < prefix
    is_above = low is not None and low > prefix and not low.startswith(prefix)
    all_inside = low is not None and high is not None and low.startswith(prefix) and high.startswith(prefix)
    return (0 if is_below or is_above else TRUE) | (0 if all_inside else FALSE)


def _of_constant(test: Callable[[str, str], bool]) -> Callable[[Any, Any, str], int]:
    """Return a text test over intervals, whose outcome is known only if all values are equal."""

    def outcomes(low: Any, high: Any, part: str) -> int:
        if low is None or low != high:
            return TRUE | FALSE
        return TRUE if test(low, part) else FALSE

    return outcomes


_INTERVALS = {
    "=": _equals,
    "<=>": _equals,
    "<": _less,
    "<=": _less_or_equal,
    ">": lambda low, high, value: _invert_outcomes(_less_or_equal(low, high, value)),
    ">=": lambda low, high, value: _invert_outcomes(_less(low, high, value)),
    "STARTS_WITH": _starts_with,
    "ENDS_WITH": _of_constant(str.endswith),
    "CONTAINS": _of_constant(str.__contains__),
}


def _compare_outcomes(operator: str, bounds: Bounds, value: Any) -> int:
    """Return the possible outcomes of comparing non-null values within the bounds with a `to_comparable` value."""
    possible = _INTERVALS[operator](bounds.low, bounds.high, value)
    return possible | _INTERVALS[operator](_NAN, _NAN, value) if bounds.may_be_nan else possible


def may_match(node: Node, bounds: Mapping[str, Bounds]) -> bool:
    """Return False only if the filter is not true for any row within the bounds."""
    try:
        return bool(node.outcomes(bounds) & TRUE)
    except (RecursionError, TypeError):
        return True
