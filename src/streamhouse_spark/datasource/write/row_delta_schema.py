"""The rows that an UPDATE, DELETE or MERGE of the Spark catalog hands to its tasks.

One row for each row that the operation inserts, updates or deletes: its effect, the identity of the row that was read
(null for an insertion), and the table's columns (null for a deletion).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from streamhouse_spark.schema.reserved_names import INTERNAL, require_unlike
from streamhouse_spark.schema.table_schema import TableSchema

KIND: Final = f"{INTERNAL}kind"
"""The column ``insert``, ``update`` or ``delete``, which the JVM class sets."""


def read_name(column: str) -> str:
    """Return the name of a column of the identity, with the value that was read."""
    return f"{INTERNAL}read_{column}"


def make_row_delta_schema(schema: TableSchema, identity: Iterable[pa.Field]) -> pa.Schema:
    """Return the columns of the rows that arrive.

    Raises `SchemaMismatchError` for an older table with a column of a name that was reserved later.
    """
    read = [pa.field(read_name(field.name), field.type) for field in identity]
    require_unlike(schema.names, [KIND, *(f.name for f in read)], "what an UPDATE, DELETE or MERGE makes of rows")
    columns = [pa.field(column.name, column.type) for column in schema.columns]
    return pa.schema([pa.field(KIND, pa.string(), nullable=False), *read, *columns])
