"""Parse Spark's pushed filters from JSON to predicate trees. An unknown expression may match every row."""

from __future__ import annotations

import base64
import binascii
import decimal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from streamhouse_spark.expressions.predicates import (
    ALWAYS_TRUE,
    FALSE,
    NULL,
    TRUE,
    UNKNOWN,
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Node,
    Not,
    Or,
    family_of,
)
from streamhouse_spark.log.segments.metadata_columns import (
    BUCKET,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    LOG_OFFSET,
    ROW_ID,
)
from streamhouse_spark.schema.table_schema import TableSchema

METADATA_TYPES: Mapping[str, pa.DataType] = {
    f.name: f.type for f in (CHANGE_TYPE, BUCKET, LOG_OFFSET, COMMIT_VERSION, COMMIT_TIMESTAMP, ROW_ID)
}
_FLIPPED = {"=": "=", "<=>": "<=>", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT_OPERATORS = ("STARTS_WITH", "ENDS_WITH", "CONTAINS")
_FAMILIES = {
    **dict.fromkeys(("byte", "short", "integer", "long", "decimal"), "number"),
    **dict.fromkeys(("float", "double"), "float"),
    **{name: name for name in ("string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")},
}


def column_types(schema: TableSchema) -> dict[str, pa.DataType]:
    """Return name → type of the columns that a filter can reference."""
    return {**METADATA_TYPES, **{column.name: column.type for column in schema.columns}}


def comparable_types(schema: TableSchema) -> dict[str, pa.DataType]:
    """Return name → type of the columns that compare as stored. CHAR(n) is excluded, because Spark pads it."""
    return {**METADATA_TYPES, **{column.name: column.type for column in schema.columns if column.size is None}}


def parse_filters(filters: Iterable[Mapping[str, Any]], types: Mapping[str, pa.DataType]) -> Node:
    """Parse the conjunction of filters, for columns of these types. An unknown expression may match every row."""
    try:
        return And(tuple(_parse_node(tree, types) for tree in filters))
    except RecursionError:
        return UNKNOWN


def _parse_node(tree: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> Node:
    if "literal" in tree:
        return _parse_constant(tree["literal"])
    if "column" in tree:
        name = _column_name(tree, types)
        return Compare("=", name, True) if name is not None and pa.types.is_boolean(types[name]) else UNKNOWN
    children = tree.get("children") or []
    match tree.get("op"):
        case "AND":
            return And(tuple(_parse_node(child, types) for child in children))
        case "OR":
            return Or(tuple(_parse_node(child, types) for child in children))
        case "NOT":
            return Not(_parse_node(children[0], types))
        case "ALWAYS_TRUE":
            return ALWAYS_TRUE
        case "ALWAYS_FALSE":
            return Constant(FALSE)
        case "IS_NULL" | "IS_NOT_NULL" as operator:
            name = _column_name(children[0], types)
            if name is None:
                return UNKNOWN
            return IsNull(name) if operator == "IS_NULL" else Not(IsNull(name))
        case "IN":
            return _parse_in(children, types)
        case str() as operator if operator in _FLIPPED or operator in _TEXT_OPERATORS:
            return _parse_comparison(operator, children, types)
    return UNKNOWN


def _parse_constant(value: Any) -> Node:
    if value is None:
        return Constant(NULL)
    return UNKNOWN if not isinstance(value, bool) else Constant(TRUE if value else FALSE)


def _parse_comparison(operator: str, children: Sequence[Mapping[str, Any]], types: Mapping[str, pa.DataType]) -> Node:
    if len(children) != 2:
        return UNKNOWN
    left, right = children
    if "literal" in left and operator in _FLIPPED:
        left, right, operator = right, left, _FLIPPED[operator]
    name = _column_name(left, types)
    if name is None or "literal" not in right:
        return UNKNOWN
    if right["literal"] is None:
        return IsNull(name) if operator == "<=>" else Constant(NULL)
    value = parse_literal(right, types[name])
    if value is None or (operator in _TEXT_OPERATORS and not isinstance(value, str)):
        return UNKNOWN
    return Not(Compare("=", name, value)) if operator == "<>" else Compare(operator, name, value)


def _parse_in(children: Sequence[Mapping[str, Any]], types: Mapping[str, pa.DataType]) -> Node:
    name = _column_name(children[0], types) if children else None
    members = children[1:]
    if name is None or not all("literal" in member for member in members):
        return UNKNOWN
    values = [parse_literal(member, types[name]) for member in members if member["literal"] is not None]
    if any(value is None for value in values):
        return UNKNOWN
    return In(name, tuple(values), len(values) < len(members))


def _column_name(tree: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> str | None:
    """Return the name of a known top-level column; None otherwise. Nested fields have no statistics."""
    path = tree.get("column")
    return path[0] if path is not None and len(path) == 1 and path[0] in types else None


def parse_literal(tree: Mapping[str, Any], column: pa.DataType) -> Any:
    """Return the literal as a Python value that compares with the column's statistics, or None if its type differs."""
    family = family_of(column)
    type_name = str(tree.get("type", "")).strip('"')
    if family is None or _FAMILIES.get("decimal" if type_name.startswith("decimal") else type_name) != family:
        return None
    return _decode_value(tree["literal"], family)


def _decode_value(value: Any, family: str) -> Any:
    try:
        match family:
            case "number" if isinstance(value, int) and not isinstance(value, bool):
                return value
            case "number" if isinstance(value, str):
                number = decimal.Decimal(value)
                return number if number.is_finite() else None
            case "float" if isinstance(value, int | float | str) and not isinstance(value, bool):
                return float(value)
            case "binary" if isinstance(value, str):
                return base64.b64decode(value, validate=True)
            case "string" if isinstance(value, str) and "\ufffd" not in value:  # may replace invalid UTF-8
                return value
            case "boolean" if isinstance(value, bool):
                return value
            case "date" | "timestamp" | "timestamp_ntz" if isinstance(value, int) and not isinstance(value, bool):
                return value
    except (ValueError, ArithmeticError, binascii.Error):
        return None
    return None
