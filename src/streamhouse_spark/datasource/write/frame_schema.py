"""Columns of a DataFrame to write: validation on the driver, and ``mergeSchema``, which adds new columns to the table.

Spark does not validate the columns of writes to a Python data source.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from streamhouse_spark.config.alter_table import Alteration, ColumnChanges
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource.spark_schema import split_defaults
from streamhouse_spark.errors import SchemaMismatchError, TableNotFoundError
from streamhouse_spark.log.actions import Action, SetSchema
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.evolution import describe_later_column
from streamhouse_spark.schema.nested_fields import Path, find_new_fields, had_field, join_path
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.alter import make_alter_actions
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection


def open_table_for_writing(connection: Connection, name: str, schema: StructType) -> Table:
    """Return the table, without checking whether rows of this schema fit.

    Raises `TableNotFoundError` with the CREATE TABLE statement for these rows, and `InvalidNameError` for a read-only
    name.
    """
    path = parse_table_name(name).require_rows("write to")
    try:
        return connection.table(str(path))
    except TableNotFoundError as error:
        ddl = frame_columns(schema).ddl()
        raise TableNotFoundError(
            f"{error} To create it for these rows, run CREATE TABLE streamhouse.{path} ({ddl}), or in Python "
            f"Warehouse({connection.location!r}).create_table({str(path)!r}, {ddl!r})"
        ) from None


def frame_columns(frame: StructType) -> TableSchema:
    """Return the columns of a table for the rows of a DataFrame: nullable, and without the source table's defaults."""
    schema = TableSchema.of(StructType.fromJson(json.loads(split_defaults(frame.json())[0])))
    return TableSchema(tuple(replace(column, nullable=True) for column in schema.columns))


def merge_frame_columns(table: Table, frame: StructType, row_kind_column: str | None) -> TableState:
    """Return the last read state with the DataFrame's new columns, without a commit. Raises the errors of
    `merge_columns`.
    """
    state = table.state
    for action in _make_add_columns(table, state, frame, row_kind_column):
        if isinstance(action, SetSchema):
            schemas = {**state.schemas, action.schema_id: action.schema}
            # A concurrent writer may give its schema the same id. A new properties object distinguishes the states.
            state = replace(state, schema_id=action.schema_id, schemas=schemas, properties=dict(state.properties))
    return state


def merge_columns(table: Table, frame: StructType, row_kind_column: str | None) -> None:
    """Add the DataFrame's new columns and nested fields to the table. They are nullable and follow the existing
    columns.

    **Commit point:** the one record with the next schema. It adds the columns that are missing at commit time, so only
    one of several writers with the same new columns commits a record. The columns remain even if the write fails.

    Raises `SchemaMismatchError` for a column that cannot be added. Also raises it for the former name of a column,
    because rows with that name may belong to the former column.
    """
    table.log.commit(lambda state, _time_ms: _make_add_columns(table, state, frame, row_kind_column))


def _make_add_columns(
    table: Table, state: TableState, frame: StructType, row_kind_column: str | None
) -> Sequence[Action]:
    kind = row_kind_column.casefold() if row_kind_column is not None else None
    new = [f for f in frame.fields if state.schema.find(f.name) is None and f.name.casefold() != kind]
    for field in new:
        if later_use := describe_later_column(field.name, state.schemas):
            raise SchemaMismatchError(
                f"column '{field.name}' of the rows is not in {state.name}: {later_use}; mergeSchema does not add "
                "columns with a former name; write the existing columns, or add the column with add_columns(…)"
            )
    fields = [missing for field in frame.fields for missing in _new_fields(state, field)]
    if not new and not fields:
        table.require_not_dropped(state)
        return ()
    added = frame_columns(StructType(new)) if new else None
    return make_alter_actions(table, state, Alteration(added, columns=ColumnChanges(fields=tuple(fields))))


def _new_fields(state: TableState, field: StructField) -> list[tuple[Path, pa.DataType]]:
    """Return path and type of the nested fields in a column of the DataFrame that the table's column does not have."""
    column = state.schema.find(field.name)
    if column is None or not pa.types.is_nested(column.type):
        return []
    (frame_column,) = frame_columns(StructType([field])).columns
    missing_fields = find_new_fields(column.type, frame_column.type)
    older = [(c.type, c.inner_ids) for schema in state.schemas.values() for c in schema.columns if c.id == column.id]
    for path, _ in missing_fields:
        if had_field(path, column.type, column.inner_ids, older):
            raise SchemaMismatchError(
                f"field '{join_path((column.name, *path))}' of the rows is not in {state.name}, but the table had a "
                "field with this name before; mergeSchema does not add fields with a former name; write the existing "
                "fields, or add the field with add_columns(…)"
            )
    return [((column.name, *path), kind) for path, kind in missing_fields]
