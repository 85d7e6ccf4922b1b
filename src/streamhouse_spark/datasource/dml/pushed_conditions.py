"""DELETE, and overwrites of a part of a table, by a condition that Spark pushes down completely.

DELETE of a log table is one record, without a Spark job. A condition is accepted if Arrow evaluates it exactly as Spark
does: comparisons of whole columns with constants, IN, null tests, and prefixes, suffixes and substrings, combined with
AND, OR and NOT. Floats support only equality and IN, because NaN and -0.0 order differently. CHAR(n) columns are
excluded, because Spark pads them.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.datasource.rpc_arguments import rows_path_of
from streamhouse_spark.datasource.scan.pushed_filters import parse_literal
from streamhouse_spark.datasource.scan.query_snapshot import QuerySnapshot, open_at_snapshot
from streamhouse_spark.datasource.write.replaced_part import ReplacedPart
from streamhouse_spark.dml.validation import require_deletable
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.expressions.filters import Filter
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.warehouse.process_cache import Connection

_COMPARISONS: Final[Mapping[str, Callable[[pc.Expression, pa.Scalar], pc.Expression]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FLIPPED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT_TESTS: Final[Mapping[str, Callable[[pc.Expression, str], pc.Expression]]] = {
    "STARTS_WITH": pc.starts_with,
    "ENDS_WITH": pc.ends_with,
    "CONTAINS": pc.match_substring,
}


def can_delete(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer whether `delete_where` accepts the conditions. Raises `InvalidOptionError` for a table without DELETE."""
    state = connection.table_by_uuid(str(rows_path_of(args, "delete from")), args["uuid"]).refresh()
    require_deletable(state)
    return {"can": build_condition(args["filters"], state.schema) is not None}


def delete_where(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Delete the rows of the loaded table that match all conditions. **Commit point:** one record."""
    table = connection.table_by_uuid(str(rows_path_of(args, "delete from")), args["uuid"])
    condition = build_condition(args["filters"], table.refresh().schema)
    if condition is None:
        raise InvalidOptionError(
            f"table {table.name}: its columns were altered since this DELETE was planned; run it again"
        )
    return {"rows": table.delete(where=Filter(condition, columns=filter_columns(args["filters"])))}


def filter_columns(trees: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the columns that accepted conditions reference."""
    of_children = (name for tree in trees for name in filter_columns(tree.get("children") or ()))
    return tuple(dict.fromkeys([*of_children, *(tree["column"][0] for tree in trees if tree.get("column"))]))


def build_condition(trees: Sequence[Mapping[str, Any]], schema: TableSchema) -> pc.Expression | None:
    """Return the expression that is true for exactly the rows that match all of Spark's conditions, or None if there is
    none.
    """
    types = {column.name: column.type for column in schema.columns if column.size is None}
    try:
        parts = [_build_expression(tree, types) for tree in trees]
    except RecursionError:
        return None
    supported_parts = [part for part in parts if part is not None]
    return reduce(operator.and_, supported_parts) if supported_parts and len(supported_parts) == len(parts) else None


def _build_expression(tree: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> pc.Expression | None:
    children = tree.get("children") or []
    match tree.get("op"):
        case "AND" | "OR" as joined:
            parts = [_build_expression(child, types) for child in children]
            supported_parts = [part for part in parts if part is not None]
            if not supported_parts or len(supported_parts) < len(parts):
                return None
            return reduce(operator.and_ if joined == "AND" else operator.or_, supported_parts)
        case "NOT" if len(children) == 1:
            negated = _build_expression(children[0], types)
            return None if negated is None else ~negated
        case "IS_NULL" | "IS_NOT_NULL" as test if len(children) == 1:
            name = _column_name(children[0], types)
            if name is None:
                return None
            return pc.field(name).is_null() if test == "IS_NULL" else pc.field(name).is_valid()
        case "<=>" if len(children) == 2:
            return _null_safe_equal(children[0], children[1], types)
        case "IN" if len(children) > 1:
            return _build_in(children, types)
        case str() as compared if compared in _COMPARISONS and len(children) == 2:
            return _compare_column(compared, children[0], children[1], types)
        case str() as test if test in _TEXT_TESTS and len(children) == 2:
            name, text = _column_name(children[0], types), children[1].get("literal")
            is_text = name is not None and types[name] == pa.string() and isinstance(text, str) and "\ufffd" not in text
            return _TEXT_TESTS[test](pc.field(name), text) if is_text else None
    return None


def _compare_column(
    compared: str, left: Mapping[str, Any], right: Mapping[str, Any], types: Mapping[str, pa.DataType]
) -> pc.Expression | None:
    if "literal" in left:
        left, right, compared = right, left, _FLIPPED[compared]
    name = _column_name(left, types)
    if name is None:
        return None
    if pa.types.is_floating(types[name]):
        return _equals_float(name, right, types[name]) if compared == "=" else None
    value = _parse_scalar(right, types[name])
    return None if value is None else _COMPARISONS[compared](pc.field(name), value)


def _equals_float(name: str, tree: Mapping[str, Any], column: pa.DataType) -> pc.Expression | None:
    """Return equality of a float column and a constant. As in Spark, NaN equals NaN and -0.0 equals 0.0."""
    value = None if tree.get("literal") is None else parse_literal(tree, column)
    if value is None:
        return None
    if math.isnan(value):
        return pc.field(name).is_nan()
    scalar = pa.scalar(value, column)
    return pc.field(name) == scalar if scalar.as_py() == value else None


def _null_safe_equal(
    left: Mapping[str, Any], right: Mapping[str, Any], types: Mapping[str, pa.DataType]
) -> pc.Expression | None:
    """Return a null-safe equality: null equals null, and the result is never null."""
    if "literal" in left:
        left, right = right, left
    name = _column_name(left, types)
    if name is not None and "literal" in right and right["literal"] is None:
        return pc.field(name).is_null()
    equal = _compare_column("=", left, right, types)
    return None if equal is None else pc.field(name).is_valid() & equal


def _build_in(children: Sequence[Mapping[str, Any]], types: Mapping[str, pa.DataType]) -> pc.Expression | None:
    """Return ``column IN (values)`` as an OR, so that null yields null, as in Spark."""
    name = _column_name(children[0], types)
    tests = [] if name is None else [_compare_column("=", children[0], member, types) for member in children[1:]]
    supported_tests = [test for test in tests if test is not None]
    return reduce(operator.or_, supported_tests) if supported_tests and len(supported_tests) == len(tests) else None


def _column_name(tree: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> str | None:
    """Return the name of a top-level column."""
    path = tree.get("column")
    return path[0] if path is not None and len(path) == 1 and path[0] in types else None


def _parse_scalar(tree: Mapping[str, Any], column: pa.DataType) -> pa.Scalar | None:
    """Return a constant in the column's type; None for null, floats and values that the type does not hold."""
    if tree.get("literal") is None or pa.types.is_floating(column):
        return None
    value = parse_literal(tree, column)
    if value is None:
        return None
    try:
        return pa.scalar(value, column)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None


def parse_overwrite_filter(connection: Connection, name: str, text: str) -> ReplacedPart:
    """Parse the part that Java describes. Raises `InvalidOptionError` for a condition that is not fully supported."""
    request = json.loads(text)
    read = None
    if "pin" in request:
        _, state = open_at_snapshot(connection, QuerySnapshot.from_text(request["pin"]))
        read = replace(ReadVersion.of(state), is_strict=True)
    if "filters" not in request:
        return ReplacedPart(read=read)
    condition = build_condition(request["filters"], connection.table(name).state.schema)
    if condition is None:
        raise InvalidOptionError(
            f"table {name}: the condition of the rows to replace is not fully supported; it may compare columns with "
            "constants (=, <>, <, <=, >, >=, IN, LIKE 'x%', IS NULL), combined with AND, OR and NOT, and floats only "
            "with = and IN; use MERGE, or DELETE and INSERT"
        )
    return ReplacedPart(Filter(condition, columns=filter_columns(request["filters"])), read)
