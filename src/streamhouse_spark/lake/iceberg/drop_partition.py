"""Partition drops in an Iceberg lake of a log table, in one snapshot with unchanged offsets.

**Commit point:** the metadata version with that snapshot. Every attempt validates that it is based on the snapshot
whose files were selected; after another commit, files are selected again. Files whose rows were all appended before the
drop are removed whole. A file with later rows, from concurrent tiering or compaction, is rewritten with these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.transforms import IdentityTransform

from streamhouse_spark.errors import LakeMismatchError
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.lake.iceberg.compaction import load_current_table
from streamhouse_spark.lake.iceberg.file_io import read_snapshot_manifests, translate_metadata_errors
from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec
from streamhouse_spark.lake.iceberg.position_deletes import find_data_file_of_deletes
from streamhouse_spark.lake.iceberg.scan import own_projection
from streamhouse_spark.lake.iceberg.snapshot_commit import SnapshotUpdate, commit_snapshot
from streamhouse_spark.lake.iceberg.snapshots import newest_offsets
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.iceberg.tiering_commit import (
    require_committable,
    require_snapshot_as_planned,
    require_written,
    write_context,
)
from streamhouse_spark.lake.parquet.copy_on_write import (
    FilesToDrop,
    find_files_to_drop,
    has_external_name,
    require_tiered,
)
from streamhouse_spark.lake.parquet.file_writer import FileOutput
from streamhouse_spark.lake.types import LakeDropReport, LakeFile, LakeSplit


def drop_partitions(
    binding: IcebergTableBinding, chosen: PartitionMatches, below: Mapping[int, int], *, dry_run: bool
) -> LakeDropReport:
    """Attempt the drop of `LakeTable.drop_partitions` once. Raises `CommitConflictError` if the caller should retry."""
    current = load_current_table(binding, dry_run=dry_run)
    if current is None:
        return LakeDropReport()
    table, planned = current
    files_to_drop, deletes = _find_files_to_drop(binding, table, planned, chosen, below)
    report = files_to_drop.report()
    if not files_to_drop.files or dry_run:
        return report
    context = write_context(binding)
    file_spec = IcebergFileSpec.from_json(context.lake)
    output = FileOutput(context, file_spec, binding.files_at(file_spec.data_location), binding.world.ids)
    added = files_to_drop.rewrite_partial_files(output, own_projection(table.metadata, binding.spec), binding.files_at)

    def validated(metadata: TableMetadata) -> SnapshotUpdate:
        binding.require_owner(metadata)
        offsets = newest_offsets(metadata, binding.spec.table_uuid)
        require_tiered(metadata.location, offsets.offsets if offsets else {}, below)
        require_snapshot_as_planned(metadata, planned.snapshot_id)
        if added:
            require_committable(metadata, file_spec)
            require_written(binding, metadata, added, file_spec)
        return _make_change(binding, metadata, files_to_drop, deletes, added)

    return replace(report, snapshot=commit_snapshot(binding, validated))


def _make_change(
    binding: IcebergTableBinding,
    metadata: TableMetadata,
    files_to_drop: FilesToDrop[DataFile],
    deletes: Sequence[DataFile],
    added: Sequence[LakeFile],
) -> SnapshotUpdate:
    table_uuid = binding.spec.table_uuid
    summary = files_to_drop.properties_after(newest_offsets(metadata, table_uuid), table_uuid)
    return SnapshotUpdate(
        Operation.OVERWRITE if added else Operation.DELETE,
        added=added,
        removed=sorted(file.file_path for file in files_to_drop.files),
        removed_deletes=sorted(file.file_path for file in deletes),
        summary=summary,
    )


def _find_files_to_drop(
    binding: IcebergTableBinding, table: Table, snapshot: Snapshot, chosen: PartitionMatches, below: Mapping[int, int]
) -> tuple[FilesToDrop[DataFile], Sequence[DataFile]]:
    """Return the data files to remove, and the delete files that then apply to no file."""
    schema, specs = table.metadata.schema(), table.metadata.specs()
    chosen = chosen.renamed({name: schema.find_field(name, case_sensitive=False).name for name in chosen.columns})
    deletes: list[DataFile] = []

    def candidates() -> Iterator[tuple[DataFile, LakeSplit]]:
        for content, file in _list_live_files(table, snapshot):
            partition = _partition_values(file, specs[file.spec_id], schema)
            if content == ManifestContent.DELETES:
                if partition.keys() >= set(chosen.columns) and chosen.holds(partition):
                    deletes.append(file)
                continue
            if missing := [name for name in chosen.columns if name not in partition]:
                raise LakeMismatchError(
                    f"lake file {file.file_path} of {table.location()} is not partitioned by {', '.join(missing)}, so "
                    "its rows of the partition are unknown; rewrite the file with the engine that wrote it"
                )
            if chosen.holds(partition):
                yield file, LakeSplit(file.file_path, file.file_size_in_bytes, file.record_count)

    with translate_metadata_errors(table.location()):
        files_to_drop = find_files_to_drop(candidates(), binding.files_at, binding.spec.writers, below)
    if files_to_drop.partial and deletes:
        raise LakeMismatchError(
            f"lake table {table.location()}: rows of {chosen} were deleted individually, and "
            f"{files_to_drop.partial[0].split.location} has rows from before and after this drop; nothing was dropped. "
            "Drop the partition again"
        )
    locations = {file.file_path for file in files_to_drop.files}
    deletes_to_drop = [
        (file.record_count, find_data_file_of_deletes(file))
        for file in deletes
        if find_data_file_of_deletes(file) in locations
    ]
    num_deleted = sum(count for count, _ in deletes_to_drop)
    num_foreign = files_to_drop.foreign_rows - sum(
        count for count, location in deletes_to_drop if location and has_external_name(location)
    )
    return replace(
        files_to_drop, deleted_rows=num_deleted, foreign_rows=num_foreign
    ), deletes if files_to_drop.is_whole else ()


def _list_live_files(table: Table, snapshot: Snapshot) -> Iterator[tuple[ManifestContent, DataFile]]:
    for manifest in read_snapshot_manifests(table.io, snapshot):
        for entry in manifest.fetch_manifest_entry(table.io):
            yield manifest.content, entry.data_file


def _partition_values(file: DataFile, spec: PartitionSpec, schema: Schema) -> dict[str, object]:
    """Return the values of the file's partition columns."""
    values = {}
    for position, field in enumerate(spec.fields):
        name = schema.find_column_name(field.source_id)
        if isinstance(field.transform, IdentityTransform) and name is not None:
            values[name] = file.partition[position]
    return values
