"""Columns of a DataFrame to write: validation on the driver, and ``mergeSchema``, which adds new ones to the table.

Spark validates nothing on this path.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from streamhouse_spark.config.alter_table import Alteration, ColumnChanges
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.spark_schema import split_defaults
from streamhouse_spark.errors import SchemaMismatchError, TableNotFoundError
from streamhouse_spark.log.actions import Action, SetSchema
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.defaults import without_defaults
from streamhouse_spark.schema.evolution import describe_later_column
from streamhouse_spark.schema.nested_fields import Path, find_new_fields, had_field, join_path
from streamhouse_spark.schema.row_conversion import convert_to_schema
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.alter import make_alter_actions
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


def merge_frame_columns(table: Table, frame: StructType, row_kind_column: str | None) -> TableState:
    """Return the last read state with the frame's columns added, without committing. Raises as `merge_columns`."""
    state = table.state
    for action in _make_add_columns(table, state, frame, row_kind_column):
        if isinstance(action, SetSchema):
            schemas = {**state.schemas, action.schema_id: action.schema}
            # A concurrent writer's schema may get the same id; a new properties object distinguishes the states.
            state = replace(state, schema_id=action.schema_id, schemas=schemas, properties=dict(state.properties))
    return state


def merge_columns(table: Table, frame: StructType, row_kind_column: str | None) -> None:
    """Add the frame's new columns and nested fields to the table, nullable and last, as `Table.add_columns` does.

    **Commit point:** the one record with the next schema. It adds the columns that are missing at commit time, so of
    several writers with the same columns one adds them and the others commit nothing. The columns stay even if the
    write fails.

    Raises `SchemaMismatchError` for a column that cannot be added, and for a name that another column had before: rows
    with the old name must not start a new column.
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
                f"column '{field.name}' of the rows is not in {state.name}: {later_use}; mergeSchema adds no column "
                "under a name that one had before: write the rows by the columns that are there, or add it with "
                "add_columns(…)"
            )
    fields = [missing for field in frame.fields for missing in _new_fields(state, field)]
    if not new and not fields:
        table.require_not_dropped(state)
        return ()
    added = frame_columns(StructType(new)) if new else None
    return make_alter_actions(table, state, Alteration(added, columns=ColumnChanges(fields=tuple(fields))))


def _new_fields(state: TableState, field: StructField) -> list[tuple[Path, pa.DataType]]:
    """Return the nested fields, with their paths, that a column of the frame has and the table's column lacks."""
    column = state.schema.find(field.name)
    if column is None or not pa.types.is_nested(column.type):
        return []
    (frame_column,) = frame_columns(StructType([field])).columns
    missing_fields = find_new_fields(column.type, frame_column.type)
    older = [(c.type, c.inner_ids) for schema in state.schemas.values() for c in schema.columns if c.id == column.id]
    for path, _ in missing_fields:
        if had_field(path, column.type, column.inner_ids, older):
            raise SchemaMismatchError(
                f"field '{join_path((column.name, *path))}' of the rows is not in {state.name}, which had one of "
                "that name before: mergeSchema does not add it; write the rows by the fields there are, or add it with "
                "add_columns(…)"
            )
    return [((column.name, *path), kind) for path, kind in missing_fields]
