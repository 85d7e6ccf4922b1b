"""``mergeSchema``: add a DataFrame's new columns to the table before its rows are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from streamhouse_spark.config.alter_table import Alteration
from streamhouse_spark.config.column_changes import ColumnChanges
from streamhouse_spark.datasource.write.write_validation import frame_columns
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.log.commits.actions import Action, SetSchema
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.schema.evolution import describe_later_column
from streamhouse_spark.schema.nested_fields import Path, find_new_fields, had_field, join_path
from streamhouse_spark.table.alter import make_alter_actions
from streamhouse_spark.table.table import Table


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
