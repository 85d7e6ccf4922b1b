"""Logical plan of a view's query, and the SQL dialect of its expressions.

Column names are unique in the whole plan, so the SQL of a node can be nested anywhere in the SQL of another node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from streamhouse_spark.core.lazy_dataclass import dataclass

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
    """A literal with a type prefix, such as ``DATE'2026-01-01'``. Spark evaluates it when it parses the query."""

    arg_types: ClassVar = {"this": True, "kind": True}


class SuffixedNumber(exp.Expression):
    """A number with a type suffix, such as ``10L``. ``this`` is its text."""

    arg_types: ClassVar = {"this": True}


def _parse_unit_function(name: str, arguments: Sequence[exp.Expr]) -> exp.Expr:
    """Build a function call. If there are three arguments, the first is a unit of time and not a column."""
    unit, *rest = arguments
    is_unit = len(arguments) == 3 and isinstance(unit, exp.Column)
    return exp.Anonymous(this=name, expressions=[exp.var(unit.name) if is_unit else unit, *rest])


def _parse_typed_literal(_parser: Any, this: exp.Expr, data_type: exp.DataType) -> exp.Expr:
    return TypedLiteral(this=this, kind=_LITERAL_TYPES[data_type.this])


class QueryDialect(Spark):
    """Spark's dialect, except that it prints parsed expressions in the form in which they were written."""

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


class UnsupportedQueryError(Exception):  # `reject_unsupported` converts it to `InvalidOptionError`
    """A part of a query cannot be maintained incrementally."""

    def __init__(self, why: str, part: exp.Expr | str) -> None:
        text = part if isinstance(part, str) else print_sql(part)
        super().__init__(f"{why}: {text[:200]}")


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """Columns and constraints of a source."""

    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    not_null: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Scan:
    """All rows of a source."""

    table: str
    of: Mapping[str, str]
    """Name in the plan → column of the table."""
    key: tuple[str, ...] | None
    """Columns whose values are unique, with NULL equal to NULL; None if unknown."""
    not_null: frozenset[str]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.of)


@dataclass(frozen=True, slots=True)
class FilterProject:
    """A projection and a filter: ``SELECT exprs FROM child WHERE where``."""

    child: Node
    exprs: Mapping[str, exp.Expr]
    where: exp.Expr | None
    key: tuple[str, ...] | None
    not_null: frozenset[str]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.exprs)


@dataclass(frozen=True, slots=True)
class Join:
    """A join. A right join is stored as a left join with its sides swapped."""

    kind: str
    """inner, left, full, semi or anti."""
    left: Node
    right: Node
    on: exp.Expr
    key: tuple[str, ...] | None
    not_null: frozenset[str]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.left.columns if self.kind in ("semi", "anti") else (*self.left.columns, *self.right.columns)


@dataclass(frozen=True, slots=True)
class Union:
    """UNION ALL of two parts whose columns have the same types."""

    parts: tuple[Node, ...]
    columns: tuple[str, ...]
    not_null: frozenset[str]
    sizes_differ: bool = False
    """Whether the two parts have CHAR columns of different lengths. For comparisons, Spark then pads the values to the
    length in the first part.
    """
    key: None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A GROUP BY with its select list. Without grouping columns it returns one row, even for no input rows."""

    child: Node
    groups: tuple[str, ...]
    """The grouping columns, which are columns of ``child``."""
    exprs: Mapping[str, exp.Expr]
    """Name of a selected column → its expression over ``child``, which may contain aggregates."""
    having: exp.Expr | None
    key: tuple[str, ...] | None
    not_null: frozenset[str]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.exprs)


Node = Scan | FilterProject | Join | Union | Group


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all nodes below it."""
    yield node
    match node:
        case FilterProject() | Group():
            yield from walk(node.child)
        case Join():
            yield from walk(node.left)
            yield from walk(node.right)
        case Union(parts):
            for part in parts:
                yield from walk(part)


def iter_scans(node: Node) -> Iterator[Scan]:
    """Yield all scans at or below a node."""
    return (scan for scan in walk(node) if isinstance(scan, Scan))


def source_tables(node: Node) -> frozenset[str]:
    """Return all sources that a node reads."""
    return frozenset(scan.table for scan in iter_scans(node))


def split_conjunction(condition: exp.Expr) -> list[exp.Expr]:
    return list(condition.flatten()) if isinstance(condition, exp.And) else [condition]
