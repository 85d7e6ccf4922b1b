"""Deletion of rows in files of other engines, named by file and position, or by offset, in an older snapshot.

A file that still exists has the row at its position. If another engine replaced the file, its rows are in newer files:
there, as many rows are deleted as equal the deleted ones in all columns. Equal rows are indistinguishable, so these are
the deleted ones. There may be fewer if that engine deleted some itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError, LakeMismatchError, SnapshotExpiredError
from streamhouse_spark.lake.iceberg.file_io import expect, lake_metadata, manifests_of
from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec
from streamhouse_spark.lake.iceberg.position_deletes import describe_live_file, write_deletes
from streamhouse_spark.lake.iceberg.scan import own_projection, plan_tasks, require_snapshot
from streamhouse_spark.lake.iceberg.schema import bucket_of, bucket_source
from streamhouse_spark.lake.iceberg.snapshots import newest_offsets
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.parquet.file_writer import may_hold
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.parquet.reader import read_deleted_positions, read_offset_file
from streamhouse_spark.lake.parquet.row_positions import RowPlaces, find_equal_rows, read_rows_at
from streamhouse_spark.lake.types import LakeFile, LakeSplit, PendingDeletes, RewrittenRows, WriteContext
from streamhouse_spark.lake.validation import require_deletes_resolved
from streamhouse_spark.log.delete_vectors import FileRows, union_deleted_file_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_OFFSETS: Final = OffsetRange(0, 0)


def write_file_deletes(
    place: IcebergTableBinding, context: WriteContext, pending: PendingDeletes, moved: RewrittenRows
) -> list[LakeFile]:
    """Write position deletes for rows without offsets, as `LakeTable.delete_rows` does. Positions already deleted in
    the context's snapshot stay deleted and are not counted again.

    ``moved`` are rows that had offsets when they were deleted.
    """
    if not pending.file_deletes and not moved.rows:
        return []
    spec = IcebergFileSpec.from_json(context.lake)
    table = place.require()
    planned = _planned_snapshot(place, table, spec, pending.applied_through)
    live = _tasks_by_name(place, table, planned)
    to_delete = {
        name: [runs.offsets()] for name, runs in union_deleted_file_rows(pending.file_deletes).items() if name in live
    }
    for name, positions in _find_rewritten_rows(place, table, live, pending, moved).items():
        to_delete.setdefault(name, []).append(positions)
    written = (
        _write_position_deletes(place, table, spec, live[name], np.unique(np.concatenate(parts)))
        for name, parts in to_delete.items()
    )
    return [file for file in written if file is not None]


def _planned_snapshot(
    place: IcebergTableBinding, table: Table, spec: IcebergFileSpec, applied_through: int
) -> Snapshot:
    """Return the snapshot that the round began with.

    It must have applied exactly the expected deletions: otherwise rows that equal deleted ones would be deleted too.
    Raises `CommitConflictError`.
    """
    planned = table.metadata.current_snapshot()
    if planned is None or planned.snapshot_id != spec.snapshot_id:
        raise CommitConflictError(
            f"lake table {table.location()}: snapshot {spec.snapshot_id}, which this round began with, is no longer "
            "the latest; try again"
        )
    offsets = newest_offsets(table.metadata, place.spec.table_uuid)
    applied = offsets.history.number if offsets is not None and offsets.history is not None else 0
    if applied != applied_through:
        raise CommitConflictError(
            f"lake table {table.location()}: snapshot {planned.snapshot_id} lacks rows of deletions up to commit "
            f"{applied}, {applied_through} was expected: another tiering service was faster; try again"
        )
    return planned


def _tasks_by_name(place: IcebergTableBinding, table: Table, snapshot: Snapshot) -> dict[str, FileScanTask]:
    names = StorageFiles(place.storage)
    return {names.name_of(task.file.file_path): task for task in plan_tasks(table, snapshot)}


def _write_position_deletes(
    place: IcebergTableBinding, table: Table, spec: IcebergFileSpec, task: FileScanTask, positions: RowPlaces
) -> LakeFile | None:
    """Write the position delete file of a data file, or return None if all positions are deleted already."""
    file = describe_live_file(task, table, ())
    access = place.files_at(file.location)
    new = np.setdiff1d(positions, read_deleted_positions(access, file.location, file.deletes), assume_unique=True)
    if not len(new):
        return None
    deleted_before = read_deleted_positions(access, file.location, file.own_deletes)
    source_id = bucket_source(table.metadata, place.spec.num_buckets)
    file_spec = table.metadata.specs()[task.file.spec_id]
    bucket = bucket_of(file_spec, task.file.partition, place.spec.num_buckets, source_id) or 0
    files, ids = place.files_at(spec.data_location), place.world.ids
    every: RowPlaces = np.union1d(deleted_before, new)
    return write_deletes(spec, files, ids, bucket, _NO_OFFSETS, file, every, num_dropped=len(new))


# -- rows whose files were replaced ------------------------------------------------------------------------------------


def _find_rewritten_rows(
    place: IcebergTableBinding,
    table: Table,
    live: Mapping[str, FileScanTask],
    pending: PendingDeletes,
    moved: RewrittenRows,
) -> dict[str, RowPlaces]:
    """Find rows of replaced files in newer files: name → positions.

    The recorded snapshot has all files whose rows were deleted since the lake last applied deletions, and the log has
    the rows after its offsets.
    """
    lost_rows = {name: runs for name, runs in union_deleted_file_rows(pending.file_deletes).items() if name not in live}
    how = own_projection(table.metadata, place.spec)
    of_log, left = pending.read_log_rows(moved, how.schema.arrow)
    if not (lost_rows or of_log.num_rows or left.rows):
        return {}
    before: Mapping[str, FileScanTask] = {}
    try:
        if pending.recorded is not None:
            before = _tasks_by_name(place, table, require_snapshot(table.metadata, pending.recorded))
        lost_rows |= _group_rows_by_file(place, table, before, left)
        rows = read_rows_at(
            place.files_at, {name: _make_split(table, before[name]) for name in lost_rows}, lost_rows, how
        )
    except (SnapshotExpiredError, FileNotFoundError) as error:
        raise LakeMismatchError(
            f"lake table {table.location()}: rows of snapshot {pending.recorded} were deleted, and before a round "
            f"could delete them another engine replaced their files and expired that snapshot ({error}), so that "
            "nothing tells which rows these are; restore the snapshot with its files"
        ) from error
    newer = ((name, _make_split(table, task)) for name, task in live.items() if name not in before)
    unread = ((name, split) for name, split in newer if not _has_offsets(place, split.location))
    return dict(find_equal_rows(place.files_at, unread, pa.concat_tables([rows, of_log]), how))


def _has_offsets(place: IcebergTableBinding, location: str) -> bool:
    return read_offset_file(place.files_at(location), location, place.spec.writers) is not None


def _group_rows_by_file(
    place: IcebergTableBinding, table: Table, before: Mapping[str, FileScanTask], moved: RewrittenRows
) -> FileRows:
    """Group rows at offsets by the files that had them. Raises `LakeMismatchError` if a row is in no file."""
    left, rows_of_file = dict(moved.rows), {}
    for name, task in before.items():
        at = task.file.file_path
        if not any(may_hold(at, bucket, runs.range) for bucket, runs in left.items() if runs):
            continue
        own = read_offset_file(place.files_at(at), at, place.spec.writers)
        if own is None or not (hit := own.runs.common(left.get(own.bucket, OffsetSet.dense(0, 0)))):
            continue
        left[own.bucket] = left[own.bucket].without(hit)
        deleted = read_deleted_positions(place.files_at(at), at, describe_live_file(task, table, ()).deletes)
        rows_of_file[name] = OffsetSet.of(np.setdiff1d(own.runs.rows_at(hit), deleted))
    require_deletes_resolved(str(place.spec.path), left, moved.foreign)
    return {name: runs for name, runs in rows_of_file.items() if runs}


def _make_split(table: Table, task: FileScanTask) -> LakeSplit:
    file = describe_live_file(task, table, ())
    return LakeSplit(file.location, file.size_bytes, file.num_rows, position_deletes=file.deletes)


def list_data_files(place: IcebergTableBinding, snapshot_id: int) -> Sequence[str]:
    """Return the locations of all data files of a snapshot in a stable order. Raises `SnapshotExpiredError`."""
    table = place.require()
    snapshot = require_snapshot(table.metadata, snapshot_id)
    with lake_metadata(table.location()):
        expect(table.io, [(snapshot.manifest_list, 0)])
        manifests = [m for m in manifests_of(table.io, snapshot) if m.content == ManifestContent.DATA]
        expect(table.io, ((m.manifest_path, m.manifest_length) for m in manifests))
        return sorted(e.data_file.file_path for m in manifests for e in m.fetch_manifest_entry(table.io))
