"""Rows with VARIANT columns as Python has them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from streamhouse_spark.schema.variant import holds_variant, is_variant, readable_value


def readable_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    return [{field.name: _readable(row[field.name], field) for field in rows.schema} for row in rows.to_pylist()]


def _readable(value: Any, field: pa.Field) -> Any:
    """Return a variant, or a struct that has some, as Python has it."""
    if value is None or not holds_variant(field.type):
        return value
    if is_variant(field.type):
        return readable_value(value, field.name)
    return {inner.name: _readable(value[inner.name], inner) for inner in field.type}
