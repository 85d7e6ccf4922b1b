"""Incremental maintenance of GROUP BY views: new group rows from the view's old rows and the changes. Pure.

The view's own rows are the state. Counts and exact sums are added up; a minimum stays until a value as small is
deleted, and is then replaced from the cached first values (`streamhouse_spark.views.ivm.min_max`). A group whose new
row remains unknown is recomputed from the source.

Two statements do the work. The first aggregates the changes per group. The driver joins the view's old rows to them,
and the second statement computes the new rows with Spark's own arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.views.ivm.aggregate_functions import (
    ROWS,
    Aggregate,
    Part,
    old_name,
    plan_aggregates,
    result_column,
    state_column,
    value_name,
)
from streamhouse_spark.views.ivm.delta_sql import WEIGHT, Writer, coalesce_tasks, list_columns, quote_name
from streamhouse_spark.views.ivm.logical_plan import Group
from streamhouse_spark.views.ivm.refresh_sql import GONE, KEY, Statements, hash_sql

RECOMPUTE: Final = "__streamhouse_again"
"""Whether a group must be recomputed from its rows."""
EXISTS: Final = "__streamhouse_there"
"""Whether the view has a row of the group."""
HAS_TOP_K: Final = "__streamhouse_told"
"""Whether the cached values determine the group's minimum and maximum."""
GROUP_ROWS: Final = "__streamhouse_total"
"""The number of rows of a group, if the cache knows it."""
_REMAINS: Final = "__streamhouse_stays"
"""Whether the group has a row afterwards; NULL if unknown."""


def extreme_column(column: str) -> str:
    """Return the name of a minimum or maximum that comes from cached values, next to the changes."""
    return f"__streamhouse_told_{column}"


def group_column(column: str) -> str:
    """Return the name of a grouping column next to the view's columns."""
    return f"__streamhouse_group_{column}"


@dataclass(frozen=True, slots=True)
class IncrementalAggregate:
    """The statements of a view whose groups can be maintained incrementally."""

    statements: Statements
    parts: Mapping[str, Part]
    """Column of the plan → how to compute its new value."""

    @classmethod
    def of(cls, statements: Statements) -> IncrementalAggregate | None:
        """Return the statements; None for a view whose columns do not suffice for incremental maintenance."""
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
    def groups(self) -> tuple[str, ...]:
        """The grouping columns of `changes_sql`."""
        return self.root.groups

    @property
    def aggregates(self) -> list[Aggregate]:
        """The aggregates that the view stores directly."""
        return [part for part in self.parts.values() if isinstance(part, Aggregate)]

    @property
    def extremes(self) -> list[Aggregate]:
        """The MIN and MAX aggregates."""
        return [part for part in self.aggregates if part.kind in ("min", "max")]

    @property
    def multiset_aggregates(self) -> list[Aggregate]:
        """The aggregates whose new value may come from cached values of the groups."""
        return [part for part in self.aggregates if part.kind in ("min", "max", "distinct")]

    @property
    def key_columns(self) -> dict[str, str]:
        """Key column of the view's table → its column in `changes_sql`."""
        if self.statements.identity == "hash":
            return {KEY: KEY}
        by_name = dict(zip(self.statements.names, self.root.columns, strict=True))
        return {name: self.root.exprs[by_name[name]].name for name in self.statements.key_columns}

    def changes_sql(self, writer: Writer, *, one_task: bool = False) -> str | None:
        """Return the SQL of the changed groups with their aggregated changes; None if nothing below changed.

        ``one_task`` computes everything in one task: cheaper than a shuffle for few rows.
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

    def merge_sql(self, relation: str, *, has_top_k: bool = False) -> str:
        """Return the view's new rows: its columns, `GONE`, `RECOMPUTE`, and the groups as `group_column`.

        ``relation`` has the columns of `changes_sql`, `EXISTS`, and the view's old values as `old_name`. With
        ``has_top_k`` it also has the cached values as `extreme_column`, `HAS_TOP_K` and `GROUP_ROWS`. Unchanged rows
        are left out.
        """
        top_k_columns = {part.column for part in self.multiset_aggregates} if has_top_k else set()
        first, second = [], [f"{self._remains_sql(has_top_k=has_top_k)} AS {_REMAINS}"]
        for part in self.aggregates:
            value, is_known = part.value_sql(), part.is_known_sql()
            if part.column in top_k_columns:
                has_value = (
                    HAS_TOP_K
                    if part.kind != "distinct"
                    else f"({HAS_TOP_K} AND {extreme_column(part.column)} IS NOT NULL)"
                )
                value = f"CASE WHEN {has_value} THEN {extreme_column(part.column)} ELSE {value} END"
                is_known = f"({has_value} OR {is_known})"
            first.append(f"{value} AS {value_name(part.column)}")
            second.append(f"{is_known} AS {state_column(part.column)}")
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
        columns = [*key, *shown, f"COALESCE(NOT {_REMAINS}, FALSE) AS {GONE}", f"{recompute} AS {RECOMPUTE}", *groups]
        return f"SELECT {', '.join(columns)} FROM ({rows}) b WHERE NOT ({unchanged})"

    def _is_exact_sql(self) -> str:
        """Return the condition that all values of the group's new row are known."""
        computed = [part.is_exact_sql for part in self.parts.values() if not isinstance(part, Aggregate)]
        return " AND ".join([*(state_column(part.column) for part in self.aggregates), *computed]) or "TRUE"

    def _remains_sql(self, *, has_top_k: bool = False) -> str:
        """Return whether the group has a row afterwards; NULL if unknown. A group had a row if the view has one."""
        if not self.root.groups:
            return "TRUE"
        count_test = "CASE WHEN {0} > 0 THEN TRUE WHEN {0} = 0 THEN FALSE END"
        for part in self.aggregates:
            if part.kind == "rows":
                return count_test.format(value_name(part.column))
        proven = "".join(f" WHEN {part.nonempty_sql()} THEN TRUE" for part in self.aggregates)
        when_top_k = f"WHEN {HAS_TOP_K} THEN {GROUP_ROWS} > 0 " if has_top_k else ""
        return (
            f"CASE {when_top_k}WHEN NOT {EXISTS} THEN {count_test.format(ROWS)} WHEN {ROWS} >= 0 THEN TRUE{proven} END"
        )
