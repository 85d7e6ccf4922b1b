"""Rows with VARIANT columns as Python has them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from streamhouse_spark.schema.variant import is_variant
from streamhouse_spark.schema.variant_values import readable_value


def readable_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    variants = [field.name for field in rows.schema if is_variant(field.type)]
    return [
        row | {name: None if row[name] is None else readable_value(row[name], name) for name in variants}
        for row in rows.to_pylist()
    ]
