"""Iceberg data files for planners: decoded statistics, partitions by column, and columns that need no ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from pyiceberg import types as ice
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform

from streamhouse_spark.lake.file_skipping import file_may_match
from streamhouse_spark.lake.iceberg.partitions import BucketFilter, PartitionFilter, decode_bound, field_types
from streamhouse_spark.lake.iceberg.scan import is_only_of, plan_tasks, position_deletes
from streamhouse_spark.lake.iceberg.schema import bucket_of, bucket_source, is_stored_as, plain_type
from streamhouse_spark.lake.model.scan_files import ColumnStatistics, ScanFile
from streamhouse_spark.lake.model.values import LakeProjection
from streamhouse_spark.query.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.schema.evolution import has_same_storage
from streamhouse_spark.schema.table_schema import Column, TableSchema


def scan_files(
    table: Table,
    snapshot: Snapshot,
    how: LakeProjection,
    num_buckets: int,
    statistics_of: Sequence[str] = (),
    node: Node = ALWAYS_TRUE,
    only_buckets: Collection[int] | None = None,
) -> tuple[ScanFile, ...]:
    """Return the data files of the snapshot that can match the filter, from manifests that can match.

    Statistics cover the filter's columns and ``statistics_of``, columns of the table that ``how`` reads. Leaves out
    files in partitions of other buckets than ``only_buckets``.
    """
    names = {i: c.name for c, i in zip(how.schema.columns, how.field_ids, strict=True) if i is not None}
    types = field_types(table.metadata)
    statistics_columns = {*statistics_of, *node.columns()}
    field_ids = {
        field_id: cast("ice.PrimitiveType", types[field_id])
        for field_id, name in names.items()
        if name in statistics_columns and isinstance(types.get(field_id), ice.PrimitiveType)
    }
    specs = table.metadata.specs()
    buckets = (num_buckets, bucket_source(table.metadata, num_buckets))
    only = None if only_buckets is None else BucketFilter(frozenset(only_buckets), *buckets)
    chosen = PartitionFilter(node, names, how.schema, table.metadata, only) if node.columns() else None
    tasks = plan_tasks(table, snapshot, chosen)
    files = (_scan_file(task, table.location(), specs, names, field_ids, buckets) for task in tasks)
    return tuple(file for file in files if file_may_match(file, how.schema, node))


def _scan_file(
    task: FileScanTask,
    location: str,
    specs: Mapping[int, PartitionSpec],
    names: Mapping[int, str],
    types: Mapping[int, ice.PrimitiveType],
    buckets: tuple[int, int | None],
) -> ScanFile:
    file = task.file
    bucket, partition = _partition(file, specs[file.spec_id], names, buckets)
    sizes = file.column_sizes or {}
    return ScanFile(
        location=file.file_path,
        size_bytes=file.file_size_in_bytes,
        num_rows=file.record_count,
        bucket=bucket,
        row_group_starts=tuple(file.split_offsets or ()),
        position_deletes=tuple(sorted(position_deletes(delete, location) for delete in task.delete_files)),
        own_deletes=_own_deletes(task),
        num_deleted=_num_deleted(task),
        partition=partition,
        statistics={names[i]: _statistics(file, i, field_type) for i, field_type in types.items()},
        column_bytes={name: sizes[i] for i, name in names.items() if i in sizes},
    )


def _own_deletes(task: FileScanTask) -> tuple[tuple[str, int], ...]:
    deletes = task.delete_files
    if not all(is_only_of(delete, task.file.file_path) for delete in deletes):
        return ()
    return tuple(sorted((delete.file_path, delete.file_size_in_bytes) for delete in deletes))


def _num_deleted(task: FileScanTask) -> int | None:
    """Return the number of deleted rows. None if a delete file covers several data files, or several files may name a
    position twice.
    """
    if not task.delete_files:
        return 0
    delete, *row_deletes = task.delete_files
    return delete.record_count if not row_deletes and is_only_of(delete, task.file.file_path) else None


def _partition(
    file: DataFile, spec: PartitionSpec, names: Mapping[int, str], buckets: tuple[int, int | None]
) -> tuple[int | None, dict[str, Any]]:
    values: dict[str, Any] = {}
    for position, part in enumerate(spec.fields):
        value = file.partition[position]
        if isinstance(part.transform, IdentityTransform) and part.source_id in names:
            values[names[part.source_id]] = value
    return bucket_of(spec, file.partition, *buckets), values


def _statistics(file: DataFile, field_id: int, field_type: ice.PrimitiveType) -> ColumnStatistics:
    return ColumnStatistics(
        decode_bound(field_type, (file.lower_bounds or {}).get(field_id)),
        decode_bound(field_type, (file.upper_bounds or {}).get(field_id)),
        (file.null_value_counts or {}).get(field_id),
        (file.value_counts or {}).get(field_id),
        (file.nan_value_counts or {}).get(field_id),
    )


def columns_same_by_name(
    metadata: TableMetadata, how: LakeProjection, schemas: Mapping[int, TableSchema]
) -> frozenset[str]:
    """Return the projection's columns that mean the same by name in every file, whatever schema wrote it.

    ``schemas`` are all of the table: other engines drop older ones of the lake.
    """
    fields = [field for schema in metadata.schemas for field in schema.fields]
    older = {column for schema in schemas.values() for column in schema.columns}
    columns = zip(how.schema.columns, how.field_ids, how.lake_names, how.inside, strict=True)
    return frozenset(
        column.name
        for column, field_id, lake_name, (inner, _) in columns
        if lake_name == column.name
        and inner is None
        and all(_is_same(field, field_id, column.name, column.type) for field in fields)
        and all(_columns_never_changed(before, column) for before in older)
    )


def _columns_never_changed(before: Column, column: Column) -> bool:
    """Return whether a column of another schema of the table is unrelated to the column or identical to it."""
    if before.name.casefold() != column.name.casefold() and before.id != column.id:
        return True
    return (before.id, before.name) == (column.id, column.name) and has_same_storage(before, column)


def _is_same(field: ice.NestedField, field_id: int | None, name: str, arrow: Any) -> bool:
    """Return whether a field of another schema of the lake is unrelated to the column or identical to it."""
    if field.name.casefold() != name.casefold() and field.field_id != field_id:
        return True
    is_column = field.name == name and field.field_id == field_id
    return is_column and "fixed" not in plain_type(field.field_type) and is_stored_as(arrow, field.field_type)
