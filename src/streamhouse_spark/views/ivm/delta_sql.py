"""SQL over Z-sets, generated from a plan: rows with a weight, +1 for an insert and −1 for a delete.

A node of the plan has rows at the old and at the new source versions, and a delta between them. A node over unchanged
sources has no delta, and its terms are omitted. Groups with changes are recomputed from their rows, so every aggregate
is correct under deletes.

An index lookup can replace a scan of the unchanged side of a join. This requires that the join condition equates that
side's whole primary key with columns of the other side, and that only one source of the other side changed. Then the
changes of that source contain all needed keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from sqlglot import exp

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.views.ivm.logical_plan import (
    FilterProject,
    Group,
    Join,
    Node,
    Scan,
    Union,
    iter_scans,
    print_sql,
    split_conjunction,
    walk,
)

WEIGHT: Final = "__streamhouse_weight"
ONE: Final = "__streamhouse_one"
"""Name of a placeholder column for rows that have no other columns."""
At = str
"""``old`` or ``new``, the source version; with suffix ``_by_`` and the `scan_name` for looked-up rows."""
_KINDS: Final = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "full": "FULL JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}


@dataclass(frozen=True, slots=True)
class IndexedSide:
    """A use of a source whose rows can be looked up by the keys in changes of another source."""

    table: str
    key: tuple[str, ...]
    """Primary key of the source."""
    columns: tuple[str, ...]
    """Columns of the source that the plan reads."""
    changed: str
    """The other source, whose changes contain the keys."""
    lookup_columns: tuple[str, ...]
    """Columns of ``changed`` that contain the keys, in the order of ``key``."""


def scan_name(scan: Scan) -> str:
    """Return the name of a scan: its first column, which is unique in the plan."""
    return next(iter(scan.of))


def single_scan(node: Node) -> Scan | None:
    """Return the scan below filters and projections, or None if there is another node."""
    while isinstance(node, FilterProject):
        node = node.child
    return node if isinstance(node, Scan) else None


def find_indexed_sides(
    root: Node, changed: Collection[str], keys: Mapping[str, tuple[str, ...]]
) -> dict[str, IndexedSide]:
    """Return `scan_name` → the use of a source whose rows can be looked up by key.

    ``keys`` maps each source that supports lookups to its primary key.
    """
    sides = {}
    for join in (node for node in walk(root) if isinstance(node, Join)):
        for side, other in ((join.left, join.right), (join.right, join.left)):
            scan = single_scan(other)
            if scan is None or not (key := keys.get(scan.table)):
                continue
            changed_scans = [changed_scan for changed_scan in iter_scans(side) if changed_scan.table in changed]
            key_columns = (
                _matching_key_columns(join.on, side, changed_scans[0], other, key) if len(changed_scans) == 1 else None
            )
            if key_columns is not None:
                columns = tuple(scan.of.values())
                sides[scan_name(scan)] = IndexedSide(scan.table, key, columns, changed_scans[0].table, key_columns)
    return sides


def _matching_key_columns(
    on: exp.Expr, side: Node, changed_scan: Scan, other: Node, key: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the columns of ``changed_scan`` that ``on`` equates with the whole key of ``other``, in the key's order.

    Returns None if ``on`` does not cover the key.
    """
    by_key = {}
    for mine, theirs in iter_equal_columns(on, side, other):
        source, column = _resolve_origin(side, mine), _resolve_origin(other, theirs)
        if source is not None and source[0] is changed_scan and column is not None:
            by_key[column[1]] = source[1]
    return tuple(by_key[name] for name in key) if all(name in by_key for name in key) else None


def iter_equal_columns(on: exp.Expr, side: Node, other: Node) -> Iterator[tuple[str, str]]:
    """Yield the pairs of columns of two nodes that a condition equates."""
    for part in split_conjunction(on):
        equal = part.unnest()
        if isinstance(equal, exp.EQ) and isinstance(equal.this, exp.Column):
            left, right = equal.this.name, equal.expression.name
            if isinstance(equal.expression, exp.Column):
                pairs = ((left, right), (right, left))
                yield from ((a, b) for a, b in pairs if a in side.columns and b in other.columns)


def _resolve_origin(node: Node, name: str) -> tuple[Scan, str] | None:
    """Return the scan and the source column from which a column is selected; None for a computed column."""
    match node:
        case Scan():
            return node, node.of[name]
        case FilterProject(child, exprs):
            expression = exprs[name]
            return _resolve_origin(child, expression.name) if isinstance(expression, exp.Column) else None
        case Join():
            return _resolve_origin(node.left if name in node.left.columns else node.right, name)
        case _:
            return None


def list_columns(columns: Sequence[str], of: str = "") -> str:
    return ", ".join(f"{of}{column}" for column in columns) or f"1 AS {ONE}"


def null_safe_equal(columns: Sequence[str], left: str, right: str) -> str:
    """Return the SQL condition that two rows have equal columns, with NULL equal to NULL."""
    return " AND ".join(f"{left}.{c} <=> {right}.{c}" for c in columns) or "TRUE"


def coalesce_tasks(rows: str, *, one_task: bool) -> str:
    """Return SQL of the rows. With ``one_task`` they are in one task, so that grouping them needs no shuffle."""
    return f"SELECT /*+ COALESCE(1) */ * FROM ({rows}) q" if one_task else rows


def quote_name(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


@dataclass(frozen=True, slots=True)
class DeltaSqlWriter:
    """Generates the SQL of nodes over the relations ``{prefix}{source}_old``, ``_new`` and ``_delta``."""

    prefix: str
    changed: Collection[str]
    """The sources that changed."""
    looked_up: Collection[str] = ()
    """`scan_name` of the scans whose matching rows were looked up into a relation, see `IndexedSide`."""

    def rows(self, node: Node, at: At) -> str:
        """Return the SQL of a node's rows at the old or the new versions."""
        match node:
            case Scan():
                return f"SELECT {_rename_columns(node)} FROM {self.prefix}{node.table}_{at}"
            case FilterProject(child, exprs, where):
                return f"SELECT {_select_list(exprs)} FROM ({self.rows(child, at)}) q{_where_clause(where)}"
            case Join(kind, left, right, on):
                words = f"{_KINDS[kind]} ({self.rows(right, at)}) r ON {print_sql(on)}"
                return f"SELECT {list_columns(node.columns)} FROM ({self.rows(left, at)}) l {words}"
            case Union(parts):
                return " UNION ALL ".join(f"({self._rename_part(part, node, self.rows(part, at))})" for part in parts)
            case Group():
                return self.groups(node, self.rows(node.child, at))

    def groups(self, node: Group, rows: str, *also: str) -> str:
        """Return the SQL of the groups of ``rows``. ``also`` are further expressions before the node's columns."""
        group = f" GROUP BY {list_columns(node.groups)}" if node.groups else ""
        having = f" HAVING {print_sql(node.having)}" if node.having is not None else ""
        return f"SELECT {', '.join([*also, _select_list(node.exprs)])} FROM ({rows}) q{group}{having}"

    def touched_groups(self, node: Group, *, one_task: bool = False) -> str | None:
        """Return the SQL of the groups that have changes, or None if no source of the node changed."""
        delta = self.delta(node.child)
        return (
            delta and f"SELECT DISTINCT {list_columns(node.groups)} FROM ({coalesce_tasks(delta, one_task=one_task)}) q"
        )

    def rows_of_groups(self, node: Group, at: At, touched: str, condition: str = "") -> str:
        """Return the SQL of the input rows of the ``touched`` groups. ``condition`` holds for all of them and prunes
        files.
        """
        rows = self.rows(node.child, at)
        if not node.groups:
            return rows
        if condition:
            rows = f"SELECT * FROM ({rows}) a WHERE {condition}"
        return f"SELECT a.* FROM ({rows}) a LEFT SEMI JOIN ({touched}) b ON {null_safe_equal(node.groups, 'a', 'b')}"

    def delta(self, node: Node) -> str | None:
        """Return the SQL of inserted and deleted rows with their weights, or None if no source of the node changed."""
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
        left, right, on = node.left, node.right, print_sql(node.on)
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
        """Return the SQL of a superset of the node's rows that can match changes of the join's other side."""
        scan = single_scan(node)
        name = scan_name(scan) if scan is not None else None
        return self.rows(node, f"{at}_by_{name}" if name in self.looked_up else at)

    def _match_changes(self, node: Join, a: Node, b: Node, a_delta: str | None, b_delta: str | None) -> list[str]:
        """Return the SQL terms for changes of the rows of ``a`` without a match in ``b``; for a semi join, with a
        match.

        Changed rows of ``a`` are tested against the new ``b``. Of the old rows of ``a``, only those that match a change
        of ``b`` can gain or lose their match.
        """
        on = print_sql(node.on)
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


def _union_all(terms: Sequence[str]) -> str | None:
    return " UNION ALL ".join(f"({term})" for term in terms) or None


def _where_clause(condition: exp.Expr | None) -> str:
    return "" if condition is None else f" WHERE {print_sql(condition)}"


def _select_list(exprs: Mapping[str, exp.Expr]) -> str:
    return ", ".join(f"{print_sql(e)} AS {name}" for name, e in exprs.items())


def _rename_columns(node: Scan) -> str:
    return ", ".join(f"{quote_name(column)} AS {name}" for name, column in node.of.items())
