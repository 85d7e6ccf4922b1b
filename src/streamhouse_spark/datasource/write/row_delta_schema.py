"""Schema of the rows that an UPDATE, DELETE or MERGE hands to its tasks.

There is one row for each inserted, updated or deleted row: the operation, the identity of the row that was read (null
for an insert), and the table's columns (null for a delete).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from streamhouse_spark.schema.reserved_names import INTERNAL, require_distinct_names
from streamhouse_spark.schema.table_schema import TableSchema

KIND: Final = f"{INTERNAL}kind"
"""Operation column, set by Java: ``insert``, ``update`` or ``delete``."""


def read_name(column: str) -> str:
    """Return the name of an identity column that holds the value that was read."""
    return f"{INTERNAL}read_{column}"


def make_row_delta_schema(schema: TableSchema, identity: Iterable[pa.Field]) -> pa.Schema:
    """Return the schema of the rows.

    Raises `SchemaMismatchError` for an older table that has a column with a name that is now reserved.
    """
    read = [pa.field(read_name(field.name), field.type) for field in identity]
    require_distinct_names(
        schema.names, [KIND, *(f.name for f in read)], "what an UPDATE, DELETE or MERGE makes of rows"
    )
    columns = [pa.field(column.name, column.type) for column in schema.columns]
    return pa.schema([pa.field(KIND, pa.string(), nullable=False), *read, *columns])
