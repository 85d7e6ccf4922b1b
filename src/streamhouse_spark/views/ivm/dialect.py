"""Spark SQL dialect for queries that are parsed, planned and printed again. Pure.

sqlglot maps functions of many databases to common ones and prints them in its own form, such as ``log10(x)`` as
``LOG(10, x)``. A view's query must keep the meaning that Spark gives it. So this dialect keeps function names,
arguments and literals, and escapes quotes like Spark. `views.query_analysis` verifies this for each query.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

_CLASS_FUNCTIONS: Final = ("SUM", "COUNT", "MIN", "MAX", "AVG", "COUNT_IF")
"""Functions that sqlglot parses into a class: the aggregates that views can maintain."""
_KEYWORD_FUNCTIONS: Final = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION", "OVERLAY")
"""Functions with keywords among their arguments."""
_UNIT_FUNCTIONS: Final = ("DATEADD", "DATE_ADD", "DATEDIFF", "DATE_DIFF", "TIMESTAMPADD", "TIMESTAMPDIFF")
_LITERAL_TYPES: Final = {
    exp.DType.DATE: "DATE",
    exp.DType.TIME: "TIME",
    exp.DType.TIMESTAMP: "TIMESTAMP",
    exp.DType.TIMESTAMPTZ: "TIMESTAMP",
    exp.DType.TIMESTAMPLTZ: "TIMESTAMP_LTZ",
    exp.DType.TIMESTAMPNTZ: "TIMESTAMP_NTZ",
}


class TypedLiteral(exp.Expression):
    """A literal after the name of its type, as in ``DATE'2026-01-01'``. Spark evaluates it when it parses the query."""

    arg_types: ClassVar = {"this": True, "kind": True}


class SuffixedNumber(exp.Expression):
    """A number with a type suffix, as in ``10L``. ``this`` is its text."""

    arg_types: ClassVar = {"this": True}


def _parse_unit_function(name: str, arguments: Sequence[exp.Expr]) -> exp.Expr:
    """Build a function whose first of three arguments is a unit of time rather than a column."""
    unit, *rest = arguments
    is_unit = len(arguments) == 3 and isinstance(unit, exp.Column)
    return exp.Anonymous(this=name, expressions=[exp.var(unit.name) if is_unit else unit, *rest])


def _parse_typed_literal(_parser: Any, this: exp.Expr, data_type: exp.DataType) -> exp.Expr:
    return TypedLiteral(this=this, kind=_LITERAL_TYPES[data_type.this])


class QueryDialect(Spark):
    """Spark's dialect, printing what it parsed as it was written."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar = ["\\", "'", '"']

    class Parser(SparkParser):
        FUNCTIONS: ClassVar = {
            **{name: make for name, make in SparkParser.FUNCTIONS.items() if name in _CLASS_FUNCTIONS},
            **{name: partial(_parse_unit_function, name) for name in _UNIT_FUNCTIONS},
        }
        FUNCTION_PARSERS: ClassVar = {
            name: parse for name, parse in SparkParser.FUNCTION_PARSERS.items() if name in _KEYWORD_FUNCTIONS
        }
        TYPE_LITERAL_PARSERS: ClassVar = {
            **SparkParser.TYPE_LITERAL_PARSERS,
            **dict.fromkeys(_LITERAL_TYPES, _parse_typed_literal),
        }

        def _parse_primary(self) -> exp.Expr | None:
            number, cast = self._curr, self._next
            if number and cast and number.token_type is TokenType.NUMBER and cast.start == number.start:
                text = self.sql[number.start : number.end + 1]  # the tokenizer split it into number, ``::`` and type
                self._advance(3)
                return SuffixedNumber(this=text)
            parsed: exp.Expr | None = super()._parse_primary()
            return parsed

    class Generator(SparkGenerator):
        TRANSFORMS: ClassVar = {
            **SparkGenerator.TRANSFORMS,
            TypedLiteral: lambda self, e: f"{e.args['kind']}{self.sql(e, 'this')}",
            SuffixedNumber: lambda _, e: str(e.this),
        }
        TYPE_MAPPING: ClassVar = {
            kind: name
            for kind, name in SparkGenerator.TYPE_MAPPING.items()
            if kind not in (exp.DType.CHAR, exp.DType.VARCHAR)
        }


def print_sql(expression: exp.Expr) -> str:
    """Return the text of an expression or a query, as Spark parses it."""
    return str(expression.sql(QueryDialect))
