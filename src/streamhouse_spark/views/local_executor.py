"""Incremental aggregation in the driver, without a Spark job, for few changes, plain columns and exact arithmetic.

It returns the same rows as `IncrementalAggregate.merge_sql`, computed with Arrow instead of Spark. Whatever might give
another result is left to Spark: floating-point numbers, expressions, conditions, overflows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from streamhouse_spark.core.arrow_rows import combine_chunks
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import is_beyond_python
from streamhouse_spark.views.ivm.aggregates import RECOMPUTE, Aggregate, IncrementalAggregate, Part, group_column
from streamhouse_spark.views.ivm.delta_sql import WEIGHT, iter_equal_columns, scan_name, single_scan
from streamhouse_spark.views.ivm.logical_plan import (
    FilterProject,
    Group,
    Join,
    Node,
    Scan,
    source_tables,
    split_conjunction,
)
from streamhouse_spark.views.ivm.refresh_sql import IS_DELETED, KEY

_SAME_TEXT_TYPES: Final = ("tinyint", "smallint", "int", "bigint", "string", "date", "boolean")
"""Types whose values have the same text in Arrow and in Spark."""
_SUM_MAX: Final = 1 << 62
ViewLookup = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class LocalInputs:
    """Rows that the driver has read for a refresh step."""

    changed: Collection[str]
    """The sources that changed."""
    changes: Mapping[str, pa.Table]
    """Source → its changes, with weights."""
    looked_up: Mapping[str, pa.Table]
    """`scan_name` of an unchanged source → its rows that match changes of other sources."""


def merge_aggregates(incremental: IncrementalAggregate, rows: LocalInputs, find_rows: ViewLookup) -> pa.Table | None:
    """Return the rows of `IncrementalAggregate.merge_sql`, or None if Spark must compute them.

    ``find_rows`` looks up rows of the view by key.
    """
    root = incremental.root
    if not _is_supported(incremental, root):
        return None
    try:
        delta = _compute_delta(root.child, rows)
        if delta is not None and not delta.num_rows:
            return pa.table({IS_DELETED: pa.array([], pa.bool_()), RECOMPUTE: pa.array([], pa.bool_())})
        return None if delta is None else _merge_groups(incremental, root, delta, find_rows)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # an overflow, or a type without this function
        return None


def _is_supported(incremental: IncrementalAggregate, root: Group) -> bool:
    """Return whether all columns of the view are grouping columns or aggregates of columns, with exact types."""
    types = incremental.statements.types
    if not root.groups or any(types[name] not in _SAME_TEXT_TYPES for name in root.groups):
        return False
    return all(_is_exact(part, root.exprs[name], types[name]) for name, part in incremental.parts.items())


def _is_exact(part: Part, expression: exp.Expr, kind: str) -> bool:
    if not isinstance(part, Aggregate):
        return isinstance(expression, exp.Column)
    if part.kind == "rows":
        return True
    is_of_column = isinstance(_argument(expression), exp.Column) and not isinstance(expression, exp.CountIf)
    is_float = part.kind in ("min", "max") and kind in ("float", "double")
    return is_of_column and part.kind != "float_sum" and not is_float


def _argument(expression: exp.Expr) -> exp.Expr:
    this: exp.Expr = expression.this
    return this.expressions[0] if isinstance(this, exp.Distinct) else this


# -- changes ----------------------------------------------------------------------------------------------------------


def _compute_delta(node: Node, rows: LocalInputs) -> pa.Table | None:
    """Return the inserted and deleted rows of a node with weights, or None for an unsupported plan."""
    match node:
        case Scan(table, of):
            delta = rows.changes.get(table)
            return None if delta is None else _rename_columns(delta, of, WEIGHT)
        case FilterProject(child):
            delta = _compute_delta(child, rows) if _is_column_projection(node) else None
            return None if delta is None else _project_columns(delta, node, WEIGHT)
        case Join(kind, left, right):
            changes = [bool(source_tables(side) & set(rows.changed)) for side in (left, right)]
            if changes == [True, False] and kind in ("inner", "left"):
                return _join_changes(node, left, right, rows)
            return _join_changes(node, right, left, rows) if changes == [False, True] and kind == "inner" else None
    return None


def _join_changes(join: Join, changed: Node, other: Node, rows: LocalInputs) -> pa.Table | None:
    """Join the changes of one side with the looked-up rows of the other side. Returns None for an unsupported join."""
    scan = single_scan(other)
    pairs = list(iter_equal_columns(join.on, changed, other))
    looked_up = rows.looked_up.get(scan_name(scan)) if scan is not None else None
    if looked_up is None or len(pairs) < len(split_conjunction(join.on)):  # there are other conditions
        return None
    delta, other_rows = _compute_delta(changed, rows), _project_rows(other, looked_up)
    if delta is None or other_rows is None:
        return None
    if any(pa.types.is_floating(delta.column(name).type) for name, _ in pairs):  # -0.0 and 0.0 have different bytes
        return None
    names = [f"__streamhouse_key_{number}" for number in range(len(pairs))]
    for name, (ours, theirs) in zip(names, pairs, strict=True):  # Spark compares integers of different types
        delta = delta.append_column(name, _widen_column(delta.column(ours)))
        other_rows = other_rows.append_column(name, _widen_column(other_rows.column(theirs)))
    kind = "left outer" if join.kind == "left" else "inner"
    return delta.join(other_rows, names, join_type=kind, use_threads=False).drop_columns(names)


def _widen_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.int64()) if pa.types.is_integer(column.type) else column


def _project_rows(node: Node, rows: pa.Table) -> pa.Table | None:
    if isinstance(node, Scan):
        return _rename_columns(rows, node.of)
    if not isinstance(node, FilterProject) or not _is_column_projection(node):
        return None
    child_rows = _project_rows(node.child, rows)
    return None if child_rows is None else _project_columns(child_rows, node)


def _is_column_projection(rows: FilterProject) -> bool:
    return rows.where is None and all(isinstance(expression, exp.Column) for expression in rows.exprs.values())


def _project_columns(rows: pa.Table, node: FilterProject, *also: str) -> pa.Table:
    return _rename_columns(rows, {name: expression.name for name, expression in node.exprs.items()}, *also)


def _rename_columns(rows: pa.Table, of: Mapping[str, str], *also: str) -> pa.Table:
    arrays = [rows.column(name) for name in (*of.values(), *also)]
    return pa.Table.from_arrays(arrays, names=[*of, *also])


# -- groups -----------------------------------------------------------------------------------------------------------


def _merge_groups(incremental: IncrementalAggregate, root: Group, delta: pa.Table, find_rows: ViewLookup) -> pa.Table:
    statements = incremental.statements
    groups = _group_changes(incremental, root, delta)
    if statements.identity == "hash":
        groups = groups.append_column(KEY, _hash_columns(groups, root.groups))
    keys = {name: groups.column(column) for name, column in incremental.key_columns.items()}
    stored_rows = find_rows(pa.table(keys))
    is_present = stored_rows.column(stored_rows.num_columns - 1)
    old = {column: stored_rows.column(name) for column, name in zip(root.columns, statements.names, strict=True)}
    new = {part.column: _NewValue.of(part, groups, old[part.column]) for part in incremental.aggregates}
    values = {
        name: new[name].result(new) if name in new else groups.column(root.exprs[name].name) for name in root.columns
    }
    remains = _compute_remains(groups.column("rows"), is_present, new)
    sure = pa.chunked_array([pa.repeat(pa.scalar(value=True), groups.num_rows)])
    for value_part in new.values():
        sure = pc.and_kleene(sure, value_part.is_known(new))
    recompute = pc.or_kleene(
        pc.is_null(remains), pc.and_kleene(remains, pc.invert(pc.fill_null(sure, fill_value=False)))
    )
    recompute = pc.fill_null(recompute, fill_value=True)
    is_deleted = pc.fill_null(pc.invert(remains), fill_value=False)
    shown = {name: values[column] for column, name in zip(root.columns, statements.names, strict=True)}
    by_group = {group_column(name): groups.column(name) for name in root.groups}
    rows = pa.table({**keys, **shown, IS_DELETED: is_deleted, RECOMPUTE: recompute, **by_group})
    same = is_present
    for name, value in values.items():
        both_null = pc.and_(pc.is_null(value), pc.is_null(old[name]))
        same = pc.and_(same, pc.or_(both_null, pc.fill_null(pc.equal(value, old[name]), fill_value=False)))
    absent = pc.and_(is_deleted, pc.invert(is_present))  # the group has no row before and after the changes
    return rows.filter(pc.or_(recompute, pc.invert(pc.or_(absent, pc.and_(same, pc.invert(is_deleted))))))


def _group_changes(incremental: IncrementalAggregate, root: Group, delta: pa.Table) -> pa.Table:
    """Return the changed groups with their aggregated changes, as in `IncrementalAggregate.changes_sql`."""
    weights = delta.column(WEIGHT)
    is_insert = pc.greater(weights, 0)
    columns, sums = {name: delta.column(name) for name in root.groups}, [("rows", "sum")]
    columns["rows"] = weights
    for part in incremental.aggregates:
        if part.kind == "rows":
            continue
        values = delta.column(_argument(root.exprs[part.column]).name)
        if part.kind == "sum":
            values = values.cast(_sum_type(part.type))
            _require_sum_fits(values)
        null = pa.scalar(None, values.type)
        if part.kind not in ("count", "distinct"):
            function = "sum" if part.kind == "sum" else part.kind
            columns[f"came_{part.column}"] = pc.if_else(is_insert, values, null)
            columns[f"gone_{part.column}"] = pc.if_else(is_insert, null, values)
            sums += [(f"came_{part.column}", function), (f"gone_{part.column}", function)]
        if part.kind in ("count", "sum"):
            columns[f"count_{part.column}"] = pc.if_else(pc.is_valid(values), weights, 0)
            sums.append((f"count_{part.column}", "sum"))
        if part.kind == "distinct":
            columns[f"count_{part.column}"] = pc.is_valid(values).cast(pa.int64())
            sums.append((f"count_{part.column}", "sum"))
    grouped = pa.table(columns).group_by(list(root.groups), use_threads=False).aggregate(sums)
    return grouped.rename_columns([*root.groups, *(name for name, _ in sums)])


def _require_sum_fits(values: pa.ChunkedArray) -> None:
    """Raise ``ArrowInvalid`` for integers whose sum may overflow."""
    if pa.types.is_integer(values.type) and len(values):
        ends = pc.min_max(values).as_py()
        largest = max(abs(ends["min"] or 0), abs(ends["max"] or 0))
        if largest * len(values) > _SUM_MAX:
            raise pa.ArrowInvalid("a sum may not fit")


def _sum_type(text: str) -> pa.DataType:
    if text == "bigint":
        return pa.int64()
    digits, _, scale = text.removeprefix("decimal(").removesuffix(")").partition(",")
    return pa.decimal128(int(digits), int(scale))


def _zero(kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(Decimal(0) if pa.types.is_decimal(kind) else 0, kind)


def _hash_columns(rows: pa.Table, columns: Collection[str]) -> pa.Array:
    """Compute the hash of `refresh_sql.hash_sql`. Raises ``ArrowInvalid`` for dates whose text differs in Spark."""
    parts = []
    for name in columns:
        if is_beyond_python(rows.column(name)):
            raise pa.ArrowInvalid("Arrow and Spark format this date differently")
        text = combine_chunks(rows.column(name)).cast(pa.string())
        encoded = pc.binary_join_element_wise(pc.utf8_length(text).cast(pa.string()), text, ":")
        parts.append(pc.if_else(pc.is_null(text), pa.scalar("n"), encoded))
    texts = pc.binary_join_element_wise(*parts, "") if len(parts) > 1 else parts[0]
    return pa.array([hashlib.sha256(text.encode()).hexdigest() for text in texts.to_pylist()], pa.string())


def _compute_remains(
    rows: pa.ChunkedArray, is_present: pa.ChunkedArray, new: Mapping[str, _NewValue]
) -> pa.ChunkedArray:
    """Return whether each group has source rows after the changes; null if unknown."""
    num_rows = next((aggregate.value for aggregate in new.values() if aggregate.part.kind == "rows"), None)
    if num_rows is not None:
        return _count_rows(num_rows)
    yes, no = pa.scalar(value=True), pa.scalar(None, pa.bool_())
    proven = pc.if_else(pc.greater_equal(rows, 0), yes, no)
    for aggregate in new.values():
        proven = pc.if_else(pc.fill_null(aggregate.is_nonempty(), fill_value=False), yes, proven)
    return pc.if_else(is_present, proven, _count_rows(rows))


def _count_rows(number: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.less(number, 0), pa.scalar(None, pa.bool_()), pc.greater(number, 0))


@dataclass(frozen=True, slots=True)
class _NewValue:
    """New value of an aggregate, computed like the SQL of `Aggregate`."""

    part: Aggregate
    old: pa.ChunkedArray
    value: pa.ChunkedArray
    deleted: pa.ChunkedArray | None = None
    count: pa.ChunkedArray | None = None

    @classmethod
    def of(cls, part: Aggregate, groups: pa.Table, old: pa.ChunkedArray) -> _NewValue:
        def column(name: str) -> pa.ChunkedArray:
            return groups.column(f"{name}_{part.column}")

        if part.kind in ("rows", "count"):
            increase = groups.column("rows") if part.kind == "rows" else column("count")
            return cls(part, old, pc.add_checked(pc.fill_null(old, 0), increase))
        if part.kind == "sum":
            kind = _sum_type(part.type)
            none = _zero(kind)
            of_old, inserted, deleted = (
                pc.fill_null(c.cast(kind), none) for c in (old, column("came"), column("gone"))
            )
            value = pc.subtract_checked(pc.add_checked(of_old, inserted).cast(kind), deleted).cast(kind)
            return cls(part, old, value, column("gone"), column("count"))
        if part.kind == "distinct":
            return cls(part, old, pc.fill_null(old, 0), count=column("count"))
        chosen = pc.min_element_wise if part.kind == "min" else pc.max_element_wise
        return cls(part, old, chosen(old, column("came").cast(old.type)), column("gone").cast(old.type))

    def result(self, new: Mapping[str, _NewValue]) -> pa.ChunkedArray:
        if self.part.kind != "sum":
            return self.value
        none = pa.scalar(None, self.value.type)
        counted = new[self.part.counted].value if self.part.counted else None
        left = self.value if counted is None else pc.if_else(pc.equal(counted, 0), none, self.value)
        return pc.if_else(pc.is_null(self.old), pc.if_else(pc.greater(self.count, 0), self.value, none), left)

    def is_known(self, new: Mapping[str, _NewValue]) -> pa.ChunkedArray:
        match self.part.kind:
            case "rows" | "count":
                return pc.greater_equal(self.value, 0)
            case "sum":
                only_inserts = pc.greater_equal(self.count, 0)
                is_known = pc.or_(only_inserts, self.is_nonempty())
                if self.part.counted:
                    is_known = pc.or_(is_known, pc.greater_equal(new[self.part.counted].value, 0))
                return pc.if_else(pc.is_null(self.old), only_inserts, is_known)
            case "distinct":
                return pc.equal(self.count, 0)
            case _:
                further = pc.greater if self.part.kind == "min" else pc.less
                is_further = pc.fill_null(further(self.deleted, self.value), fill_value=False)
                return pc.or_(pc.is_null(self.deleted), is_further)

    def is_nonempty(self) -> pa.ChunkedArray:
        match self.part.kind:
            case "rows" | "count":
                return pc.greater(self.value, 0)
            case "sum":
                return pc.not_equal(self.value, _zero(self.value.type))
            case "distinct":
                return pc.and_(self.is_known({}), pc.greater(self.value, 0))
            case _:
                return pc.and_(self.is_known({}), pc.is_valid(self.value))
