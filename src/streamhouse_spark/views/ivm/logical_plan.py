"""The plan of a query that is kept as a table. Pure.

Columns have names that are unique in the whole plan, so a node's SQL can stand anywhere in that of another.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.views.ivm.dialect import print_sql


class UnsupportedQueryError(Exception):  # it becomes an InvalidOptionError, with the name of the view
    """A part of a query that cannot be kept by changes, and why not."""

    def __init__(self, why: str, part: exp.Expr | str) -> None:
        text = part if isinstance(part, str) else print_sql(part)
        super().__init__(f"{why}: {text[:200]}")


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The facts about a source that a plan needs."""

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
    """Columns that are unique in the bag, nulls counting as equal; None where none are known."""
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
    """A join. A right join is a left join the other way round."""

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
    """All rows of both parts, whose columns have the same types."""

    parts: tuple[Node, ...]
    columns: tuple[str, ...]
    not_null: frozenset[str]
    sizes_differ: bool = False
    """Whether a text is a CHAR of other lengths in the parts: Spark pads what is compared with it as in the first."""
    key: None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A GROUP BY with what is selected of each group. Without groups there is one row always, also over no rows."""

    child: Node
    groups: tuple[str, ...]
    """The columns of the child that rows are grouped by."""
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
