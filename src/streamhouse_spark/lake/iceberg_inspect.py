"""The metadata tables of an Iceberg table, as pyiceberg names them, in types that Spark has."""

from __future__ import annotations

import difflib
from typing import Final

import pyarrow as pa
from pyiceberg.table import Table

from streamhouse_spark.errors import InvalidNameError
from streamhouse_spark.schema import canonical_type

METADATA_TABLES: Final = (
    "all_data_files",
    "all_delete_files",
    "all_files",
    "all_manifests",
    "data_files",
    "delete_files",
    "entries",
    "files",
    "history",
    "manifests",
    "metadata_log_entries",
    "partitions",
    "refs",
    "snapshots",
)


def metadata_table(table: Table, name: str) -> pa.Table:
    """Raises `InvalidNameError` naming what exists."""
    if name not in METADATA_TABLES:
        near = difflib.get_close_matches(name, METADATA_TABLES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidNameError(
            f"no metadata table '{name}' on an Iceberg table; {hint}There are {', '.join(METADATA_TABLES)}"
        )
    read = getattr(table.inspect, name)
    return _for_spark(read())


def _for_spark(table: pa.Table) -> pa.Table:
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_struct(field.type) and field.type.num_fields == 0:
            continue  # the partition of an unpartitioned table: Spark has no empty structs
        wanted = _spark_type(field)
        columns.append(column if column.type.equals(wanted) else column.cast(wanted))
        fields.append(pa.field(field.name, wanted, nullable=field.nullable))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _spark_type(field: pa.Field) -> pa.DataType:
    if pa.types.is_timestamp(field.type):
        return pa.timestamp("us", tz="UTC")  # pyiceberg gives UTC without saying so
    return canonical_type(field.type, column=field.name)
