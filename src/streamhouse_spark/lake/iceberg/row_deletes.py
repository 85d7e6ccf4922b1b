"""Deletes of rows of a log table with position deletes. See `lake.row_deletes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.lake.iceberg.file_io import prefetch_files, read_snapshot_manifests, translate_metadata_errors
from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec
from streamhouse_spark.lake.iceberg.position_deletes import describe_live_file, write_deletes
from streamhouse_spark.lake.iceberg.scan import own_projection, plan_tasks, require_snapshot
from streamhouse_spark.lake.iceberg.schema import bucket_of, bucket_source
from streamhouse_spark.lake.iceberg.snapshots import newest_offsets
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.iceberg.tiering_commit import plan_data_files
from streamhouse_spark.lake.parquet.file_writer import FileOutput
from streamhouse_spark.lake.parquet.parquet_io import FileAccess, StorageFiles
from streamhouse_spark.lake.parquet.reader import Positions, read_deleted_positions, read_file_offsets
from streamhouse_spark.lake.row_deletes import SnapshotFiles, find_deleted_positions, require_applied
from streamhouse_spark.lake.types import (
    LakeFile,
    LakeProjection,
    LakeSplit,
    LiveFile,
    PendingDeletes,
    RewrittenRows,
    WriteContext,
)

_NO_OFFSETS: Final = OffsetRange(0, 0)
_NO_ROWS: Final = OffsetSet.dense(0, 0)


def write_row_deletes(
    binding: IcebergTableBinding,
    context: WriteContext,
    rows: Mapping[int, OffsetSet],
    added: Sequence[LakeFile],
    *,
    with_older: bool,
) -> tuple[list[LakeFile], RewrittenRows]:
    """Write position deletes for the rows at these offsets.

    Returns the files, which are durable, and the rows that may be in files without offsets. Searches the files that a
    round has written, and with ``with_older`` those of the context's snapshot. Positions that are already deleted stay
    deleted and are not counted again.
    """
    spec = IcebergFileSpec.from_json(context.lake)
    output = FileOutput(context, spec, binding.files_at(spec.data_location), binding.world.ids)
    remaining = dict(rows)
    foreign: str | None = None
    written: list[LakeFile] = []
    for file in _candidate_files(binding, context, rows, added, with_older=with_older):
        access = binding.files_at(file.location)
        own = read_file_offsets(access, file.location, binding.spec.writers)
        if own is None:
            foreign = file.location
            continue
        hit = own.runs.common(remaining.get(own.bucket, _NO_ROWS))
        if not hit:
            continue
        remaining[own.bucket] = remaining[own.bucket].without(hit)
        written.extend(_write_new_deletes(output, own.bucket, hit.range, file, own.runs.rows_at(hit), access))
    moved = {bucket: runs for bucket, runs in remaining.items() if runs} if foreign is not None else {}
    return written, RewrittenRows(moved, foreign)


def _candidate_files(
    binding: IcebergTableBinding,
    context: WriteContext,
    rows: Mapping[int, OffsetSet],
    added: Sequence[LakeFile],
    *,
    with_older: bool,
) -> Iterator[LiveFile]:
    """Yield the files that may have the rows, each once."""
    for new in added:
        if new.bucket in rows:
            yield LiveFile(new.location, new.size_bytes, new.num_rows, new.spec_id, new.partition)
    seen_locations: set[str] = set()
    for files in plan_data_files(binding, context, list(rows)).values() if with_older else ():
        for file in files:
            if file.location not in seen_locations:
                seen_locations.add(file.location)
                yield file


def _write_new_deletes(
    output: FileOutput, bucket: int, offsets: OffsetRange, file: LiveFile, positions: Positions, access: FileAccess
) -> Iterator[LakeFile]:
    """Write the position delete file of a data file, unless all positions are already deleted."""
    new = np.setdiff1d(positions, read_deleted_positions(access, file.location, file.deletes), assume_unique=True)
    if len(new):
        every: Positions = np.union1d(read_deleted_positions(access, file.location, file.own_deletes), new)
        yield write_deletes(output, bucket, offsets, file, every, num_dropped=len(new))


def write_file_deletes(
    binding: IcebergTableBinding, context: WriteContext, pending: PendingDeletes, moved: RewrittenRows
) -> list[LakeFile]:
    """Write position deletes for rows without offsets. See `LakeTable.delete_rows`.

    ``moved`` are deleted rows that had offsets. Positions that are already deleted in the context's snapshot stay
    deleted and are not counted again.
    """
    if not pending.file_deletes and not moved.rows:
        return []
    spec = IcebergFileSpec.from_json(context.lake)
    table = binding.require()
    planned = table.metadata.current_snapshot()
    if planned is None or planned.snapshot_id != spec.snapshot_id:
        raise CommitConflictError(
            f"lake table {table.location()}: snapshot {spec.snapshot_id}, with which this round started, is no longer "
            "the latest; retry"
        )
    offsets = newest_offsets(table.metadata, binding.spec.table_uuid)
    require_applied(table.location(), planned.snapshot_id, offsets, pending.applied_through)
    live = _IcebergFiles(binding, table, planned, own_projection(table.metadata, binding.spec))
    output = FileOutput(context, spec, binding.files_at(spec.data_location), binding.world.ids)
    deleted = find_deleted_positions(live, pending, moved)
    return [
        file
        for name, positions in deleted.items()
        for file in _write_unlocated(binding, table, output, live.tasks[name], positions)
    ]


def _write_unlocated(
    binding: IcebergTableBinding, table: Table, output: FileOutput, task: FileScanTask, positions: Positions
) -> Iterator[LakeFile]:
    file = describe_live_file(task, table, ())
    source_id = bucket_source(table.metadata, binding.spec.num_buckets)
    file_spec = table.metadata.specs()[task.file.spec_id]
    bucket = bucket_of(file_spec, task.file.partition, binding.spec.num_buckets, source_id) or 0
    return _write_new_deletes(output, bucket, _NO_OFFSETS, file, positions, binding.files_at(file.location))


class _IcebergFiles(SnapshotFiles):
    def __init__(
        self, binding: IcebergTableBinding, table: Table, snapshot: Snapshot, projection: LakeProjection
    ) -> None:
        names = StorageFiles(binding.storage)
        self.binding: IcebergTableBinding = binding
        self.projection = projection
        self.location = table.location()
        self.names = self.tasks = {names.name_of(task.file.file_path): task for task in plan_tasks(table, snapshot)}
        self._table = table

    def split(self, name: str) -> LakeSplit:
        file = describe_live_file(self.tasks[name], self._table, ())
        return LakeSplit(file.location, file.size_bytes, file.num_rows, position_deletes=file.deletes)

    def files_before(self, recorded: int) -> Iterator[_IcebergFiles]:
        yield _IcebergFiles(
            self.binding, self._table, require_snapshot(self._table.metadata, recorded), self.projection
        )


def list_data_files(binding: IcebergTableBinding, snapshot_id: int) -> Sequence[str]:
    """Return the locations of all data files of a snapshot in a stable order. Raises `SnapshotExpiredError`."""
    table = binding.require()
    snapshot = require_snapshot(table.metadata, snapshot_id)
    with translate_metadata_errors(table.location()):
        prefetch_files(table.io, [(snapshot.manifest_list, 0)])
        manifests = [m for m in read_snapshot_manifests(table.io, snapshot) if m.content == ManifestContent.DATA]
        prefetch_files(table.io, ((m.manifest_path, m.manifest_length) for m in manifests))
        return sorted(e.data_file.file_path for m in manifests for e in m.fetch_manifest_entry(table.io))
