"""The partition spec that an Iceberg table is to have, once the partitioning of its table was changed.

Files stay as they are: each is of the spec that it was written by. A spec is never changed; another one becomes the
default. A field that was in an older spec is the same one again, with its id and name; any other has an id above all
that there ever were, and a name that no other field had, so that engines can tell the partitions of all specs apart.
Source: Iceberg table specification, "Partition Evolution".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AssertDefaultSpecId,
    AssertLastAssignedPartitionId,
    SetDefaultSpecUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.transforms import BucketTransform
from pyiceberg.transforms import Transform as IcebergTransform

from streamhouse_spark.lake.column_map import ColumnMap
from streamhouse_spark.lake.iceberg.schema import iceberg_transform
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.schema import partition_fields as own
from streamhouse_spark.schema.table_schema import TableSchema

_Part: TypeAlias = tuple[int, IcebergTransform[Any, Any], str]
"""A field's source, its transform, and the suffix of its name, which is empty for the column itself."""


def evolve_spec(
    metadata: TableMetadata, lake: Schema, columns_before: ColumnMap, columns: ColumnMap, table_spec: LakeTableSpec
) -> PartitionSpec:
    """Return the spec for rounds of the table: the lake's own, if that is right, and also if another engine changed it,
    which is for the caller to refuse.

    ``columns_before`` maps the columns of the lake as it is, ``columns`` those of ``lake``, its migrated schema.
    """
    here = metadata.spec()
    parts = _partition_parts(table_spec.layout, table_spec.schema, columns, table_spec)
    if parts is None or _has_parts(here, parts):
        return here
    if not any(_has_parts(here, previous) for previous in _former_partitionings(columns_before, columns, table_spec)):
        return here
    former_spec = next((spec for spec in metadata.partition_specs if _has_parts(spec, parts)), None)
    return former_spec if former_spec is not None else _new_spec(metadata, lake, parts)


def spec_updates(
    metadata: TableMetadata, spec: PartitionSpec
) -> tuple[tuple[TableRequirement, ...], tuple[TableUpdate, ...]]:
    """Return the updates that make a spec the default one, and the requirements under which it is the right one; none
    for the spec that the lake has.
    """
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
    columns_before: ColumnMap, columns: ColumnMap, table_spec: LakeTableSpec
) -> Iterator[Sequence[_Part]]:
    """Return the partitionings that the lake can have of the table itself: that of the schema which it was brought up
    to; any that the table had for a lake without a map.
    """
    former = [
        (i, _partition_parts(fields, table_spec.schemas[i], columns, table_spec))
        for i, fields in table_spec.former_layouts
    ]
    if columns_before.schema_id is not None:
        former = [(i, parts) for i, parts in former if columns_before.schema_id <= i][:1]
    return (parts for _, parts in former if parts is not None)


def _partition_parts(
    layout: Sequence[own.PartitionField], schema: TableSchema, columns: ColumnMap, table_spec: LakeTableSpec
) -> list[_Part] | None:
    """Return the fields of a partitioning, and the bucket behind them; None where the lake lacks a column."""
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
    ever = {_part_identity(f.source_id, f.transform): f for spec in metadata.partition_specs for f in spec.fields}
    names = {field.name.casefold() for field in ever.values()}
    next_id = 1 + _last_field_id(metadata)
    fields = []
    for source_id, transform, suffix in parts:
        field = ever.get(_part_identity(source_id, transform))
        if field is None:
            name = _free_name(lake, source_id, suffix, names)
            names.add(name.casefold())
            field = PartitionField(source_id, next_id, transform, name)
            next_id += 1
        fields.append(field)
    return PartitionSpec(*fields, spec_id=1 + max(spec.spec_id for spec in metadata.partition_specs))


def _last_field_id(metadata: TableMetadata) -> int:
    """Return the greatest id that a field of any spec ever had."""
    field_ids = (field.field_id for spec in metadata.partition_specs for field in spec.fields)
    return max(PARTITION_FIELD_ID_START - 1, metadata.last_partition_id or 0, *field_ids)


def _free_name(lake: Schema, source_id: int, suffix: str, names: set[str]) -> str:
    """Return a name for a new field that neither a column, but for the field's own, nor another field has."""
    source = lake.find_field(source_id).name
    columns = {field.name.casefold() for field in lake.fields if suffix or field.field_id != source_id}
    name = f"{source}_{suffix}" if suffix else source
    while name.casefold() in names | columns:
        name = f"{name}_"
    return name
