"""Random views whose expressions are calls of Spark's own functions, beside Spark's answer.

Each function that Spark documents with an example is called as in its example, in which columns and texts with quotes,
backslashes and Unicode take the place of some arguments. A view keeps the call, or rejects it by its name.
"""

from __future__ import annotations

import collections
import datetime as dt
import functools
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from pyspark.errors import PySparkException

from spark.typed_views import NAN, VALUES, TypedHistory
from streamhouse_spark.views.ivm.logical_plan import UnsupportedQueryError
from streamhouse_spark.views.ivm.query_parser import has_aggregate, parse_query, require_deterministic

COLUMNS: Mapping[str, str] = {
    "i": "INT",
    "l": "BIGINT",
    "d": "DECIMAL(12,4)",
    "f": "DOUBLE",
    "s": "STRING",
    "c": "CHAR(4)",
    "t": "DATE",
    "m": "TIMESTAMP",
    "n": "TIMESTAMP_NTZ",
    "y": "BINARY",
    "o": "BOOLEAN",
}
"""The columns of both tables, besides a key of the same name."""
NUMBERS, TEXTS, MOMENTS = ("i", "l", "d", "f"), ("s", "c"), ("t", "m", "n")
TEXT_LITERALS = (
    "'O''Brien'",
    r"'O\'Brien'",
    '"say ""hi"""',
    r"'a\\b'",
    r"'\u00e9'",
    "'straße'",
    "'日本'",
    "'😀'",
    "r'a\\d'",
    "''",
    "' 5 '",
    "'%_'",
    "'2026-03-08'",
    r"'a\nb'",
)
NUMBER_LITERALS = ("0", "-1", "3", "10L", "1.5", "1.5BD", "2.5D", "1e2", "7S", "1Y", "0.30")
OPERATORS = ("+", "-", "*", "/", "%", "DIV", "=", "<=>", "<>", "<", ">=", "||", "&", "|", "^")
CONDITIONS = ("{} IS NOT NULL", "{} LIKE '%a%'", "{} IN ({}, {})", "{} BETWEEN {} AND {}", "NOT ({} <=> {})", "{} > {}")
_LITERAL = re.compile(
    r"(?P<fixed>\b(?:DATE|TIMESTAMP|TIMESTAMP_NTZ|INTERVAL|X)\s*'[^']*')"
    r"|(?P<text>'(?:[^'\\]|\\.)*')|(?P<number>(?<![\w.'])-?\d+(?:\.\d+)?(?![\w.]))|(?P<column>\bcol\b)"
)
_EXAMPLE = re.compile(r"^\s*> SELECT (.*?);\s*$", re.MULTILINE)


class FunctionHistory(TypedHistory):
    """Two tables with a column of each type, and views of random calls of functions and operators over them."""

    values: Mapping[str, list[Any]] = {
        **VALUES,
        **{kind: [0, 1, 5, -7, 100] for kind in ("INT", "BIGINT")},  # texts are repeated so often
        "DOUBLE": [0.0, -0.0, 1.5, 5.0, NAN, 0.1, -2.5],
        "STRING": ["O'Brien", 'say "hi"', "a\\b", "é", "e\u0301", "日本", "😀", "", " 5 ", "5", "2026-03-08", "A,b;c"],
        "CHAR(4)": ["a", "é", "5", "'", "\\"],
        "DECIMAL(12,4)": [Decimal("-1.5000"), *VALUES["DECIMAL(12,4)"]],
        "TIMESTAMP": [*VALUES["TIMESTAMP"], dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)],
    }

    def _some_columns(self, _types: tuple[str, str] | None) -> dict[str, dict[str, str]]:
        return {"a": {"id": "BIGINT", **COLUMNS}, "b": {"id": "BIGINT", **COLUMNS}}

    def _some_queries(self) -> Sequence[str]:
        return [self._query() for _ in range(4)]

    def _query(self) -> str:
        plain = self._calls(3, aggregates=False)
        shown = ", ".join(f"{call} AS e{number}" for number, call in enumerate(plain))
        condition = f"{self._rng.choice(CONDITIONS).format(*plain)}"
        match self._rng.randint(0, 4):
            case 0:
                query = f"SELECT id, {shown} FROM A"
            case 1:
                query = f"SELECT id, {plain[0]} AS e FROM A WHERE {condition}"
            case 2:
                query = f"SELECT {plain[0]} AS e FROM A UNION ALL SELECT {plain[1]} FROM B"
            case 3:
                on = "x.i = y.id AND x.e0 <=> y.e0"
                sides = (f"(SELECT id, i, {plain[0]} AS e0 FROM {name})" for name in "AB")
                query = "SELECT x.id AS a, y.id AS b, x.e0 AS e FROM {} x LEFT JOIN {} y ON ".format(*sides) + on
            case _:
                folds = self._calls(2, aggregates=True)
                shown = ", ".join(f"{call} AS g{number}" for number, call in enumerate(folds))
                query = f"SELECT {plain[0]} AS e, count(*) AS c, {shown} FROM A GROUP BY {plain[0]}"
        escaped = query.replace("{", "{{").replace("}", "}}")
        return re.sub(r"\b(FROM|JOIN) ([AB])\b", lambda found: f"{found[1]} {{{found[2].lower()}}}", escaped)

    def _calls(self, number: int, *, aggregates: bool) -> list[str]:
        """Return calls that Spark takes, and that views keep unless the whole query prevents it."""
        calls: list[str] = []
        while len(calls) < number:
            call = self._call(aggregates=aggregates)
            query = f"SELECT {call} AS e FROM streamhouse.{self._tables['a'].name}"
            try:
                expression = parse_query(query).selects[0].unalias()
                require_deterministic(expression)
                if has_aggregate(expression) != aggregates:
                    continue
                self._spark.sql(query).schema  # noqa: B018 - Connect analyses it here
            except UnsupportedQueryError as error:
                self.refused[str(error).partition(":")[0]] += 1
            except PySparkException:
                continue
            else:
                calls.append(call)
        return calls

    @functools.cached_property
    def refused(self) -> collections.Counter[str]:
        """Why expressions are rejected, with their numbers."""
        return collections.Counter()

    def _call(self, *, aggregates: bool) -> str:
        if not aggregates and self._rng.random() < 0.3:
            return f"({self._argument()} {self._rng.choice(OPERATORS)} {self._argument()})"
        kinds = documented_calls(self._spark)
        return _LITERAL.sub(self._other_argument, self._rng.choice(kinds[aggregates]))

    def _argument(self) -> str:
        literals = self._rng.choice([NUMBER_LITERALS, TEXT_LITERALS])
        return self._rng.choice([self._rng.choice(list(COLUMNS)), self._rng.choice(literals)])

    def _other_argument(self, found: re.Match[str]) -> str:
        if found["column"]:
            return self._rng.choice(list(COLUMNS))
        if found["fixed"] or self._rng.random() < 0.5:
            return found[0]
        columns, literals = (NUMBERS, NUMBER_LITERALS) if found["number"] else (TEXTS + MOMENTS, TEXT_LITERALS)
        return self._rng.choice([self._rng.choice(columns), self._rng.choice(literals)])

    def _answer(self, query: str) -> collections.Counter[str]:
        """Sums of floating numbers depend on the order of rows in their last digits."""
        rows = self._spark.sql(query).collect()
        return collections.Counter(repr([_rounded(value) for value in row]) for row in rows)


def _rounded(value: Any) -> Any:
    if isinstance(value, float) and value and math.isfinite(value):
        return float(f"{value:.9g}")
    return value


@functools.cache
def documented_calls(spark: Any) -> tuple[list[str], list[str]]:
    """Return the examples of Spark's own pages: scalar functions, and aggregates."""
    jvm = spark.sparkContext._jvm
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    scalars, aggregates = [], []
    for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        info = registry.lookupFunction(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(row[0]))
        for example in _EXAMPLE.findall(info.get().getExamples() if info.isDefined() else ""):
            call, _, values = example.partition(" FROM VALUES ")
            if values:
                aggregates.append(call)
            else:
                scalars.append(call)
    return scalars, aggregates
