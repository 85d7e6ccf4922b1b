"""New rows of groups from the rows that a view has of them and from what came and went. Pure.

The view's own rows are the state: counts and exact sums are added up, a minimum stays while nothing as small went, and
where the first values of groups are kept the next one takes its place (`streamhouse_spark.views.ivm.min_max`). A group
of which that does not tell the new row is computed again from the source. Two statements do it. The first, over
the changes alone, gives for each group what came and what went. Beside these the driver puts the view's old rows, and
the second statement gives the new ones, with Spark's own arithmetic.
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
"""Whether a group has to be computed again from its rows."""
EXISTS: Final = "__streamhouse_there"
"""Whether the view has a row of the group."""
HAS_TOP_K: Final = "__streamhouse_told"
"""Whether the kept values of a group tell its smallest and largest ones."""
GROUP_ROWS: Final = "__streamhouse_total"
"""The number of rows of a group, where they tell it."""
_REMAINS: Final = "__streamhouse_stays"
"""Whether the group has a row now; NULL where that is not known."""


def extreme_column(column: str) -> str:
    """Return the name that a smallest or largest value has beside the changes, where kept values tell it."""
    return f"__streamhouse_told_{column}"


def group_column(column: str) -> str:
    """Return the name that a column which rows are grouped by has beside the view's columns."""
    return f"__streamhouse_group_{column}"


@dataclass(frozen=True, slots=True)
class IncrementalAggregate:
    """The statements of a view whose groups can be brought forward."""

    statements: Statements
    parts: Mapping[str, Part]
    """Column of the plan → how its new value is found."""

    @classmethod
    def of(cls, statements: Statements) -> IncrementalAggregate | None:
        """Return the statements; None for a view that does not show enough to be brought forward."""
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
        """The columns of `changes` that rows are grouped by."""
        return self.root.groups

    @property
    def aggregates(self) -> list[Aggregate]:
        """The aggregates that are added to."""
        return [part for part in self.parts.values() if isinstance(part, Aggregate)]

    @property
    def extremes(self) -> list[Aggregate]:
        """The aggregates that are a smallest or a largest value."""
        return [part for part in self.aggregates if part.kind in ("min", "max")]

    @property
    def multiset_aggregates(self) -> list[Aggregate]:
        """The aggregates whose new value may follow from kept values of the groups."""
        return [part for part in self.aggregates if part.kind in ("min", "max", "distinct")]

    @property
    def key_columns(self) -> dict[str, str]:
        """Key column of the view's table → its column in `changes`."""
        if self.statements.identity == "hash":
            return {KEY: KEY}
        of_name = dict(zip(self.statements.names, self.root.columns, strict=True))
        return {name: self.root.exprs[of_name[name]].name for name in self.statements.key_columns}

    def changes_sql(self, writer: Writer, *, one_task: bool = False) -> str | None:
        """Return the groups that changed, with what came and what went; None if nothing below changed.

        ``one_task`` computes all in one task: right for few rows, whose shuffle costs more than they do.
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
        """Return whether all values of the group's new row are known."""
        computed = [part.is_exact_sql for part in self.parts.values() if not isinstance(part, Aggregate)]
        return " AND ".join([*(state_column(part.column) for part in self.aggregates), *computed]) or "TRUE"

    def _remains_sql(self, *, has_top_k: bool = False) -> str:
        """Return whether the group has a row now; NULL where that is not known. A group had one where the view does."""
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
