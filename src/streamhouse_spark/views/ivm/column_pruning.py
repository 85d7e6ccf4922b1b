"""Column pruning of plans. Pure.

Without unused columns, changes of only those columns cancel out: such an update does not change the view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from sqlglot import exp

from streamhouse_spark.views.ivm.logical_plan import FilterProject, Group, Join, Node, Scan, Union


def prune_columns(root: Node) -> Node:
    """Return an equivalent plan whose nodes have only the columns that the nodes above need, but at least one."""
    return _prune_node(root, root.columns)


def _prune_node(node: Node, required: Collection[str]) -> Node:
    names = tuple(name for name in node.columns if name in required) or node.columns[:1]
    match node:
        case Scan(of=of):
            return replace(node, of={name: of[name] for name in names})
        case FilterProject(child, exprs, where):
            exprs = {name: exprs[name] for name in names}
            return replace(node, child=_prune_node(child, _referenced_columns([*exprs.values(), where])), exprs=exprs)
        case Join(left=left, right=right, on=on):
            needed = {*names, *_referenced_columns([on])}
            return replace(node, left=_prune_node(left, needed), right=_prune_node(right, needed))
        case Union(parts):
            places = [node.columns.index(name) for name in names]
            of_parts = [_prune_node(part, [part.columns[place] for place in places]) for part in parts]
            return replace(node, parts=tuple(of_parts), columns=names)
        case Group(child, groups, exprs, having):
            exprs = {name: exprs[name] for name in names}
            needed = {*groups, *_referenced_columns([*exprs.values(), having])}
            return replace(node, child=_prune_node(child, needed), exprs=exprs)


def _referenced_columns(expressions: Iterable[exp.Expr | None]) -> set[str]:
    """Return the names of the columns in some expressions."""
    defined = (expression for expression in expressions if expression is not None)
    return {column.name for expression in defined for column in expression.find_all(exp.Column)}
