"""A tiering round in the lake: the context of its tasks, and the commit fenced by offsets."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.lake.iceberg.evolution import require_lake_migrated
from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec
from streamhouse_spark.lake.iceberg.position_deletes import find_live_files
from streamhouse_spark.lake.iceberg.snapshot_commit import SnapshotUpdate, commit_snapshot, not_before_ms
from streamhouse_spark.lake.iceberg.snapshots import newest_offsets
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.types import LakeFile, LakeSnapshot, LiveFile, WriteContext, has_same_offsets
from streamhouse_spark.lake.validation import LogRange, next_offsets, require_dense, require_offsets, require_present


def write_context(binding: IcebergTableBinding) -> WriteContext:
    table = binding.require()
    binding.require_owner(table.metadata)
    require_lake_migrated(table.metadata, binding.spec)
    properties = {k: v for k, v in table.properties.items() if k.startswith(("write.parquet.", "write.metadata."))}
    head = table.metadata.current_snapshot_id
    file_spec = IcebergFileSpec(
        table.schema(), table.spec(), data_location(table), properties, binding.storage.now_ms(), head
    )
    spec = binding.spec
    return WriteContext(spec.table_uuid, spec.schema, spec.target_file_bytes, file_spec.to_json(), spec.primary_key)


def data_location(table: Table) -> str:
    """Return the location of new data files."""
    location: str = table.properties.get("write.data.path", f"{table.location().rstrip('/')}/data")
    return location.rstrip("/")


def plan_data_files(
    binding: IcebergTableBinding, context: WriteContext, buckets: Collection[int]
) -> dict[int, tuple[LiveFile, ...]]:
    """Return the data files by bucket. See `LakeTable.live_files`."""
    file_spec = IcebergFileSpec.from_json(context.lake)
    if file_spec.snapshot_id is None:
        return dict.fromkeys(buckets, ())
    table = binding.require()
    snapshot = table.metadata.snapshot_by_id(file_spec.snapshot_id)
    if snapshot is None:
        raise CommitConflictError(
            f"lake table {table.location()}: snapshot {file_spec.snapshot_id}, with which this round started, expired; "
            "retry"
        )
    return find_live_files(table, snapshot, file_spec.field_ids(context.primary_key), buckets, binding.spec.num_buckets)


def commit_round(
    binding: IcebergTableBinding, files: Sequence[LakeFile], expected: LogRange, new: LogRange, context: WriteContext
) -> LakeSnapshot | None:
    """Commit a round. See `LakeTable.commit`."""
    is_truncated = not has_same_offsets(expected.starts, new.starts)
    if not files and not is_truncated and has_same_offsets(expected.ends, new.ends):
        return None
    is_keyed = bool(binding.spec.primary_key)
    if not is_keyed:
        data = [file for file in files if file.deletes is None]
        require_dense(data, new.starts if is_truncated else expected.ends, new.ends)
    num_deleted = sum(file.deletes.num_dropped for file in files if file.deletes)
    has_deletes = any(file.deletes for file in files)
    replaced = {location for file in files if file.deletes for location in file.deletes.replaces}
    file_spec = IcebergFileSpec.from_json(context.lake)

    def validated(metadata: TableMetadata) -> SnapshotUpdate:
        binding.require_owner(metadata)
        require_committable(metadata, file_spec)
        offsets = newest_offsets(metadata, binding.spec.table_uuid)
        require_offsets(metadata.location, offsets, expected)
        moved = next_offsets(offsets, expected, new, num_deleted, binding.spec.history)
        summary = moved.to_properties(binding.spec.table_uuid)
        if is_keyed or has_deletes:
            require_snapshot_as_planned(metadata, file_spec.snapshot_id)
        require_written(binding, metadata, files, file_spec)
        if not is_truncated or metadata.current_snapshot() is None:
            operation = Operation.OVERWRITE if has_deletes else Operation.APPEND
            return SnapshotUpdate(operation, added=files, removed_deletes=sorted(replaced), summary=summary)
        operation = Operation.OVERWRITE if files else Operation.DELETE
        return SnapshotUpdate(operation, added=files, removes_all=True, summary=summary)

    return commit_snapshot(binding, validated)


def require_snapshot_as_planned(metadata: TableMetadata, planned: int | None) -> None:
    """Require that nothing was committed after positions were read, because rows may have moved or been deleted."""
    if metadata.current_snapshot_id != planned:
        raise CommitConflictError(
            f"lake table {metadata.location}: the current snapshot is {metadata.current_snapshot_id}, expected "
            f"{planned}, from which rows were read; retry"
        )


def require_committable(metadata: TableMetadata, file_spec: IcebergFileSpec) -> None:
    current = (metadata.current_schema_id, metadata.default_spec_id)
    planned = (file_spec.schema.schema_id, file_spec.spec.spec_id)
    if current != planned or metadata.schema() != file_spec.schema or metadata.spec() != file_spec.spec:
        raise CommitConflictError(
            f"lake table {metadata.location}: schema and partition spec are {current}, expected {planned}, for which "
            "the files were written; retry the round"
        )


def require_written(
    binding: IcebergTableBinding, metadata: TableMetadata, files: Sequence[LakeFile], file_spec: IcebergFileSpec
) -> None:
    """Require that the files exist with their written size, and that no later orphan removal may have deleted them."""
    if file_spec.planned_ms < not_before_ms(metadata):
        raise CommitConflictError(
            f"lake table {metadata.location}: this round was planned at {file_spec.planned_ms} ms, but orphan files "
            f"from before {not_before_ms(metadata)} ms were removed; retry the round"
        )

    require_present(binding.files_at, files)
