"""Logical plan of a view's query. Pure.

Column names are unique in the whole plan, so the SQL of a node can be nested anywhere in the SQL of another.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.views.ivm.dialect import print_sql


class UnsupportedQueryError(Exception):  # callers raise it as InvalidOptionError with the view's name
    """A part of a query that cannot be maintained incrementally, with the reason."""

    def __init__(self, why: str, part: exp.Expr | str) -> None:
        text = part if isinstance(part, str) else print_sql(part)
        super().__init__(f"{why}: {text[:200]}")


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """Columns and constraints of a source, as far as a plan needs them."""

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
    """Columns that are unique in the bag, with NULL equal to NULL; None if unknown."""
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
    """Whether a column is a CHAR of different lengths in the two parts. Spark pads comparisons with it as in the first
    part."""
    key: None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A GROUP BY with its select list. Without grouping columns it always returns one row, even over no rows."""

    child: Node
    groups: tuple[str, ...]
    """The grouping columns of the child."""
    exprs: Mapping[str, exp.Expr]
    """Name of a selected column → its expression over the child, with aggregates."""
    having: exp.Expr | None
    key: tuple[str, ...] | None
    not_null: frozenset[str]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.exprs)


Node = Scan | FilterProject | Join | Union | Group


def source_tables(node: Node) -> frozenset[str]:
    """Return the sources that a node reads."""
    match node:
        case Scan(table):
            return frozenset({table})
        case FilterProject() | Group():
            return source_tables(node.child)
        case Join():
            return source_tables(node.left) | source_tables(node.right)
        case Union(parts):
            return frozenset().union(*map(source_tables, parts))
