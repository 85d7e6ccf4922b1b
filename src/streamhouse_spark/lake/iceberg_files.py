"""Iceberg data files as a planner sees them: decoded statistics, partitions by column, and columns that need no ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pyiceberg import types as ice
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform

from streamhouse_spark.lake.base import LakeProjection
from streamhouse_spark.lake.iceberg_read import plan_tasks, position_deletes
from streamhouse_spark.lake.iceberg_schema import bucket_of, is_stored_as, plain_type
from streamhouse_spark.lake.scan_files import ColumnStatistics, ScanFile

_WIDTHS_BYTES: Mapping[type[ice.IcebergType], int] = {
    ice.IntegerType: 4,
    ice.LongType: 8,
    ice.FloatType: 4,
    ice.DoubleType: 8,
    ice.DateType: 4,
    ice.TimestampType: 8,
    ice.TimestamptzType: 8,
}


def scan_files(
    table: Table, snapshot: Snapshot, lake: Schema, statistics_of: Sequence[str], num_buckets: int
) -> tuple[ScanFile, ...]:
    """All data files of the snapshot; statistics for the columns named, which are columns of ``lake``."""
    fields = {
        f.field_id: f
        for f in lake.fields
        if f.name in set(statistics_of) and isinstance(f.field_type, ice.PrimitiveType)
    }
    specs = table.metadata.specs()
    tasks = plan_tasks(table, snapshot, AlwaysTrue())
    return tuple(_scan_file(task, table.location(), specs, lake, fields, num_buckets) for task in tasks)


def _scan_file(
    task: FileScanTask,
    location: str,
    specs: Mapping[int, PartitionSpec],
    lake: Schema,
    fields: Mapping[int, ice.NestedField],
    num_buckets: int,
) -> ScanFile:
    file = task.file
    bucket, partition = _partition(file, specs[file.spec_id], lake, num_buckets)
    sizes = file.column_sizes or {}
    return ScanFile(
        location=file.file_path,
        size_bytes=file.file_size_in_bytes,
        num_rows=file.record_count,
        bucket=bucket,
        row_group_starts=tuple(file.split_offsets or ()),
        position_deletes=tuple(sorted(position_deletes(delete, location) for delete in task.delete_files)),
        partition=partition,
        statistics={f.name: _statistics(file, f) for f in fields.values()},
        column_bytes={f.name: sizes[f.field_id] for f in lake.fields if f.field_id in sizes},
    )


def _partition(
    file: DataFile, spec: PartitionSpec, lake: Schema, num_buckets: int
) -> tuple[int | None, dict[str, Any]]:
    values: dict[str, Any] = {}
    names = {f.field_id: f.name for f in lake.fields}
    for position, part in enumerate(spec.fields):
        value = file.partition[position]
        if isinstance(part.transform, IdentityTransform) and part.source_id in names:
            values[names[part.source_id]] = value
    return bucket_of(spec, file.partition, num_buckets), values


def _statistics(file: DataFile, field: ice.NestedField) -> ColumnStatistics:
    found = field.field_id
    return ColumnStatistics(
        decoded_bound(field.field_type, (file.lower_bounds or {}).get(found)),
        decoded_bound(field.field_type, (file.upper_bounds or {}).get(found)),
        (file.null_value_counts or {}).get(found),
        (file.value_counts or {}).get(found),
        (file.nan_value_counts or {}).get(found),
    )


def decoded_bound(field_type: ice.IcebergType, data: bytes | None) -> Any:
    """The bound as a value; None where it was written for another type of the column, or cannot be read."""
    width = _WIDTHS_BYTES.get(type(field_type))
    if data is None or (width is not None and len(data) != width):
        return None
    try:
        return from_bytes(cast("ice.PrimitiveType", field_type), data)
    except (ValueError, TypeError, ArithmeticError, LookupError):
        return None


def same_by_name(metadata: TableMetadata, how: LakeProjection) -> frozenset[str]:
    """Those of the projection's columns that mean the same by name in every file, whatever schema wrote it."""
    fields = [field for schema in metadata.schemas for field in schema.fields]
    columns = zip(how.schema.columns, how.field_ids, how.lake_names, strict=True)
    return frozenset(
        column.name
        for column, field_id, lake_name in columns
        if lake_name == column.name and all(_is_same(field, field_id, column.name, column.type) for field in fields)
    )


def _is_same(field: ice.NestedField, field_id: int | None, name: str, arrow: Any) -> bool:
    """Whether a field of some schema of the table is either not concerned or exactly the column."""
    if field.name.casefold() != name.casefold() and field.field_id != field_id:
        return True
    is_column = field.name == name and field.field_id == field_id
    return is_column and "fixed" not in plain_type(field.field_type) and is_stored_as(arrow, field.field_type)
