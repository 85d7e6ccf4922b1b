"""Schema evolution: migrates an Iceberg table to the columns and the partitioning of the streamhouse table.

Existing files are not rewritten: columns match by field id, which a rename keeps and a drop retires permanently, and
Iceberg reads a narrower type as the wider one. **Commit point:** one metadata version with schema, partition spec and
column map. The migration is retried until it succeeds, before the next round commits. The commit of a round that was
planned before the change fails validation, and the round is planned again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyiceberg import types as ice
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.transforms import BucketTransform
from pyiceberg.transforms import Transform as IcebergTransform

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.lake import column_mapping
from streamhouse_spark.lake.column_mapping import COLUMNS_PROPERTY, ColumnMapping, FieldEditor, migrate_columns
from streamhouse_spark.lake.iceberg.file_io import translate_commit_errors
from streamhouse_spark.lake.iceberg.schema import iceberg_transform, iceberg_type, nested_field_finder, nested_field_ids
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.schema import partitioning as own
from streamhouse_spark.schema.nested_fields import Path, count_fields
from streamhouse_spark.schema.table_schema import Column, TableSchema


@dataclass(frozen=True, slots=True)
class SchemaUpdate:
    """The target columns of the lake."""

    schema: Schema
    """The target schema, or the lake's current schema if nothing changes."""
    columns: ColumnMapping
    differences: tuple[str, ...]
    """Changes by other engines that prevent the migration."""
    spec: PartitionSpec
    """The target partition spec, or the lake's current one if nothing changes."""


def iceberg_columns(metadata: TableMetadata, spec: LakeTableSpec) -> ColumnMapping:
    """Return the lake table's column map. Raises `CorruptDataError`."""
    fields = [(field.field_id, field.name) for field in metadata.schema().fields]
    inside = nested_field_finder(metadata.schema())
    columns = column_mapping.read_column_mapping(
        metadata.properties, fields, spec, where=metadata.location, inner_of=inside
    )
    return add_external_nested_ids(columns, metadata)


def add_external_nested_ids(mapping: ColumnMapping, metadata: TableMetadata) -> ColumnMapping:
    """Return the map with nested changes of other engines, from the retained schemas of the lake."""
    present = metadata.schema()
    older = sorted((s for s in metadata.schemas if s.schema_id != present.schema_id), key=lambda s: s.schema_id)
    forms = [{f.field_id: nested_field_ids(f.field_type) for f in schema.fields} for schema in (*older, present)]
    return replace(mapping, elsewhere=column_mapping.nested_fields_changed_by_lake(forms))


def require_lake_migrated(metadata: TableMetadata, spec: LakeTableSpec) -> None:
    """Require that the lake has exactly the columns of the spec. Columns of a lake without a map match by name.

    Raises `CommitConflictError` if the table was altered after this round started, or if the lake was not migrated yet.
    """
    fields = [(field.field_id, field.name) for field in metadata.schema().fields]
    column_mapping.require_migrated(iceberg_columns(metadata, spec), fields, spec, where=metadata.location)


def evolve_lake(metadata: TableMetadata, spec: LakeTableSpec) -> SchemaUpdate:
    """Return the lake's schema with the fields of `column_mapping.migrate_columns`, and the table's partitioning."""
    lake, columns_before = metadata.schema(), iceberg_columns(metadata, spec)
    editor = _IcebergFields(itertools.count(metadata.last_column_id + 1))
    fields = {field.field_id: field for field in lake.fields}
    edited, mapped, differences_of_columns = migrate_columns(
        fields, columns_before, spec, editor, where=metadata.location
    )
    differences = differences_of_columns + _find_sort_obstacles(metadata, edited)
    changed = lake if differences else _evolve_schema(metadata, edited)
    columns = ColumnMapping(mapped, spec.schema_id)
    partitions = metadata.spec() if differences else evolve_spec(metadata, changed, columns_before, columns, spec)
    # A lake without a map gets none until it changes. Its columns match by name until then.
    is_unchanged = columns_before.schema_id is None and changed is lake and mapped == dict(columns_before.fields)
    if is_unchanged and partitions.spec_id == metadata.default_spec_id:
        columns = ColumnMapping(mapped, None)
    return SchemaUpdate(changed, columns, tuple(differences), partitions)


def _evolve_schema(metadata: TableMetadata, fields: list[ice.NestedField]) -> Schema:
    lake = metadata.schema()
    if fields == list(lake.fields):
        return lake
    schema_id = 1 + max(schema.schema_id for schema in metadata.schemas)
    return Schema(*fields, schema_id=schema_id, identifier_field_ids=lake.identifier_field_ids)


def _find_sort_obstacles(metadata: TableMetadata, fields: list[ice.NestedField]) -> list[str]:
    """Describe the dropped fields that are in another engine's sort order of the lake."""
    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    field_ids = {field.field_id for field in fields}
    sources = {part.source_id for part in (order.fields if order else ()) if part.source_id not in field_ids}
    lake_names = {field.field_id: field.name for field in metadata.schema().fields}
    return [
        f"column '{lake_names[i]}' was dropped from the table, but is in the sort order that another engine gave the "
        "lake table; remove the sort order with that engine"
        for i in sorted(sources & lake_names.keys())
    ]


class _IcebergFields(FieldEditor[ice.NestedField]):
    """The field editor of Iceberg. It replaces a type if Iceberg can promote to the new one."""

    def __init__(self, new_ids: Iterator[int]) -> None:
        self._new_ids = new_ids

    def with_comment(self, field: ice.NestedField, column: Column | None) -> ice.NestedField:
        if column is None or column.comment is None or column.comment == field.doc:
            return field
        return field.model_copy(update={"doc": column.comment})

    def as_column(self, field: ice.NestedField, column: Column, inner: Mapping[int, int]) -> ice.NestedField:
        field = self.with_comment(field, column)
        kind = _promote_type(field.field_type, column.type)
        if column.field_ids is not None:
            kind = self._migrate_type(kind, column.type, iter(column.inner_ids), inner)
        required = field.required and not column.nullable
        if (field.name, field.field_type, field.required) == (column.name, kind, required):
            return field
        return field.model_copy(update={"name": column.name, "field_type": kind, "required": required})

    def new_fields(self, columns: Sequence[Column]) -> list[tuple[int, ice.NestedField]]:
        return [(field.field_id, field) for field in map(self._new_field, columns)]

    def nested_ids(self, field: ice.NestedField) -> Mapping[Path, int]:
        return nested_field_ids(field.field_type)

    def _new_field(self, column: Column) -> ice.NestedField:
        field_id, kind = next(self._new_ids), iceberg_type(column.type, self._new_ids)
        return ice.NestedField(field_id, column.name, kind, required=False, doc=column.comment)

    def _migrate_type(
        self, before: ice.IcebergType, after: pa.DataType, ids: Iterator[int], inner: Mapping[int, int]
    ) -> ice.IcebergType:
        """Return the lake's type with the column's current nested fields.

        Fields added by another engine are placed after the table's fields. The difference is reported later.
        """
        match before:
            case ice.ListType() if pa.types.is_list(after):
                element = self._migrate_type(before.element_type, after.value_type, ids, inner)
                return ice.ListType(before.element_id, element, element_required=before.element_required)
            case ice.MapType() if pa.types.is_map(after):
                key = self._migrate_type(before.key_type, after.key_type, ids, inner)
                value = self._migrate_type(before.value_type, after.item_type, ids, inner)
                return ice.MapType(before.key_id, key, before.value_id, value, value_required=before.value_required)
            case ice.StructType() if pa.types.is_struct(after):
                return self._migrate_struct(before, after, ids, inner)
        return _promote_type(before, after)

    def _migrate_struct(
        self, before: ice.StructType, after: pa.DataType, ids: Iterator[int], inner: Mapping[int, int]
    ) -> ice.StructType:
        field_of_id = {field.field_id: field for field in before.fields}
        fields = []
        for column in after:
            field = field_of_id.get(inner.get(next(ids), -1))
            own = [next(ids) for _ in range(count_fields(column.type))]
            if field is None:
                kind = iceberg_type(column.type, self._new_ids)
                fields.append(ice.NestedField(next(self._new_ids), column.name, kind, required=False))
            else:
                kind = self._migrate_type(field.field_type, column.type, iter(own), inner)
                fields.append(field.model_copy(update={"name": column.name, "field_type": kind}))
        lake_only = [field for field in before.fields if field.field_id not in inner.values()]
        return ice.StructType(*fields, *lake_only)


def _promote_type(before: ice.IcebergType, after: pa.DataType) -> ice.IcebergType:
    target = iceberg_type(after, itertools.count())
    return target if _is_promotion(before, target) else before


def _is_promotion(before: ice.IcebergType, after: ice.IcebergType) -> bool:
    match before, after:
        case ice.DecimalType(), ice.DecimalType():
            return before.scale == after.scale and before.precision < after.precision
        case (ice.IntegerType(), ice.LongType()) | (ice.FloatType(), ice.DoubleType()):
            return True
    return False


def commit_columns(catalog: Catalog, table: Table, evolved: SchemaUpdate, table_uuid: str) -> bool:
    """Commit the evolved columns and partitions. Returns False if the table changed, and must be loaded again.

    After a `CommitStateUnknownError` the caller may load it again too.
    """
    metadata = table.metadata
    required, respecified = spec_updates(metadata, evolved.spec)
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": metadata.last_column_id}),
        *required,
    )
    updates: list[TableUpdate] = []
    if evolved.schema is not metadata.schema():
        updates += [AddSchemaUpdate.model_validate({"schema": evolved.schema}), SetCurrentSchemaUpdate()]
    updates += respecified
    updates.append(SetPropertiesUpdate(updates={COLUMNS_PROPERTY: evolved.columns.to_text(table_uuid)}))
    try:
        with translate_commit_errors(f"columns of lake table {metadata.location}"):
            catalog.commit_table(table, requirements, tuple(updates))
    except CommitFailedException:
        return False
    return True


_Part: TypeAlias = tuple[int, IcebergTransform[Any, Any], str]
"""Source id, transform, and suffix of the name of a partition field. The suffix is empty for the column itself."""


def evolve_spec(
    metadata: TableMetadata,
    lake: Schema,
    columns_before: ColumnMapping,
    columns: ColumnMapping,
    table_spec: LakeTableSpec,
) -> PartitionSpec:
    """Return the partition spec for rounds of the table.

    It is the lake's current spec if it is right, or if another engine changed it, which the caller rejects.
    ``columns_before`` maps columns to the current schema, and ``columns`` to the migrated schema ``lake``.
    """
    current = metadata.spec()
    parts = _partition_parts(table_spec.layout, table_spec.schema, columns, table_spec)
    if parts is None or _has_parts(current, parts):
        return current
    if not any(_has_parts(current, former) for former in _former_partitionings(columns_before, columns, table_spec)):
        return current
    former_spec = next((spec for spec in metadata.partition_specs if _has_parts(spec, parts)), None)
    return former_spec if former_spec is not None else _new_spec(metadata, lake, parts)


def spec_updates(
    metadata: TableMetadata, spec: PartitionSpec
) -> tuple[tuple[TableRequirement, ...], tuple[TableUpdate, ...]]:
    """Return the updates that make a spec the default, with their requirements. None if it is the default."""
    if spec.spec_id == metadata.default_spec_id:
        return (), ()
    requirements = (
        AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        AssertLastAssignedPartitionId.model_validate({"last-assigned-partition-id": metadata.last_partition_id}),
    )
    if spec.spec_id in metadata.specs():
        return requirements, (SetDefaultSpecUpdate.model_validate({"spec-id": spec.spec_id}),)
    return requirements, (AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate())


def _former_partitionings(
    columns_before: ColumnMapping, columns: ColumnMapping, table_spec: LakeTableSpec
) -> Iterator[Sequence[_Part]]:
    """Return the partitionings that the lake may still have.

    They are the partitioning of the schema that the lake was migrated to, or any former one for a lake without a map.
    """
    former = [
        (i, _partition_parts(fields, table_spec.schemas[i], columns, table_spec))
        for i, fields in table_spec.former_layouts
    ]
    if columns_before.schema_id is not None:
        former = [(i, parts) for i, parts in former if columns_before.schema_id <= i][:1]
    return (parts for _, parts in former if parts is not None)


def _partition_parts(
    layout: Sequence[own.PartitionField], schema: TableSchema, columns: ColumnMapping, table_spec: LakeTableSpec
) -> list[_Part] | None:
    """Return the fields of a partitioning, followed by the bucket. None if the lake does not have a column of it."""
    parts_of_layout = [(schema.column(f.column).id, iceberg_transform(f), f.suffix) for f in layout]
    if table_spec.bucket_key:
        column_id = table_spec.schema.column(table_spec.bucket_key[0]).id
        parts_of_layout.append((column_id, BucketTransform(table_spec.num_buckets), "bucket"))
    parts = [(columns.field_id(column_id), transform, suffix) for column_id, transform, suffix in parts_of_layout]
    sources = [(source, transform, suffix) for source, transform, suffix in parts if source is not None]
    return sources if len(sources) == len(parts) else None


def _has_parts(spec: PartitionSpec, parts: Sequence[_Part]) -> bool:
    return [_part_identity(f.source_id, f.transform) for f in spec.fields] == [
        _part_identity(i, t) for i, t, _ in parts
    ]


def _part_identity(source_id: int, transform: IcebergTransform[Any, Any]) -> tuple[int, str]:
    return source_id, str(transform)


def _new_spec(metadata: TableMetadata, lake: Schema, parts: Sequence[_Part]) -> PartitionSpec:
    field_of_part = {
        _part_identity(f.source_id, f.transform): f for spec in metadata.partition_specs for f in spec.fields
    }
    names = {field.name.casefold() for field in field_of_part.values()}
    next_id = 1 + _last_field_id(metadata)
    fields = []
    for source_id, transform, suffix in parts:
        field = field_of_part.get(_part_identity(source_id, transform))
        if field is None:
            name = _free_name(lake, source_id, suffix, names)
            names.add(name.casefold())
            field = PartitionField(source_id, next_id, transform, name)
            next_id += 1
        fields.append(field)
    return PartitionSpec(*fields, spec_id=1 + max(spec.spec_id for spec in metadata.partition_specs))


def _last_field_id(metadata: TableMetadata) -> int:
    """Return the largest field id of all current and former specs."""
    field_ids = (field.field_id for spec in metadata.partition_specs for field in spec.fields)
    return max(PARTITION_FIELD_ID_START - 1, metadata.last_partition_id or 0, *field_ids)


def _free_name(lake: Schema, source_id: int, suffix: str, names: set[str]) -> str:
    """Return a name for a new field that no other column or field has."""
    source = lake.find_field(source_id).name
    columns = {field.name.casefold() for field in lake.fields if suffix or field.field_id != source_id}
    name = f"{source}_{suffix}" if suffix else source
    while name.casefold() in names | columns:
        name = f"{name}_"
    return name
