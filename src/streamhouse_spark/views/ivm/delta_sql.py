"""SQL over Z-sets, generated from a plan: rows with a weight, +1 for an insert and −1 for a delete. Pure.

Each node has its rows at the old and at the new source versions, and its delta between the two. A node with no change
below it has no delta, and its terms are dropped. Touched groups are recomputed from their rows, so any aggregate is
correct under deletes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlglot import exp

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.views.ivm.dialect import print_sql
from streamhouse_spark.views.ivm.indexed_join import scan_name, single_scan
from streamhouse_spark.views.ivm.logical_plan import FilterProject, Group, Join, Node, Scan, Union

WEIGHT: Final = "__streamhouse_weight"
ONE: Final = "__streamhouse_one"
"""The column of rows that have no columns."""
At = str
"""``old`` or ``new``; followed by ``_by_`` and the `scan_name` for a source whose rows are looked up."""


def list_columns(columns: Sequence[str], of: str = "") -> str:
    return ", ".join(f"{of}{column}" for column in columns) or f"1 AS {ONE}"


def null_safe_equal(columns: Sequence[str], left: str, right: str) -> str:
    """Return the condition that two rows have equal columns, with NULL equal to NULL."""
    return " AND ".join(f"{left}.{c} <=> {right}.{c}" for c in columns) or "TRUE"


def coalesce_tasks(rows: str, *, one_task: bool) -> str:
    """Return the rows in one task if ``one_task`` is set, so that grouping them needs no shuffle."""
    return f"SELECT /*+ COALESCE(1) */ * FROM ({rows}) q" if one_task else rows


def quote_name(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the SQL of nodes. Its relations are ``{prefix}{source}_old``, ``_new`` and ``_delta``."""

    prefix: str
    changed: Collection[str]
    """The sources that changed."""
    looked_up: Collection[str] = ()
    """The uses of sources (`scan_name`) whose join partners were looked up into a relation: see `IndexedSide`."""

    def rows(self, node: Node, at: At) -> str:
        """Return the SQL of a node's rows at the old or the new versions."""
        match node:
            case Scan():
                return f"SELECT {_rename_columns(node)} FROM {self.prefix}{node.table}_{at}"
            case FilterProject(child, exprs, where):
                return f"SELECT {_select_list(exprs)} FROM ({self.rows(child, at)}) q{_where_clause(where)}"
            case Join(kind, left, right, on):
                words = f"{_KINDS[kind]} ({self.rows(right, at)}) r ON {_sql(on)}"
                return f"SELECT {list_columns(node.columns)} FROM ({self.rows(left, at)}) l {words}"
            case Union(parts):
                return " UNION ALL ".join(f"({self._rename_part(part, node, self.rows(part, at))})" for part in parts)
            case Group():
                return self.groups(node, self.rows(node.child, at))

    def groups(self, node: Group, rows: str, *also: str) -> str:
        """Return the SQL of the groups of ``rows``, preceded by further expressions over the grouping columns."""
        group = f" GROUP BY {list_columns(node.groups)}" if node.groups else ""
        having = f" HAVING {_sql(node.having)}" if node.having is not None else ""
        return f"SELECT {', '.join([*also, _select_list(node.exprs)])} FROM ({rows}) q{group}{having}"

    def touched_groups(self, node: Group, *, one_task: bool = False) -> str | None:
        """Return the SQL of the groups that changes touch; None if nothing below the node changed."""
        delta = self.delta(node.child)
        return (
            delta and f"SELECT DISTINCT {list_columns(node.groups)} FROM ({coalesce_tasks(delta, one_task=one_task)}) q"
        )

    def rows_of_groups(self, node: Group, at: At, touched: str, condition: str = "") -> str:
        """Return the child's rows of the ``touched`` groups. ``condition`` is implied by membership and prunes
        files.
        """
        rows = self.rows(node.child, at)
        if not node.groups:
            return rows
        if condition:
            rows = f"SELECT * FROM ({rows}) a WHERE {condition}"
        return f"SELECT a.* FROM ({rows}) a LEFT SEMI JOIN ({touched}) b ON {null_safe_equal(node.groups, 'a', 'b')}"

    def delta(self, node: Node) -> str | None:
        """Return the SQL of inserted and deleted rows with their weights; None if nothing below the node changed."""
        match node:
            case Scan():
                rows = f"SELECT {_rename_columns(node)}, {WEIGHT} FROM {self.prefix}{node.table}_delta"
                return rows if node.table in self.changed else None
            case FilterProject(child, exprs, where):
                delta = self.delta(child)
                return delta and f"SELECT {_select_list(exprs)}, {WEIGHT} FROM ({delta}) q{_where_clause(where)}"
            case Union(parts):
                deltas = [(part, self.delta(part)) for part in parts]
                if node.sizes_differ and not deltas[0][1] and deltas[1][1]:
                    none = f"SELECT *, 1 AS {WEIGHT} FROM ({self.rows(parts[0], 'new')}) q WHERE FALSE"
                    deltas[0] = (parts[0], none)
                return _union_all([self._rename_part(part, node, delta, WEIGHT) for part, delta in deltas if delta])
            case Group():
                return self._delta_of_groups(node)
            case Join():
                return self._delta_of_join(node)

    def _rename_part(self, part: Node, union: Union, rows: str, *also: str) -> str:
        names = [f"{c} AS {n}" for c, n in zip(part.columns, union.columns, strict=True)]
        return f"SELECT {', '.join([*names, *also])} FROM ({rows}) q"

    def _delta_of_groups(self, node: Group) -> str | None:
        touched = self.touched_groups(node)
        if touched is None:
            return None
        terms = []
        for at, weight in (("old", -1), ("new", 1)):
            groups = self.groups(node, self.rows_of_groups(node, at, touched))
            terms.append(f"SELECT {list_columns(node.columns)}, {weight} AS {WEIGHT} FROM ({groups}) q")
        return _union_all(terms)

    def _delta_of_join(self, node: Join) -> str | None:
        left, right, on = node.left, node.right, _sql(node.on)
        left_delta, right_delta = self.delta(left), self.delta(right)
        if not left_delta and not right_delta:
            return None
        cols = list_columns(node.columns)
        if node.kind == "left" and left_delta and not right_delta:  # a left join is linear in its left side
            return (
                f"SELECT {cols}, {WEIGHT} FROM ({left_delta}) l LEFT JOIN ({self._join_side(right, 'new')}) r ON {on}"
            )
        terms = []
        if node.kind in ("inner", "left", "full"):
            if left_delta:
                terms.append(
                    f"SELECT {cols}, {WEIGHT} FROM ({left_delta}) l JOIN ({self._join_side(right, 'old')}) r ON {on}"
                )
            if right_delta:
                terms.append(
                    f"SELECT {cols}, {WEIGHT} FROM ({self._join_side(left, 'new')}) l JOIN ({right_delta}) r ON {on}"
                )
        if node.kind != "inner":
            terms += self._match_changes(node, left, right, left_delta, right_delta)
        if node.kind == "full":
            terms += self._match_changes(node, right, left, right_delta, left_delta)
        return _union_all(terms)

    def _join_side(self, node: Node, at: At) -> str:
        """Return a superset of the node's rows that can match changes of the join's other side."""
        scan = single_scan(node)
        name = scan_name(scan) if scan is not None else None
        return self.rows(node, f"{at}_by_{name}" if name in self.looked_up else at)

    def _match_changes(self, node: Join, a: Node, b: Node, a_delta: str | None, b_delta: str | None) -> list[str]:
        """Return the changes of ``a``'s rows without a match in ``b``; for a semi join, of those with a match.

        Changed rows of ``a`` are tested against the new ``b``. Of the old rows, only those that match a change of ``b``
        can change sides.
        """
        on = _sql(node.on)
        cols = ", ".join(c if c in a.columns else f"NULL AS {c}" for c in node.columns)
        word = "LEFT SEMI JOIN" if node.kind == "semi" else "LEFT ANTI JOIN"
        old, new = self.rows(b, "old"), self.rows(b, "new")
        terms = []
        if a_delta:
            terms.append(f"SELECT {cols}, {WEIGHT} FROM ({a_delta}) l {word} ({self._join_side(b, 'new')}) r ON {on}")
        if b_delta:
            rows = (
                f"SELECT {list_columns(a.columns)} FROM ({self.rows(a, 'old')}) l LEFT SEMI JOIN ({b_delta}) r ON {on}"
            )
            terms.append(f"SELECT {cols}, 1 AS {WEIGHT} FROM ({rows}) l {word} ({new}) r ON {on}")
            terms.append(f"SELECT {cols}, -1 AS {WEIGHT} FROM ({rows}) l {word} ({old}) r ON {on}")
        return terms


_KINDS: Final = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "full": "FULL JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}


def _union_all(terms: Sequence[str]) -> str | None:
    return " UNION ALL ".join(f"({term})" for term in terms) or None


def _sql(expression: exp.Expr) -> str:
    return print_sql(expression)


def _where_clause(condition: exp.Expr | None) -> str:
    return "" if condition is None else f" WHERE {_sql(condition)}"


def _select_list(exprs: object) -> str:
    assert isinstance(exprs, dict)
    return ", ".join(f"{_sql(e)} AS {name}" for name, e in exprs.items())


def _rename_columns(node: Scan) -> str:
    return ", ".join(f"{quote_name(column)} AS {name}" for name, column in node.of.items())
