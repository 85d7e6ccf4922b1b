"""Scans of snapshots of an Iceberg table: pruned manifests and files, with their columns and statistics.

This module imports Iceberg's library, which reading the latest snapshot does not need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from pyiceberg import types as ice
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform

from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CorruptDataError, LakeMismatchError, SnapshotExpiredError, count_of
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node, constant_bounds, may_match
from streamhouse_spark.lake.column_mapping import ColumnMapping
from streamhouse_spark.lake.iceberg.evolution import iceberg_columns
from streamhouse_spark.lake.iceberg.file_io import prefetch_files, read_snapshot_manifests, translate_metadata_errors
from streamhouse_spark.lake.iceberg.schema import (
    PATH_ID,
    bucket_of,
    bucket_source,
    is_stored_as,
    lake_schema,
    nested_field_finder,
    to_own_field,
    type_without_ids,
)
from streamhouse_spark.lake.iceberg.snapshots import describe_snapshot, log_time_ms, newest_offsets, offsets_at
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.metadata_errors import absent_snapshot_error
from streamhouse_spark.lake.reader import SnapshotScan, column_bounds, file_may_match, projection_of
from streamhouse_spark.lake.snapshot_properties import latest_possible_times_ms
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import ColumnStatistics, LakeProjection, LakeSnapshot, ScanFile
from streamhouse_spark.schema.evolution import has_same_storage
from streamhouse_spark.schema.partitioning import PartitionField
from streamhouse_spark.schema.table_schema import Column, TableSchema

_WIDTHS_BYTES: Mapping[type[ice.IcebergType], tuple[int, ...]] = {
    ice.IntegerType: (4,),
    ice.LongType: (4, 8),
    ice.FloatType: (4,),
    ice.DoubleType: (4, 8),
    ice.DateType: (4,),
    ice.TimestampType: (8,),
    ice.TimestamptzType: (8,),
}


@dataclass(frozen=True, slots=True)
class BucketFilter:
    """The requested buckets, and the parameters that determine the bucket of a partition. See `bucket_of`."""

    buckets: frozenset[int]
    num_buckets: int
    source_id: int | None

    def excludes(self, file: DataFile, spec: PartitionSpec) -> bool:
        bucket = bucket_of(spec, file.partition, self.num_buckets, self.source_id)
        return bucket is not None and bucket not in self.buckets


class PartitionFilter:
    """A filter restricted to partition columns and buckets.

    A partition by years, months, days or hours may also have rows of its neighbours, because engines round times before
    1970 differently. ``truncate`` partitions are ignored.
    """

    def __init__(
        self,
        node: Node,
        names: Mapping[int, str],
        schema: TableSchema,
        metadata: TableMetadata,
        buckets: BucketFilter | None = None,
    ) -> None:
        """``names`` maps field ids to columns of ``schema``."""
        self._node = node
        self._buckets = buckets
        self._specs = metadata.specs()
        self._types = field_types(metadata)
        self._columns = {i: column for i, name in names.items() if (column := schema.find(name)) is not None}
        self._results: dict[tuple[Any, ...], bool] = {}

    def may_match_manifest(self, manifest: ManifestFile) -> bool:
        """Return False only if no file of the manifest is in a partition that can match the filter."""
        spec, summaries = self._specs[manifest.partition_spec_id], manifest.partitions or []
        if len(summaries) != len(spec.fields):
            return True
        bounds = {}
        for position, field_id, column, part in self._parts(spec):
            summary = summaries[position]
            field_type = self._types[field_id] if part.transform == "identity" else ice.IntegerType()
            low, high = (decode_bound(field_type, b) for b in (summary.lower_bound, summary.upper_bound))
            stats = ColumnStatistics(
                *_project_column(part, low, high, column),
                null_count=0 if summary.contains_null is False else None,
                nan_count=0 if summary.contains_nan is False else None,
            )
            bounds[column.name] = column_bounds(stats, column.type, num_rows=1)
        return may_match(self._node, bounds)

    def test(self, file: DataFile) -> bool:
        """Return False only if no row in the data file's partition can match the filter."""
        spec = self._specs[file.spec_id]
        if self._buckets is not None and self._buckets.excludes(file, spec):
            return False
        partition = tuple(file.partition[position] for position in range(len(spec.fields)))
        key = (file.spec_id, *partition)
        if key not in self._results:
            bounds = {}
            for position, _, column, part in self._parts(spec):
                value = partition[position]
                if part.transform == "identity" or value is None:
                    bounds[column.name] = constant_bounds(value)
                else:
                    stats = ColumnStatistics(*_project_column(part, value, value, column), null_count=0, nan_count=0)
                    bounds[column.name] = column_bounds(stats, column.type, num_rows=1)
            self._results[key] = may_match(self._node, bounds)
        return self._results[key]

    def _parts(self, spec: PartitionSpec) -> Iterator[tuple[int, int, Column, PartitionField]]:
        """Yield position, field id, column and transform of partition fields that are a column or part of its time."""
        for position, part in enumerate(spec.fields):
            column = self._columns.get(part.source_id)
            own_part = to_own_field(part.transform, column.name) if column is not None else None
            if column is not None and own_part is not None and own_part.transform != "truncate":
                yield position, part.source_id, column, own_part


def _project_column(part: PartitionField, low: Any, high: Any, column: Column) -> tuple[Any, Any]:
    """Return the bounds of a column from those of its partitions, or None if they imply nothing."""
    if part.transform == "identity":
        return low, high
    first = part.range_of(low - 1, column.type) if low is not None else None
    last = part.range_of(high + 1, column.type) if high is not None else None
    return (first[0] if first else None), (last[1] - 1 if last else None)


def field_types(metadata: TableMetadata) -> dict[int, ice.IcebergType]:
    """Return the latest type of each current and former field of the table."""
    types = {f.field_id: f.field_type for schema in metadata.schemas for f in schema.fields}
    types.update((f.field_id, f.field_type) for f in metadata.schema().fields)
    return types


def decode_bound(field_type: ice.IcebergType, data: bytes | None) -> Any:
    """Return the decoded bound, or None if it was written for another type of the column or is invalid.

    After a column was widened, older bounds have the narrower type.
    """
    widths = _WIDTHS_BYTES.get(type(field_type))
    if data is None or (widths is not None and len(data) not in widths):
        return None
    try:
        return from_bytes(cast("ice.PrimitiveType", field_type), data)
    except (ValueError, TypeError, ArithmeticError, LookupError):
        return None


def snapshot_schema(metadata: TableMetadata, snapshot: Snapshot) -> Schema:
    """Return the schema that was current when the snapshot was committed."""
    schema = metadata.schema_by_id(snapshot.schema_id) if snapshot.schema_id is not None else None
    return schema or metadata.schema()


def projection(
    lake: Schema, mapping: ColumnMapping, table: TableSchema, columns: Sequence[str] | None, schema: TableSchema | None
) -> LakeProjection:
    """Return the projection of the lake's columns to the table's. See `projection_of`."""
    return projection_of(
        lake_schema(lake),
        mapping,
        table,
        columns,
        schema,
        is_stored=lambda own, field_id: is_stored_as(own, lake.find_type(field_id)),
        ambiguous=lambda _: None,
        inner_of=nested_field_finder(lake),
    )


def own_projection(metadata: TableMetadata, spec: LakeTableSpec) -> LakeProjection:
    """Return the projection of all columns of the table from its latest files."""
    return projection(metadata.schema(), iceberg_columns(metadata, spec), spec.schema, None, spec.schema)


def require_snapshot(metadata: TableMetadata, snapshot_id: int) -> Snapshot:
    snapshot = metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        in_commit_order = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0)
        raise absent_snapshot_error(metadata.location, snapshot_id, [s.snapshot_id for s in in_commit_order])
    return snapshot


def plan_tasks(table: Table, snapshot: Snapshot, chosen: PartitionFilter | None = None) -> list[FileScanTask]:
    """Return the data files of a snapshot with their deletes, in the partitions of ``chosen`` or in all.

    Reads all delete manifests, unless no data file is left. Raises `LakeMismatchError` for unsupported files and
    deletes, `SnapshotExpiredError`, and `CorruptDataError` if manifests do not have as many files as their list states.
    """
    counted: list[int] = []  # row counts of live data files, appended by threads of the library

    def is_in_scan(entry: ManifestEntry) -> bool:
        file = entry.data_file
        if file.content != DataFileContent.DATA:
            return True
        counted.append(file.record_count)
        return chosen is None or chosen.test(file)

    planner = ManifestGroupPlanner(table.metadata, table.io, AlwaysTrue(), case_sensitive=False)
    with translate_metadata_errors(table.location()):
        prefetch_files(table.io, [(snapshot.manifest_list, 0)])
        manifests = read_snapshot_manifests(table.io, snapshot)
        data = [
            m
            for m in manifests
            if m.content == ManifestContent.DATA and (chosen is None or chosen.may_match_manifest(m))
        ]
        deletes = [m for m in manifests if m.content != ManifestContent.DATA] if data else []
        prefetch_files(table.io, ((m.manifest_path, m.manifest_length) for m in (*data, *deletes)))
        try:
            tasks = list(planner.plan_files([*data, *deletes], is_in_scan))
        except ValueError as error:
            if "equality deletes" not in str(error):
                raise
            raise LakeMismatchError(
                f"lake table {table.location()} has equality deletes, which are not supported: {error}; "
                "compact the table with the engine that wrote them"
            ) from error
    _require_all_files(table, data, len(counted))
    for task in tasks:
        if task.file.file_format != FileFormat.PARQUET:
            raise LakeMismatchError(
                f"lake file {task.file.file_path} of {table.location()} is {task.file.file_format.value}, expected "
                "PARQUET; rewrite it with the engine that wrote it"
            )
    return tasks


def _require_all_files(table: Table, manifests: Sequence[ManifestFile], num_files: int) -> None:
    """Require that the manifests have as many live files as their list states. Raises `CorruptDataError`.

    Avro has no checksum, and a flipped bit may change the status of an entry.
    """
    counts = [count for m in manifests for count in (m.added_files_count, m.existing_files_count)]
    expected = sum(count for count in counts if count is not None)
    if None not in counts and num_files != expected:
        raise CorruptDataError(
            f"lake table {table.location()}: its manifests have {count_of(num_files, 'file')}, expected {expected} "
            "from the manifest list; restore its metadata, or rebuild the lake from the log (streamhouse retier)"
        )


def is_only_of(delete: DataFile, location: str) -> bool:
    """Return whether a position delete file applies to this data file only."""
    lower, upper = ((bounds or {}).get(PATH_ID) for bounds in (delete.lower_bounds, delete.upper_bounds))
    return lower == upper == location.encode()


def position_deletes(delete: DataFile, location: str) -> str:
    if delete.content != DataFileContent.POSITION_DELETES or delete.file_format != FileFormat.PARQUET:
        raise LakeMismatchError(
            f"lake table {location} has an unsupported kind of deletes ({delete.file_path}); compact the "
            "table with the engine that wrote them"
        )
    return delete.file_path


def scan_files(
    table: Table,
    snapshot: Snapshot,
    projection: LakeProjection,
    num_buckets: int,
    statistics_of: Sequence[str] = (),
    node: Node = ALWAYS_TRUE,
    only_buckets: Collection[int] | None = None,
) -> tuple[ScanFile, ...]:
    """Return the data files of the snapshot that can match the filter, from manifests that can match.

    Statistics cover the filter's columns and ``statistics_of``, which ``projection`` must include. Omits files in
    partitions of other buckets than ``only_buckets``.
    """
    names = {i: c.name for c, i in zip(projection.schema.columns, projection.field_ids, strict=True) if i is not None}
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
    chosen = PartitionFilter(node, names, projection.schema, table.metadata, only) if node.columns() else None
    tasks = plan_tasks(table, snapshot, chosen)
    files = (_scan_file(task, table.location(), specs, names, field_ids, buckets) for task in tasks)
    return tuple(file for file in files if file_may_match(file, projection.schema, node))


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
    """Return the number of deleted rows. None if delete files apply to other data files, or if several may overlap."""
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


def _columns_never_changed(before: Column, column: Column) -> bool:
    """Return whether a column of another schema of the table is identical to this column or unrelated to it."""
    if before.name.casefold() != column.name.casefold() and before.id != column.id:
        return True
    return (before.id, before.name) == (column.id, column.name) and has_same_storage(before, column)


def _is_same(field: ice.NestedField, field_id: int | None, name: str, arrow: Any) -> bool:
    """Return whether a field of another schema of the lake is identical to this column or unrelated to it."""
    if field.name.casefold() != name.casefold() and field.field_id != field_id:
        return True
    is_column = field.name == name and field.field_id == field_id
    return is_column and "fixed" not in type_without_ids(field.field_type) and is_stored_as(arrow, field.field_type)


def snapshot(binding: IcebergTableBinding, metadata: TableMetadata, snapshot_id: int) -> LakeSnapshot:
    return _describe_snapshot(binding, metadata, require_snapshot(metadata, snapshot_id))


def snapshot_by_name(binding: IcebergTableBinding, metadata: TableMetadata, name: str) -> LakeSnapshot:
    snapshot = metadata.snapshot_by_name(name)
    if snapshot is None:
        raise SnapshotExpiredError(
            f"lake table {metadata.location} has no tag or branch '{name}'; choose one of {', '.join(metadata.refs)}"
        )
    return _describe_snapshot(binding, metadata, snapshot)


def snapshot_as_of(binding: IcebergTableBinding, metadata: TableMetadata, timestamp_ms: int) -> LakeSnapshot:
    times_ms = latest_possible_times_ms([log_time_ms(metadata, entry) for entry in metadata.snapshot_log])
    entries = [e for e, time_ms in zip(metadata.snapshot_log, times_ms, strict=True) if time_ms <= timestamp_ms]
    if not entries:
        first = min(times_ms, default=None)
        raise SnapshotExpiredError(
            f"lake table {metadata.location} has no snapshot at or before {timestamp_ms} ms; the oldest retained one "
            f"is from {first} ms; choose a later time"
        )
    # The last in log order, because all snapshots get the time of their predecessor while a clock is slow.
    return _describe_snapshot(binding, metadata, require_snapshot(metadata, entries[-1].snapshot_id))


class IcebergScan(SnapshotScan):
    """The scan of a snapshot with the schema of its time, or of the current snapshot with the current schema."""

    def __init__(self, binding: IcebergTableBinding, table: Table, snapshot_id: int | None) -> None:
        metadata = table.metadata
        self._binding = binding
        self._table = table
        self._snapshot = metadata.current_snapshot() if snapshot_id is None else require_snapshot(metadata, snapshot_id)
        if self._snapshot is None or snapshot_id is None:
            self._schema = metadata.schema()
        else:
            self._schema = snapshot_schema(metadata, self._snapshot)
        self._mapping = iceberg_columns(metadata, binding.spec)

    def describe(self) -> LakeSnapshot | None:
        return (
            None if self._snapshot is None else _describe_snapshot(self._binding, self._table.metadata, self._snapshot)
        )

    def projection(self, columns: Sequence[str] | None, schema: TableSchema | None) -> LakeProjection:
        return projection(self._schema, self._mapping, self._binding.spec.schema, columns, schema)

    def files(
        self, every: LakeProjection, statistics_of: Sequence[str], node: Node, buckets: Collection[int] | None
    ) -> tuple[ScanFile, ...]:
        if self._snapshot is None:
            return ()
        return scan_files(
            self._table, self._snapshot, every, self._binding.spec.num_buckets, statistics_of, node, buckets
        )

    def is_unchanged(self, column: Column, field_id: int | None) -> bool:
        fields = (field for schema in self._table.metadata.schemas for field in schema.fields)
        return all(_is_same(field, field_id, column.name, column.type) for field in fields) and all(
            _columns_never_changed(before, column) for before in self._older_columns
        )

    @cached_property
    def _older_columns(self) -> Collection[Column]:
        """Columns of all schemas of the table, because other engines may drop older schemas of the lake."""
        return {column for schema in self._binding.spec.schemas.values() for column in schema.columns}


def _describe_snapshot(binding: IcebergTableBinding, metadata: TableMetadata, snapshot: Snapshot) -> LakeSnapshot:
    uuid = binding.spec.table_uuid
    try:
        offsets = offsets_at(metadata, snapshot, uuid)
    except LakeMismatchError:
        if snapshot.snapshot_id == metadata.current_snapshot_id:
            raise
        return describe_snapshot(snapshot, None)  # a snapshot of a former owner of the lake
    if offsets is None and snapshot.snapshot_id == metadata.current_snapshot_id:
        offsets = newest_offsets(metadata, uuid)
    return describe_snapshot(snapshot, offsets)
