"""Running a query on both sides, and what is different."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spark.differential.queries import Query


class DifferenceError(AssertionError):
    """The two sides of a query are not the same; the text says all about it."""


@contextmanager
def configured(spark: Any, settings: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


class SparkDefectError(Exception):
    """Spark itself fails for any table of its kind: a predicate within ``<=>`` that is null asserts in its planner."""


def check(spark: Any, query: Query) -> int:
    """The number of rows that the query gives. Raises `DifferenceError`, `SparkDefectError`."""
    with configured(spark, query.settings):
        expected = _run(spark, query.on(catalog=False))
        sql = query.on(catalog=True)
        found = _run(spark, sql if query.any_rows is None else f"{sql} LIMIT {query.any_rows}")
        difference = _difference(query, expected, found)
        if difference is None:
            return len(found)
        raise DifferenceError(
            f"seed {query.seed // 100}, query {query.seed % 100}: {difference}\n"
            f"  settings: {query.settings}\n  catalog:  {sql}\n  copy:     {query.on(catalog=False)}\n"
            f"  replay:   make differential SEED={query.seed // 100}\n"
            f"{_plan(spark, sql)}\n{_plan(spark, query.on(catalog=False))}"
        )


def _run(spark: Any, sql: str) -> list[tuple[Any, ...]]:
    try:
        found = spark.sql(sql).toArrow()
    except Exception as error:
        if "V2ExpressionBuilder" in str(error) and "assertion failed" in str(error):
            raise SparkDefectError(sql) from error
        raise DifferenceError(f"{type(error).__name__}: {str(error)[:3000]}\n  query: {sql}") from error
    return [tuple(map(exact, row)) for row in zip(*(c.to_pylist() for c in found.columns), strict=True)]


def exact(value: Any) -> Any:
    """The value in a form that is equal only to itself, and can be a key."""
    if isinstance(value, float):
        return ("float", repr(value))
    if isinstance(value, list):
        return tuple(map(exact, value))
    if isinstance(value, dict):
        return tuple((key, exact(item)) for key, item in value.items())
    if isinstance(value, tuple):
        return tuple(map(exact, value))
    return value


def _difference(query: Query, expected: list[Any], found: list[Any]) -> str | None:
    if query.any_rows is not None:
        wanted = min(query.any_rows, len(expected))
        if len(found) != wanted:
            return f"LIMIT {query.any_rows} gave {len(found)} rows of {len(expected)}, expected {wanted}"
        strange = Counter(found) - Counter(expected)
        return f"rows that the copy does not have: {list(strange)[:5]}" if strange else None
    if query.has_sums:
        return _difference_of_sums(expected, found)
    missing, strange = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    if not missing and not strange:
        return None
    return (
        f"expected {len(expected)} rows, found {len(found)}\n  missing {sum(missing.values())}: {list(missing)[:3]}\n"
        f"  strange {sum(strange.values())}: {list(strange)[:3]}"
    )


def _difference_of_sums(expected: list[Any], found: list[Any]) -> str | None:
    if len(expected) != len(found):
        return f"expected {len(expected)} rows, found {len(found)}"
    for wanted, given in zip(sorted(expected, key=_order), sorted(found, key=_order), strict=True):
        if not _close(wanted, given):
            return f"expected {wanted}, found {given}"
    return None


def _order(row: tuple[Any, ...]) -> str:
    return repr(tuple(_rounded(value) for value in row))


def _rounded(value: Any) -> Any:
    if _is_float(value):
        number = float(value[1])
        return f"{number + 0.0:.6g}" if math.isfinite(number) else value[1]
    return tuple(map(_rounded, value)) if isinstance(value, tuple) else value


def _close(wanted: Any, given: Any) -> bool:
    if _is_float(wanted) and _is_float(given):
        a, b = float(wanted[1]), float(given[1])
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(wanted, tuple) and isinstance(given, tuple):
        return len(wanted) == len(given) and all(map(_close, wanted, given))
    return bool(wanted == given)


def _is_float(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and value[0] == "float"


def _plan(spark: Any, sql: str) -> str:
    return str(spark.sql(f"EXPLAIN FORMATTED {sql}").first()[0])
