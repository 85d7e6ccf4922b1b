"""Schema of the row changes that Spark passes to the tasks of an UPDATE, DELETE or MERGE.

Each inserted, updated or deleted row has the operation, the identity of the row that was read (null for an insert), and
the table's columns (null for a delete).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from streamhouse_spark.schema.table_schema import INTERNAL, TableSchema, require_distinct_names

KIND: Final = f"{INTERNAL}kind"
"""Operation column, set by Java: ``insert``, ``update`` or ``delete``."""


def read_name(column: str) -> str:
    """Return the name of the identity column that contains the value of ``column`` that was read."""
    return f"{INTERNAL}read_{column}"


def make_row_changes_schema(schema: TableSchema, identity: Iterable[pa.Field]) -> pa.Schema:
    """Return the schema of the row changes.

    Raises `SchemaMismatchError` for an older table with a column whose name is now reserved.
    """
    read = [pa.field(read_name(field.name), field.type) for field in identity]
    require_distinct_names(
        schema.names, [KIND, *(f.name for f in read)], "the row changes of an UPDATE, DELETE or MERGE"
    )
    columns = [pa.field(column.name, column.type) for column in schema.columns]
    return pa.schema([pa.field(KIND, pa.string(), nullable=False), *read, *columns])
