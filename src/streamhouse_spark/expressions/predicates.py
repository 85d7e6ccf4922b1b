"""Predicate trees and data skipping: one evaluator for "may any row match?" before a row is read. Pure.

Filters pushed by Spark and filters of the Python interface are converted to such trees. Segments, lake files and
manifests provide bounds for each column. Every scan planner passes these to `may_match`.

For rows known only by bounds, a filter may be true, false or null. `Node.outcomes` returns which of the three are
possible for at least one such row; it may return too many, never too few. Rows for which the filter cannot be true need
not be read. Values compare as in Spark: NaN equals itself and is greater than every number, and -0.0 equals 0.0. Dates
are days, timestamps microseconds.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final, Protocol

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass

TRUE, FALSE, NULL = 1, 2, 4
ANYTHING = TRUE | FALSE | NULL


@dataclass(frozen=True, slots=True)
class Bounds:
    """The possible values of a column: values within ``[low, high]`` (None: unbounded), nulls, both or neither.

    The interval may be too wide. Values have the form of `to_comparable`.
    """

    low: Any = None
    high: Any = None
    may_be_null: bool = True
    may_have_value: bool = True
    may_be_nan: bool = False
    """Whether NaN may occur in addition, which the interval does not cover."""


_NAN: Final = (1, 0.0)
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - zones are removed before use
_MICROSECOND: Final = dt.timedelta(microseconds=1)
UNKNOWN_BOUNDS = Bounds()
ONLY_NULLS = Bounds(may_have_value=False)


def constant_bounds(value: Any) -> Bounds:
    """Return the bounds of a column with the same value in every row; None is null."""
    return ONLY_NULLS if value is None else Bounds(to_comparable(value), to_comparable(value), may_be_null=False)


def to_comparable(value: Any) -> Any:
    """Return the value in a form that compares as in Spark: floats with NaN above all numbers."""
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
    """Return the kind of values that a column of the type compares with; None for types whose order is not used."""
    types = pa.types
    if types.is_integer(column) or types.is_decimal(column):
        return "number"
    if types.is_floating(column):
        return "float"
    if types.is_timestamp(column):
        return "timestamp" if column.tz else "timestamp_ntz"
    simple = {pa.string(): "string", pa.binary(): "binary", pa.bool_(): "boolean", pa.date32(): "date"}
    return simple.get(column)


class Node(Protocol):
    """A predicate, or a part of one."""

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        """Return the possible outcomes for a row within the bounds, as a set of `TRUE`, `FALSE`, `NULL`.

        Columns without bounds may have any value.
        """

    def values_of(self, column: str) -> frozenset[Any] | None:
        """Return the values (None is null) that the column must have for the filter to be true; None for any."""

    def columns(self) -> frozenset[str]:
        """Return the columns whose bounds are needed."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A part with the same outcomes for every row, or of which nothing is known."""

    possible: int = ANYTHING

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:  # noqa: ARG002
        return self.possible

    def values_of(self, column: str) -> frozenset[Any] | None:  # noqa: ARG002
        return None if self.possible & TRUE else frozenset()

    def columns(self) -> frozenset[str]:
        return frozenset()


UNKNOWN = Constant()
ALWAYS_TRUE = Constant(TRUE)


@dataclass(frozen=True, slots=True)
class Not:
    child: Node

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        outcomes = self.child.outcomes(bounds)
        return (outcomes & NULL) | (FALSE if outcomes & TRUE else 0) | (TRUE if outcomes & FALSE else 0)

    def values_of(self, column: str) -> frozenset[Any] | None:  # noqa: ARG002
        return None

    def columns(self) -> frozenset[str]:
        return self.child.columns()


@dataclass(frozen=True, slots=True)
class And:
    children: tuple[Node, ...]

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        outcomes = TRUE
        for child in self.children:
            outcomes = _AND[outcomes][child.outcomes(bounds)]
        return outcomes

    def values_of(self, column: str) -> frozenset[Any] | None:
        value_sets = [values for child in self.children if (values := child.values_of(column)) is not None]
        return frozenset.intersection(*value_sets) if value_sets else None

    def columns(self) -> frozenset[str]:
        return frozenset[str]().union(*(child.columns() for child in self.children))


@dataclass(frozen=True, slots=True)
class Or:
    children: tuple[Node, ...]

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        outcomes = FALSE
        for child in self.children:
            outcomes = _OR[outcomes][child.outcomes(bounds)]
        return outcomes

    def values_of(self, column: str) -> frozenset[Any] | None:
        value_sets = [child.values_of(column) for child in self.children]
        if any(values is None for values in value_sets):
            return None
        return frozenset[Any]().union(*(values for values in value_sets if values is not None))

    def columns(self) -> frozenset[str]:
        return frozenset[str]().union(*(child.columns() for child in self.children))


@dataclass(frozen=True, slots=True)
class IsNull:
    column: str

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        column_bounds = bounds.get(self.column, UNKNOWN_BOUNDS)
        return (TRUE if column_bounds.may_be_null else 0) | (FALSE if column_bounds.may_have_value else 0)

    def values_of(self, column: str) -> frozenset[Any] | None:
        return frozenset([None]) if column == self.column else None

    def columns(self) -> frozenset[str]:
        return frozenset([self.column])


@dataclass(frozen=True, slots=True)
class Compare:
    """``column operator value`` with ``= < <= > >= <=> STARTS_WITH ENDS_WITH CONTAINS``, never against null."""

    operator: str
    column: str
    value: Any

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        column_bounds = bounds.get(self.column, UNKNOWN_BOUNDS)
        of_null = FALSE if self.operator == "<=>" else NULL
        possible = of_null if column_bounds.may_be_null else 0
        if column_bounds.may_have_value:
            possible |= _compare_outcomes(self.operator, column_bounds, to_comparable(self.value))
        return possible

    def values_of(self, column: str) -> frozenset[Any] | None:
        return frozenset([self.value]) if column == self.column and self.operator in ("=", "<=>") else None

    def columns(self) -> frozenset[str]:
        return frozenset([self.column])


@dataclass(frozen=True, slots=True)
class OfNumbers:
    """A comparison that NaN never satisfies, as in Arrow."""

    child: Compare

    def outcomes(self, bounds: Mapping[str, Bounds]) -> int:
        column_bounds = bounds.get(self.child.column, UNKNOWN_BOUNDS)
        of_numbers = self.child.outcomes({self.child.column: replace(column_bounds, may_be_nan=False)})
        return of_numbers | (FALSE if column_bounds.may_have_value else 0)

    def values_of(self, column: str) -> frozenset[Any] | None:
        return self.child.values_of(column)

    def columns(self) -> frozenset[str]:
        return self.child.columns()


@dataclass(frozen=True, slots=True)
class In:
    column: str
    values: tuple[Any, ...]
    """The values without null, for which ``has_null`` stands."""
    has_null: bool
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
        of_null = NULL if self.values or self.has_null else NULL | FALSE  # for an empty list, a Spark setting decides
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

    def columns(self) -> frozenset[str]:
        return frozenset([self.column])


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
    """Return the possible outcomes of a prefix test.

    Texts with the prefix are contiguous in the order, starting with the prefix itself.
    """
    is_below = high is not None and high < prefix
    is_above = low is not None and low > prefix and not low.startswith(prefix)
    all_inside = low is not None and high is not None and low.startswith(prefix) and high.startswith(prefix)
    return (0 if is_below or is_above else TRUE) | (0 if all_inside else FALSE)


def _ends_with(low: Any, high: Any, suffix: str) -> int:
    if low is None or low != high:
        return TRUE | FALSE
    return TRUE if low.endswith(suffix) else FALSE


def _contains(low: Any, high: Any, part: str) -> int:
    if low is None or low != high:
        return TRUE | FALSE
    return TRUE if part in low else FALSE


_INTERVALS = {
    "=": _equals,
    "<=>": _equals,
    "<": _less,
    "<=": _less_or_equal,
    ">": lambda low, high, value: _invert_outcomes(_less_or_equal(low, high, value)),
    ">=": lambda low, high, value: _invert_outcomes(_less(low, high, value)),
    "STARTS_WITH": _starts_with,
    "ENDS_WITH": _ends_with,
    "CONTAINS": _contains,
}


def _compare_outcomes(operator: str, bounds: Bounds, value: Any) -> int:
    """Return the outcomes of comparing non-null values with a `to_comparable` value."""
    possible = _INTERVALS[operator](bounds.low, bounds.high, value)
    return possible | _INTERVALS[operator](_NAN, _NAN, value) if bounds.may_be_nan else possible


def may_match(node: Node, bounds: Mapping[str, Bounds]) -> bool:
    """Return False only if the filter is true for no row within the bounds."""
    try:
        return bool(node.outcomes(bounds) & TRUE)
    except (RecursionError, TypeError):
        return True
