"""Driver-side validation before a write starts tasks. Spark validates nothing on this path."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.spark_schema import split_defaults
from streamhouse_spark.errors import SchemaMismatchError, TableNotFoundError
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.schema.defaults import without_defaults
from streamhouse_spark.schema.row_conversion import convert_to_schema
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection


def table_for_writing(connection: Connection, name: str, schema: StructType) -> Table:
    """Return the table. Whether rows of this schema fit is checked later.

    Raises:
        TableNotFoundError: with the CREATE TABLE statement for these rows.
        InvalidNameError: for a read-only name.
    """
    path = parse_table_name(name).require_rows("write to")
    try:
        table = connection.table(str(path))
    except TableNotFoundError as error:
        ddl = frame_columns(schema).ddl()
        raise TableNotFoundError(
            f"{error} To make it for these rows: CREATE TABLE streamhouse.{path} ({ddl}), or in Python "
            f"Warehouse({connection.location!r}).create_table({str(path)!r}, {ddl!r})",
        ) from None
    return table


def frame_columns(frame: StructType) -> TableSchema:
    """Return the columns for CREATE TABLE AS SELECT: nullable, and without the defaults of the source table."""
    schema = TableSchema.of(StructType.fromJson(json.loads(split_defaults(frame.json())[0])))
    return TableSchema(tuple(replace(column, nullable=True) for column in schema.columns))


def require_fitting_columns(frame: StructType, state: TableState, name: str) -> None:
    """Raise `SchemaMismatchError` for an unknown or missing column, and for a type that can never fit."""
    frame_schema = spark_versions.arrow_schema_of(frame)
    names = {f.name.casefold() for f in frame_schema}
    for column in state.schema.columns:
        if not column.nullable and column.default is None and column.name.casefold() not in names:
            raise SchemaMismatchError(
                f"column '{column.name}' of {name} is NOT NULL and missing in the rows, which have "
                f"{', '.join(frame_schema.names)}",
            )
    schema = pa.schema([f.remove_metadata() for f in frame_schema])
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)  # pandas is not loaded
    convert_to_schema(empty, without_defaults(state.schema), table=name, older=state.schemas)
