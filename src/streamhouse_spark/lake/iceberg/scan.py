"""Scan planning of an Iceberg table: the files of a snapshot and their columns."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from streamhouse_spark.errors import CorruptDataError, LakeMismatchError, SnapshotExpiredError
from streamhouse_spark.lake.column_map import ColumnMap
from streamhouse_spark.lake.iceberg.evolution import iceberg_columns
from streamhouse_spark.lake.iceberg.file_io import expect, lake_metadata, manifests_of
from streamhouse_spark.lake.iceberg.partitions import PartitionFilter
from streamhouse_spark.lake.iceberg.schema import PATH_ID, is_stored_as, lake_schema, nested_field_finder
from streamhouse_spark.lake.model.values import LakeProjection
from streamhouse_spark.lake.reader import projection_of
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.schema.table_schema import TableSchema


def snapshot_schema(metadata: TableMetadata, snapshot: Snapshot) -> Schema:
    """Return the schema that was current when the snapshot was made."""
    schema = metadata.schema_by_id(snapshot.schema_id) if snapshot.schema_id is not None else None
    return schema or metadata.schema()


def projection(
    lake: Schema, mapping: ColumnMap, table: TableSchema, columns: Sequence[str] | None, schema: TableSchema | None
) -> LakeProjection:
    """Return the projection of the lake's columns to the table's, as `projection_of` does."""
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
        shown = ", ".join(str(s.snapshot_id) for s in in_commit_order[-5:]) or "none"
        raise SnapshotExpiredError(
            f"lake table {metadata.location} has no snapshot {snapshot_id}: it was expired or never there; the newest "
            f"kept are {shown}; choose one of them"
        )
    return snapshot


def plan_tasks(table: Table, snapshot: Snapshot, chosen: PartitionFilter | None = None) -> list[FileScanTask]:
    """List the data files of a snapshot in the partitions of ``chosen``, all by default, each with its deletes.

    Reads all delete manifests, unless no data file is left. Raises `LakeMismatchError` for unsupported files and
    deletes, `SnapshotExpiredError`, `CorruptDataError` if the manifests have other numbers of files than their list.
    """
    counted: list[int] = []  # the row counts of live data files, added by the library's threads

    def is_in_scan(entry: ManifestEntry) -> bool:
        file = entry.data_file
        if file.content != DataFileContent.DATA:
            return True
        counted.append(file.record_count)
        return chosen is None or chosen.test(file)

    planner = ManifestGroupPlanner(table.metadata, table.io, AlwaysTrue(), case_sensitive=False)
    with lake_metadata(table.location()):
        expect(table.io, [(snapshot.manifest_list, 0)])
        manifests = manifests_of(table.io, snapshot)
        data = [
            m
            for m in manifests
            if m.content == ManifestContent.DATA and (chosen is None or chosen.may_match_manifest(m))
        ]
        deletes = [m for m in manifests if m.content != ManifestContent.DATA] if data else []
        expect(table.io, ((m.manifest_path, m.manifest_length) for m in (*data, *deletes)))
        try:
            tasks = list(planner.plan_files([*data, *deletes], is_in_scan))
        except ValueError as error:
            if "equality deletes" not in str(error):
                raise
            raise LakeMismatchError(
                f"lake table {table.location()} has equality deletes, which cannot be read here: {error}; "
                "compact the table with the engine that wrote them"
            ) from error
    _require_all_files(table, data, len(counted))
    for task in tasks:
        if task.file.file_format != FileFormat.PARQUET:
            raise LakeMismatchError(
                f"lake file {task.file.file_path} of {table.location()} is {task.file.file_format.value}, only PARQUET "
                "is read here; rewrite it with the engine that wrote it"
            )
    return tasks


def _require_all_files(table: Table, manifests: Sequence[ManifestFile], num_files: int) -> None:
    """Raise `CorruptDataError` unless the manifests have as many live files as their list says. Avro has no checksum:
    a flipped bit may change the status of an entry.
    """
    counts = [count for m in manifests for count in (m.added_files_count, m.existing_files_count)]
    expected = sum(count for count in counts if count is not None)
    if None not in counts and num_files != expected:
        raise CorruptDataError(
            f"lake table {table.location()}: its manifests have {num_files} files, expected {expected} by the manifest "
            "list; restore its metadata, or rebuild the lake from the log (streamhouse retier)"
        )


def is_only_of(delete: DataFile, location: str) -> bool:
    """Return whether a position delete file names positions of this data file only."""
    lower, upper = ((bounds or {}).get(PATH_ID) for bounds in (delete.lower_bounds, delete.upper_bounds))
    return lower == upper == location.encode()


def position_deletes(delete: DataFile, location: str) -> str:
    if delete.content != DataFileContent.POSITION_DELETES or delete.file_format != FileFormat.PARQUET:
        raise LakeMismatchError(
            f"lake table {location} has deletes of a kind that cannot be read here ({delete.file_path}); compact the "
            "table with the engine that wrote them"
        )
    return delete.file_path
