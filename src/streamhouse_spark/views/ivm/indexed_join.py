"""Index lookups for the unchanged side of a join. Pure.

Suppose a join condition equates the whole primary key of one side with columns of the other, and only one source of
that other side changed. Then the changes of that source contain all needed keys, and a lookup of these keys replaces a
scan of the side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from sqlglot import exp

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.views.ivm.logical_plan import FilterProject, Group, Join, Node, Scan, Union


@dataclass(frozen=True, slots=True)
class IndexedSide:
    """One use of a source whose needed rows can be looked up by the keys in changes of another source."""

    table: str
    key: tuple[str, ...]
    """Its primary key."""
    columns: tuple[str, ...]
    """Its columns that the plan reads."""
    changed: str
    """The source whose changes contain the keys."""
    lookup_columns: tuple[str, ...]
    """Columns of that source, in the order of the key."""


def scan_name(scan: Scan) -> str:
    """Return the name of a use of a source: its first column, which is unique in the plan."""
    return next(iter(scan.of))


def single_scan(node: Node) -> Scan | None:
    """Return the scan below filters and projections; None for any other node."""
    while isinstance(node, FilterProject):
        node = node.child
    return node if isinstance(node, Scan) else None


def find_indexed_sides(
    root: Node, changed: Collection[str], keys: Mapping[str, tuple[str, ...]]
) -> dict[str, IndexedSide]:
    """Return the uses of sources that can be looked up by key, by `scan_name`.

    ``keys`` maps each source that supports lookups to its primary key.
    """
    sides = {}
    for join in _iter_joins(root):
        for side, other in ((join.left, join.right), (join.right, join.left)):
            scan = single_scan(other)
            if scan is None or not (key := keys.get(scan.table)):
                continue
            changed_scans = [sides for sides in iter_scans(side) if sides.table in changed]
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
    for part in on.flatten() if isinstance(on, exp.And) else [on]:
        equal = part.unnest()
        if isinstance(equal, exp.EQ) and isinstance(equal.this, exp.Column):
            left, right = equal.this.name, equal.expression.name
            if isinstance(equal.expression, exp.Column):
                pairs = ((left, right), (right, left))
                yield from ((a, b) for a, b in pairs if a in side.columns and b in other.columns)


def _iter_joins(node: Node) -> Iterator[Join]:
    match node:
        case FilterProject() | Group():
            yield from _iter_joins(node.child)
        case Join():
            yield node
            yield from _iter_joins(node.left)
            yield from _iter_joins(node.right)
        case Union(parts):
            for part in parts:
                yield from _iter_joins(part)


def iter_scans(node: Node) -> Iterator[Scan]:
    """Yield all scans at or below a node."""
    match node:
        case Scan():
            yield node
        case FilterProject() | Group():
            yield from iter_scans(node.child)
        case Join():
            yield from iter_scans(node.left)
            yield from iter_scans(node.right)
        case Union(parts):
            for part in parts:
                yield from iter_scans(part)


def _resolve_origin(node: Node, name: str) -> tuple[Scan, str] | None:
    """Return the scan and the source column behind a column; None if an expression lies in between."""
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
