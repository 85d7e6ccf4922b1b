"""Filters of the Python interface in the form in which plans of lake files take them."""

from __future__ import annotations

from typing import Any

from streamhouse_spark.expressions.filters import parse_filter
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.schema.table_schema import TableSchema


def filter_of(schema: TableSchema, *predicates: tuple[str, str, Any]) -> Node:
    """The filter of rows that satisfy all of the predicates on columns of the schema."""
    parsed = parse_filter(predicates)
    return ALWAYS_TRUE if parsed is None else parsed.bind(schema.arrow).node
