"""Bringing an Iceberg table's schema up to the streamhouse table's: columns that were added, comments that changed.

Files that are there stay as they are: they have no column of the new id, and read as null in every engine. A round
that was planned before the change is refused by the commit's own validation, and planned again.
"""

from __future__ import annotations

import itertools

from pyiceberg import types as ice
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
)

from streamhouse_spark.lake.iceberg_errors import commit_answers
from streamhouse_spark.lake.iceberg_schema import iceberg_type
from streamhouse_spark.schema import Column, TableSchema


def evolved_schema(metadata: TableMetadata, schema: TableSchema) -> Schema:
    """The lake's schema with the nullable columns that it lacks behind its own, and with the table's comments.

    It is the lake's own where nothing is to be changed. Comments that the table does not have are left alone.
    """
    lake = metadata.schema()
    there = {field.name.casefold() for field in lake.fields}
    missing = [column for column in schema.columns if column.nullable and column.name.casefold() not in there]
    fields = [_commented(field, schema.find(field.name)) for field in lake.fields]
    if not missing and fields == list(lake.fields):
        return lake
    ids = itertools.count(metadata.last_column_id + 1)
    fields += [
        ice.NestedField(
            field_id=next(ids),
            name=column.name,
            field_type=iceberg_type(column.type, ids),
            required=False,
            doc=column.comment,
        )
        for column in missing
    ]
    schema_id = 1 + max(known.schema_id for known in metadata.schemas)
    return Schema(*fields, schema_id=schema_id, identifier_field_ids=lake.identifier_field_ids)


def _commented(field: ice.NestedField, column: Column | None) -> ice.NestedField:
    if column is None or column.comment is None or column.comment == field.doc:
        return field
    return field.model_copy(update={"doc": column.comment})


def commit_schema(catalog: Catalog, table: Table, schema: Schema) -> bool:
    """Make the schema the current one. False when the table changed meanwhile: look again.

    Raises `CommitStateUnknownError`, after which looking again is right as well.
    """
    metadata = table.metadata
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": metadata.last_column_id}),
    )
    updates = (AddSchemaUpdate.model_validate({"schema": schema}), SetCurrentSchemaUpdate())
    try:
        with commit_answers(f"columns of lake table {metadata.location}"):
            catalog.commit_table(table, requirements, updates)
    except CommitFailedException:
        return False
    return True
