"""Spark's types where plan columns of two types meet. Pure.

A type is Spark's text, with the length of a CHAR or VARCHAR.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from streamhouse_spark.views.ivm.logical_plan import Node

TypesOf = Callable[[Node], Mapping[str, str]]
"""Returns the column types of a node, as Spark analyses it."""
_INTEGERS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
"""Integer types, with the precision of the DECIMAL that Spark compares them as."""
_DECIMAL_DIGITS_MAX: Final = 38
_EXACT_AS: Final = {
    "float": {"tinyint", "smallint", "double"},
    "double": {"tinyint", "smallint", "int", "float"},
    "date": {"timestamp", "timestamp_ntz"},
    "timestamp_ntz": {"date", "timestamp"},
    "string": {*_INTEGERS, "date", "timestamp", "timestamp_ntz", "boolean"},
}
"""Type → other types whose values stay distinct in a comparison with it. A time zone may skip a DATE."""


def strip_length(kind: str) -> str:
    """Return the type in which Spark computes: CHAR and VARCHAR become STRING."""
    return "string" if kind.startswith(("char(", "varchar(")) else kind


def char_padding(kind: str) -> str | None:
    """Return the CHAR type to which Spark pads comparisons with a column; None if it pads nothing."""
    return kind if kind.startswith("char(") else None


def is_equal_as_in(kind: str, other: str) -> bool:
    """Return whether ``=`` compares two types like IN with a subquery.

    IN pads no CHAR, and casts a STRING and another type to the type of their union.
    """
    are_texts = strip_length(kind) == "string", strip_length(other) == "string"
    return are_texts[0] == are_texts[1] and char_padding(kind) is None and char_padding(other) is None


def stays_distinct(kind: str, other: str) -> bool:
    """Return whether a value of type ``other`` equals at most one key of type ``kind``.

    Spark casts one or both, by which '5' and '05' become one number. Keys that are -0.0 are stored as 0.0.
    """
    kind, other = strip_length(kind), strip_length(other)
    if kind == other:
        return True
    if kind in _INTEGERS and other in _INTEGERS:
        return True
    digits, other_digits = _decimal_digits(kind), _decimal_digits(other)
    if digits is not None and other_digits is not None:
        return max(digits[0], other_digits[0]) + max(digits[1], other_digits[1]) <= _DECIMAL_DIGITS_MAX
    return kind in _EXACT_AS.get(other, ())


def _decimal_digits(kind: str) -> tuple[int, int] | None:
    """Return the digits before and after the point; None for a type that is not exact."""
    if kind in _INTEGERS:
        return _INTEGERS[kind], 0
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    return (int(decimal[1]) - int(decimal[2]), int(decimal[2])) if decimal is not None else None
