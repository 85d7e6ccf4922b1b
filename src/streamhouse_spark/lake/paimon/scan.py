"""Scan planning of a Paimon table: the files of a snapshot and their columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.schema.data_types import DataField
from pypaimon.schema.table_schema import TableSchema as PaimonSchema
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.row.internal_row import InternalRow

from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node, to_plan_value
from streamhouse_spark.lake.column_mapping import ColumnMapping
from streamhouse_spark.lake.paimon.evolution import paimon_columns
from streamhouse_spark.lake.paimon.file_io import StorageFileIO, translate_metadata_errors
from streamhouse_spark.lake.paimon.manifests import MetadataReader, PartitionFilter
from streamhouse_spark.lake.paimon.merge_tree import (
    KIND,
    SEQUENCE,
    group_files,
    group_sections,
    is_own_keyed_name,
    is_raw,
    merge_projection,
    merge_scan_files,
)
from streamhouse_spark.lake.paimon.schema import (
    is_stored_as,
    is_variant,
    lake_schema,
    nested_field_finder,
    nested_field_paths,
)
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.paimon.tiering_commit import describe_past_snapshot, describe_snapshot
from streamhouse_spark.lake.parquet.file_writer import is_own_name
from streamhouse_spark.lake.reader import SnapshotScan, file_may_match, projection_of
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import ColumnStatistics, FieldNames, LakeProjection, LakeSnapshot, ScanFile
from streamhouse_spark.schema.nested_fields import join_path
from streamhouse_spark.schema.table_schema import Column, TableSchema


def projection(
    lake: PaimonSchema,
    mapping: ColumnMapping,
    table: TableSchema,
    columns: Sequence[str] | None,
    schema: TableSchema | None,
) -> LakeProjection:
    """Return the projection of the lake's columns to the table's. See `projection_of`."""
    types = {field.id: field.type for field in lake.fields}
    return projection_of(
        lake_schema(lake),
        mapping,
        table,
        columns,
        schema,
        is_stored=lambda own, field_id: is_stored_as(own, types[field_id]),
        # If the lake does not have the column, another may have its name: use a name that no file has.
        ambiguous=lambda name: name or "",
        inner_of=nested_field_finder(lake.fields),
    )


def own_projection(table: PaimonTable, spec: LakeTableSpec) -> LakeProjection:
    """Return the projection of all columns of the table from its latest files."""
    mapping = paimon_columns(table.schema, spec, table.schemas)
    return projection(table.schema, mapping, spec.schema, None, spec.schema)


def key_projection(lake: PaimonSchema, table: PaimonTable, spec: LakeTableSpec) -> LakeProjection:
    """Return the projection of the primary key columns, in key order, from files with one of the lake's schemas."""
    return projection(lake, paimon_columns(table.schema, spec), spec.schema, lake.primary_keys, None)


def scan_files(
    binding: PaimonTableBinding,
    table: PaimonTable,
    snapshot: Snapshot,
    lake: PaimonSchema,
    projection: LakeProjection,
    statistics_of: Sequence[str] = (),
    node: Node = ALWAYS_TRUE,
) -> tuple[ScanFile, ...]:
    """Return the data files of the snapshot that can match the filter, in offset order.

    Statistics cover the filter's columns and ``statistics_of``, and ``projection`` has all relevant columns of
    ``lake``. Reads only manifests with a matching partition. In a primary-key table, files that share keys or have
    deletes are returned as one. Raises `LakeMismatchError` for unsupported files.
    """
    names = {i: c.name for c, i in zip(projection.schema.columns, projection.field_ids, strict=True) if i is not None}
    statistics_columns = {*statistics_of, *node.columns()}
    field_ids = {i for i, name in names.items() if name in statistics_columns}
    chosen = PartitionFilter(node, names, projection.schema) if node.columns() else None
    reader = MetadataReader(table, StorageFileIO(binding.files), chosen)
    entries = sorted(reader.live_entries(snapshot), key=lambda e: (e.file.min_sequence_number, e.file.file_name))

    def described(entry: ManifestEntry) -> ScanFile:
        file = _scan_file(reader, entry, names, binding.spec.num_buckets, field_ids)
        return replace(file, field_names=names_in_file(table, lake, entry, inside=bool(projection.inner)))

    def files() -> Iterator[ScanFile]:
        if not lake.primary_keys:
            yield from map(described, entries)
            return
        by = merge_projection(key_projection(lake, table, binding.spec))
        for part in (part for members in group_files(entries).values() for part in group_sections(members)):
            is_single = len(part) == 1 and is_raw(part[0])
            yield described(part[0]) if is_single else merge_scan_files([*map(described, part)], by)

    with translate_metadata_errors(table.location):
        return tuple(file for file in files() if file_may_match(file, projection.schema, node))


def _scan_file(
    reader: MetadataReader, entry: ManifestEntry, names: Mapping[int, str], num_buckets: int, field_ids: set[int]
) -> ScanFile:
    """Return one file. ``names`` maps field ids to columns. Statistics are returned for ``field_ids``."""
    file = entry.file
    return ScanFile(
        location=reader.location(entry),
        size_bytes=file.file_size,
        num_rows=file.row_count,
        bucket=entry.bucket if entry.total_buckets == num_buckets else None,
        partition={
            names.get(field.id, field.name): to_plan_value(value)
            for field, value in zip(entry.partition.fields, entry.partition.values, strict=True)
        },
        statistics={names[field.id]: statistics for field, statistics in _statistics(entry) if field.id in field_ids},
    )


def _statistics(entry: ManifestEntry) -> list[tuple[DataField, ColumnStatistics]]:
    stats = entry.file.value_stats
    fields, nulls = stats.min_values.fields, stats.null_counts or []
    if len(nulls) != len(fields):
        return []
    return [
        (
            field,
            ColumnStatistics(_bound(stats.min_values, i), _bound(stats.max_values, i), nulls[i], entry.file.row_count),
        )
        for i, field in enumerate(fields)
    ]


def _bound(bounds: InternalRow, index: int) -> Any:
    """Return a bound, or None for another engine's date or time that Python does not support."""
    try:
        return to_plan_value(bounds.get_field(index))
    except OverflowError:
        return None


def names_in_file(table: PaimonTable, lake: PaimonSchema, entry: ManifestEntry, *, inside: bool = False) -> FieldNames:
    """Return the column names of another engine's file, which may have no field ids, from the schema of the file.

    With ``inside``, includes nested names, for columns whose nested fields changed. Returns none if that schema is
    ``lake``, no nested fields changed, and no column is VARIANT, which Paimon's Java library writes without field id.
    """
    name = entry.file.file_name
    if is_own_name(name) or is_own_keyed_name(name):
        return ()
    fields = table.schemas[entry.file.schema_id].fields
    if entry.file.schema_id == lake.id and not inside and not any(is_variant(field.type) for field in fields):
        return ()
    own = (SEQUENCE, KIND) if lake.primary_keys else ()
    names = [(field.id, field.name) for field in (*own, *fields)]
    if inside:
        names += [(i, join_path((f.name, *path))) for f in fields for path, i in nested_field_paths(f.type)]
    return tuple(names)


class PaimonScan(SnapshotScan):
    """The scan of a snapshot with the schema of its time, or of the latest snapshot with the latest schema."""

    def __init__(self, binding: PaimonTableBinding, table: PaimonTable, snapshot_id: int | None) -> None:
        self._binding = binding
        self._table = table
        self._is_newest = snapshot_id is None
        self._snapshot = (
            table.snapshot if snapshot_id is None else binding.snapshots.require(snapshot_id, table.snapshot)
        )
        is_newest = self._snapshot is None or snapshot_id is None
        self._schema = table.schema if is_newest else table.schema_of(self._snapshot)
        self._mapping = paimon_columns(table.schema, binding.spec, table.schemas)

    def describe(self) -> LakeSnapshot | None:
        if self._snapshot is None:
            return None
        return (describe_snapshot if self._is_newest else describe_past_snapshot)(self._binding, self._snapshot)

    def projection(self, columns: Sequence[str] | None, schema: TableSchema | None) -> LakeProjection:
        return projection(self._schema, self._mapping, self._binding.spec.schema, columns, schema)

    def files(
        self, every: LakeProjection, statistics_of: Sequence[str], node: Node, buckets: Collection[int] | None
    ) -> tuple[ScanFile, ...]:
        if self._snapshot is None:
            return ()
        files = scan_files(self._binding, self._table, self._snapshot, self._schema, every, statistics_of, node)
        return tuple(file for file in files if buckets is None or file.bucket is None or file.bucket in buckets)

    def is_unchanged(self, column: Column, field_id: int | None) -> bool:
        fields = (field for schema in self._table.schemas.values() for field in schema.fields)
        return all(_is_same(field, field_id, column.name, column.type) for field in fields)


def _is_same(field: DataField, field_id: int | None, name: str, arrow: Any) -> bool:
    """Return whether a field of another schema of the table is identical to this column or unrelated to it."""
    if field.name.casefold() != name.casefold() and field.id != field_id:
        return True
    return bool(field.name == name and field.id == field_id and is_stored_as(arrow, field.type))
