"""Name the columns that a query's filters can speak of."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

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


def column_types(schema: TableSchema) -> dict[str, pa.DataType]:
    """Return the columns that a filter can use, with their types."""
    return {**METADATA_TYPES, **{column.name: column.type for column in schema.columns}}


def comparable_types(schema: TableSchema) -> dict[str, pa.DataType]:
    """Return the columns whose values compare as they are stored, with their types: not CHAR(n), whose blanks Spark
    adds.
    """
    return {**METADATA_TYPES, **{column.name: column.type for column in schema.columns if column.size is None}}
