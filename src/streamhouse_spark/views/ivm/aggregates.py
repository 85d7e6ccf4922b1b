"""Incremental maintenance of GROUP BY views: SQL that computes new group rows from the view's rows and the changes.

The rows of the view are the state. Each new value is SQL over the old value and the inserted and deleted values. If
these do not determine the new value, for example because the minimum was deleted, the group is recomputed from its
source rows.

There are two statements. The first aggregates the changes per group. The driver joins the view's old rows to the
result. The second statement computes the new rows with Spark's arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from sqlglot import exp

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.views.ivm.delta_sql import WEIGHT, DeltaSqlWriter, coalesce_tasks, list_columns, quote_name
from streamhouse_spark.views.ivm.logical_plan import Group, print_sql
from streamhouse_spark.views.ivm.query_parser import has_aggregate
from streamhouse_spark.views.ivm.refresh_sql import IS_DELETED, KEY, RefreshStatements, hash_sql

ROWS: Final = "__streamhouse_rows"
"""Rows inserted into a group, minus rows deleted from it."""
_EXACT_MAX: Final = 1 << 53
"""Largest sum that is exact as BIGINT and also as DOUBLE, the type in which Spark accumulates an average."""
_DECIMAL_DIGITS_MAX: Final = 37
"""Maximum digits of a sum that cannot have overflowed. Without ANSI mode, an overflow is NULL."""
_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double"})
_ORDERED: Final = _NUMBERS | {"string", "date", "timestamp", "timestamp_ntz", "boolean"}
Kind = Literal["rows", "count", "sum", "float_sum", "min", "max", "distinct"]
RECOMPUTE: Final = "__streamhouse_again"
"""Whether a group must be recomputed from its rows."""
EXISTS: Final = "__streamhouse_there"
"""Whether the view has a row of the group."""
_REMAINS: Final = "__streamhouse_stays"
"""Whether the group has a row afterwards; NULL if unknown."""


def old_name(column: str) -> str:
    """Return the name under which the view's old value of a column is joined to the changes."""
    return f"__streamhouse_old_{column}"


def value_name(column: str) -> str:
    return f"__streamhouse_value_{column}"


def result_column(column: str) -> str:
    return f"__streamhouse_shown_{column}"


def state_column(column: str) -> str:
    return f"__streamhouse_known_{column}"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A column of the plan that is an aggregate of the group."""

    column: str
    kind: Kind
    """``float_sum`` is a sum of floating-point numbers, which is exact only without deletes. ``distinct`` is
    COUNT(DISTINCT), which is known only if no non-null value was inserted or deleted.
    """
    of: str
    """The argument as SQL; empty for COUNT(*)."""
    type: str
    counted: str | None = None
    """The view's column that counts the values of the argument; None if the view has no such column."""

    @property
    def _old(self) -> str:
        return old_name(self.column)

    @property
    def _inserted(self) -> str:
        return f"__streamhouse_came_{self.column}"

    @property
    def _deleted(self) -> str:
        return f"__streamhouse_gone_{self.column}"

    @property
    def _count(self) -> str:
        return f"__streamhouse_count_{self.column}"

    def change_columns(self) -> list[str]:
        """Return SQL columns that aggregate the inserted values and the deleted values."""
        inserted, deleted = (f"CASE WHEN {WEIGHT} {sign} 0 THEN {self.of} END" for sign in "><")
        count = f"COALESCE(SUM(CASE WHEN ({self.of}) IS NOT NULL THEN {WEIGHT} ELSE 0 END), 0) AS {self._count}"
        match self.kind:
            case "rows":
                return []
            case "count":
                return [count]
            case "sum":
                return [f"SUM({inserted}) AS {self._inserted}", f"SUM({deleted}) AS {self._deleted}", count]
            case "float_sum":
                return [f"SUM({inserted}) AS {self._inserted}", f"COUNT({deleted}) AS {self._deleted}"]
            case "min" | "max":
                return [f"{self.kind}({inserted}) AS {self._inserted}", f"{self.kind}({deleted}) AS {self._deleted}"]
            case "distinct":
                return [f"COUNT({self.of}) AS {self._count}"]

    def value_sql(self) -> str:
        """Return the SQL of the new value, valid if the condition `is_known_sql` holds. A sum without values is 0."""
        old, inserted, none = self._old, self._inserted, f"CAST(0 AS {self.type})"
        match self.kind:
            case "rows":
                return f"COALESCE({old}, 0L) + {ROWS}"
            case "count":
                return f"COALESCE({old}, 0L) + {self._count}"
            case "sum":
                increased = f"CAST(COALESCE({old}, {none}) + COALESCE({inserted}, {none}) AS {self.type})"
                return f"CAST({increased} - COALESCE({self._deleted}, {none}) AS {self.type})"
            case "float_sum":
                unless_null = f"WHEN {inserted} IS NULL THEN {old} ELSE {old} + {inserted} END"
                return f"CASE WHEN {old} IS NULL THEN {inserted} {unless_null}"
            case "min" | "max":
                return f"{'least' if self.kind == 'min' else 'greatest'}({old}, {inserted})"
            case "distinct":
                return f"COALESCE({old}, 0L)"

    def result_sql(self) -> str:
        """Return SQL of the value to store, computed from `value_sql`. A sum of no values becomes NULL."""
        value = value_name(self.column)
        if self.kind != "sum":
            return value
        none_left = f" WHEN {value_name(self.counted)} = 0 THEN NULL" if self.counted else ""
        return (
            f"CASE WHEN {self._old} IS NULL THEN (CASE WHEN {self._count} > 0 THEN {value} END)"
            f"{none_left} ELSE {value} END"
        )

    def is_known_sql(self) -> str:
        """Return the SQL condition under which the value of `result_sql` is correct."""
        value = value_name(self.column)
        match self.kind:
            case "rows" | "count":
                return f"{value} >= 0"
            case "sum":
                counted = f" WHEN {value_name(self.counted)} >= 0 THEN TRUE" if self.counted else ""
                return (
                    f"CASE WHEN {self._old} IS NULL THEN {self._count} >= 0 WHEN {self._count} >= 0 THEN TRUE"
                    f" WHEN {value} <> 0 THEN TRUE{counted} ELSE FALSE END"
                )
            case "float_sum":
                return f"{self._deleted} = 0"
            case "min" | "max":
                sign = ">" if self.kind == "min" else "<"
                return f"({self._deleted} IS NULL OR COALESCE({self._deleted} {sign} {value}, FALSE))"
            case "distinct":
                return f"{self._count} = 0"

    def nonempty_sql(self) -> str:
        """Return an SQL condition that is sufficient for the group to have a source row."""
        value = value_name(self.column)
        match self.kind:
            case "rows" | "count":
                return f"{value} > 0"
            case "sum":
                return f"{value} <> 0"
            case "float_sum" | "min" | "max":
                return f"{self.is_known_sql()} AND {value} IS NOT NULL"
            case "distinct":
                return f"{self.is_known_sql()} AND {value} > 0"


@dataclass(frozen=True, slots=True)
class DerivedColumn:
    """A column that is computed from grouping columns and from aggregates that the view stores."""

    sql: str
    is_exact_sql: str = "TRUE"
    """The condition under which the value equals Spark's result over the source rows."""


Part = Aggregate | DerivedColumn


def plan_aggregates(root: Group, types: Mapping[str, str]) -> dict[str, Part] | None:
    """Return how to maintain each column of a GROUP BY. Returns None if a column cannot be maintained. ``types`` are
    Spark's types.
    """
    base: dict[str, Aggregate] = {}
    for column, expression in root.exprs.items():
        aggregate = _parse_aggregate(column, expression, types[column], root)
        if aggregate is not None:
            base[column] = aggregate
    counts = {part.of: column for column, part in base.items() if part.kind == "count"}
    rows = next((column for column, part in base.items() if part.kind == "rows"), None)
    for column, part in base.items():
        if part.kind == "sum":
            row_count_column = rows if _is_not_null(root.exprs[column].this, root) else None
            base[column] = replace(part, counted=counts.get(part.of) or row_count_column)
    parts: dict[str, Part] = {}
    for column, expression in root.exprs.items():
        part_of = base.get(column) or _derived_column(expression, types[column], root, base)
        if part_of is None:
            return None
        parts[column] = part_of
    return parts


def _parse_aggregate(column: str, expression: exp.Expr, kind: str, root: Group) -> Aggregate | None:
    this = expression.this if isinstance(expression, exp.AggFunc) else None
    if this is None or expression.args.get("expressions"):
        return None
    if isinstance(this, exp.Distinct):
        is_count_of_one = isinstance(expression, exp.Count) and len(this.expressions) == 1 and not this.args.get("on")
        return Aggregate(column, "distinct", print_sql(this.expressions[0]), kind) if is_count_of_one else None
    of = print_sql(this)
    match expression:
        case exp.Count():
            is_rows = isinstance(this, exp.Star | exp.Literal) or _is_not_null(this, root)
            return Aggregate(column, "rows" if is_rows else "count", "" if is_rows else of, kind)
        case exp.CountIf():
            return Aggregate(column, "count", f"CASE WHEN {of} THEN 1 END", kind)
        case exp.Sum() if kind == "bigint" or _decimal_digits(kind) in range(1, _DECIMAL_DIGITS_MAX + 1):
            return Aggregate(column, "sum", of, kind)
        case exp.Sum() if kind == "double":
            return Aggregate(column, "float_sum", of, kind)
        case exp.Min() | exp.Max() if kind in _ORDERED or _decimal_digits(kind):
            return Aggregate(column, "min" if isinstance(expression, exp.Min) else "max", of, kind)
    return None


def _derived_column(
    expression: exp.Expr, kind: str, root: Group, base: Mapping[str, Aggregate]
) -> DerivedColumn | None:
    if isinstance(expression, exp.Avg):
        return _derive_average(expression, kind, base)
    shown = {print_sql(root.exprs[column]): column for column in base}

    def replace_aggregate(node: exp.Expr) -> exp.Expr:
        column = shown.get(print_sql(node))
        return node if column is None else exp.column(result_column(column))

    replaced = expression.copy().transform(replace_aggregate)
    own = {*root.groups, *map(result_column, base)}
    if has_aggregate(replaced) or any(column.name not in own for column in replaced.find_all(exp.Column)):
        return None
    return DerivedColumn(f"({print_sql(replaced)})")


def _derive_average(expression: exp.Avg, kind: str, base: Mapping[str, Aggregate]) -> DerivedColumn | None:
    """Return an average of integers as sum divided by count, if the view stores the sum and the count."""
    of = print_sql(expression.this)
    total = next(
        (p for p in base.values() if p.kind == "sum" and p.of == of and p.type == "bigint" and p.counted), None
    )
    if total is None or kind != "double":
        return None
    value, count = value_name(total.column), value_name(total.counted or "")
    average = f"CASE WHEN {count} > 0 THEN CAST({value} AS DOUBLE) / {count} END"
    return DerivedColumn(average, f"{value} BETWEEN -{_EXACT_MAX} AND {_EXACT_MAX}")


def _is_not_null(expression: exp.Expr, root: Group) -> bool:
    return isinstance(expression, exp.Column) and expression.name in root.child.not_null


def _decimal_digits(kind: str) -> int:
    """Return the precision of a DECIMAL; 0 for another type."""
    return int(kind[len("decimal(") :].partition(",")[0]) if kind.startswith("decimal(") else 0


def group_column(column: str) -> str:
    """Return the name under which a grouping column is returned in addition to the view's columns."""
    return f"__streamhouse_group_{column}"


@dataclass(frozen=True, slots=True)
class IncrementalAggregate:
    """The statements of a view whose groups can be maintained incrementally."""

    statements: RefreshStatements
    parts: Mapping[str, Part]
    """Column of the plan → how to compute its new value."""

    @classmethod
    def of(cls, statements: RefreshStatements) -> IncrementalAggregate | None:
        """Return the statements, or None if the view's columns are not sufficient for incremental maintenance."""
        root = statements.root
        if not isinstance(root, Group) or root.having is not None or statements.identity == "bag":
            return None
        parts = plan_aggregates(root, statements.types)
        return None if parts is None else cls(statements, parts)

    @property
    def root(self) -> Group:
        """The plan of the view."""
        assert isinstance(self.statements.root, Group)
        return self.statements.root

    @property
    def aggregates(self) -> list[Aggregate]:
        """The aggregates that the view stores directly."""
        return [part for part in self.parts.values() if isinstance(part, Aggregate)]

    @property
    def key_columns(self) -> dict[str, str]:
        """Key column of the view's table → its column in `changes_sql`."""
        if self.statements.identity == "hash":
            return {KEY: KEY}
        by_name = dict(zip(self.statements.names, self.root.columns, strict=True))
        return {name: self.root.exprs[by_name[name]].name for name in self.statements.key_columns}

    def changes_sql(self, writer: DeltaSqlWriter, *, one_task: bool = False) -> str | None:
        """Return the SQL of the changed groups with their aggregated changes, or None if no source changed.

        ``one_task`` avoids a shuffle, which is cheaper for few rows.
        """
        root = self.root
        delta = writer.delta(root.child)
        if delta is None:
            return None
        key = f"{hash_sql(root.groups, self.statements.types)} AS {KEY}, " if self.statements.identity == "hash" else ""
        groups = f"{list_columns(root.groups)}, " if root.groups else ""
        columns = [f"COALESCE(SUM({WEIGHT}), 0) AS {ROWS}"]
        for part in self.aggregates:
            columns += part.change_columns()
        by = f" GROUP BY {list_columns(root.groups)}" if root.groups else ""
        return f"SELECT {key}{groups}{', '.join(columns)} FROM ({coalesce_tasks(delta, one_task=one_task)}) q{by}"

    def merge_sql(self, relation: str) -> str:
        """Return the SQL of the view's changed rows: its columns, `IS_DELETED`, `RECOMPUTE`, and each `group_column`.

        ``relation`` has the columns of `changes_sql`, `EXISTS`, and the view's old values as `old_name`.
        """
        first, second = [], [f"{self._remains_sql()} AS {_REMAINS}"]
        for part in self.aggregates:
            first.append(f"{part.value_sql()} AS {value_name(part.column)}")
            second.append(f"{part.is_known_sql()} AS {state_column(part.column)}")
            second.append(f"{part.result_sql()} AS {result_column(part.column)}")
        values = {
            column: result_column(column) if isinstance(part, Aggregate) else part.sql
            for column, part in self.parts.items()
        }
        rows = f"SELECT {', '.join(['*', *second])} FROM (SELECT {', '.join(['*', *first])} FROM {relation}) a"
        recompute = f"({_REMAINS} IS NULL OR ({_REMAINS} AND NOT COALESCE({self._is_exact_sql()}, FALSE)))"
        shown = [
            f"{values[c]} AS {quote_name(n)}" for c, n in zip(self.root.columns, self.statements.names, strict=True)
        ]
        key = [KEY] if self.statements.identity == "hash" else []
        groups = [f"{column} AS {group_column(column)}" for column in self.root.groups]
        same = " AND ".join(f"{value} <=> {old_name(column)}" for column, value in values.items())
        unchanged = f"NOT {recompute} AND (({_REMAINS} AND {EXISTS} AND {same}) OR (NOT {_REMAINS} AND NOT {EXISTS}))"
        columns = [
            *key,
            *shown,
            f"COALESCE(NOT {_REMAINS}, FALSE) AS {IS_DELETED}",
            f"{recompute} AS {RECOMPUTE}",
            *groups,
        ]
        return f"SELECT {', '.join(columns)} FROM ({rows}) b WHERE NOT ({unchanged})"

    def _is_exact_sql(self) -> str:
        """Return the SQL condition that all values of the group's new row are known."""
        computed = [part.is_exact_sql for part in self.parts.values() if not isinstance(part, Aggregate)]
        return " AND ".join([*(state_column(part.column) for part in self.aggregates), *computed]) or "TRUE"

    def _remains_sql(self) -> str:
        """Return SQL for whether the group has source rows after the changes; NULL if unknown.

        The group had source rows before the changes if the view has its row.
        """
        if not self.root.groups:
            return "TRUE"
        count_test = "CASE WHEN {0} > 0 THEN TRUE WHEN {0} = 0 THEN FALSE END"
        for part in self.aggregates:
            if part.kind == "rows":
                return count_test.format(value_name(part.column))
        proven = "".join(f" WHEN {part.nonempty_sql()} THEN TRUE" for part in self.aggregates)
        return f"CASE WHEN NOT {EXISTS} THEN {count_test.format(ROWS)} WHEN {ROWS} >= 0 THEN TRUE{proven} END"
