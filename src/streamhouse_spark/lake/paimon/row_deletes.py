"""Deletes of individual rows in a Paimon lake of a log table: rewrites files without them.

Every Paimon reader reads such files correctly. Deletion vectors would cost less, but Paimon's streaming readers ignore
that table option. The remaining rows keep their offsets.

Rows of other engines' files have no offsets and are identified by file and position. If another engine replaced such a
file, rows of the new files that are equal to the deleted rows are deleted instead, one for each deleted row.

**Commit point:** that of the round, whose snapshot removes the files, adds their replacements and contains the offsets.
Every attempt fails if one of the files is no longer live, because its rows are in other files then. If rows without
offsets are deleted, the snapshot must directly follow the searched one: otherwise a row that is equal to a deleted one
could be deleted twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError, LakeMismatchError
from streamhouse_spark.lake.file_access import read_offsets_of_files
from streamhouse_spark.lake.paimon.file_io import StorageFileIO
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec, encode_field
from streamhouse_spark.lake.paimon.manifests import MetadataReader
from streamhouse_spark.lake.paimon.scan import names_in_file, own_projection
from streamhouse_spark.lake.paimon.schema import UNAWARE_BUCKETS
from streamhouse_spark.lake.paimon.snapshots import commit_of
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.paimon.tiering_commit import FOREIGN_KEPT_PROPERTY, offsets_at, snapshot_name
from streamhouse_spark.lake.parquet.compaction import write_groups
from streamhouse_spark.lake.parquet.copy_on_write import (
    ExternalFileRewrite,
    FileRewrite,
    rewrite_without_positions,
    rewrite_without_rows,
)
from streamhouse_spark.lake.parquet.file_writer import FileOutput, parse_file_offsets
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.parquet.reader import Positions
from streamhouse_spark.lake.row_deletes import SnapshotFiles, find_deleted_positions, require_applied
from streamhouse_spark.lake.types import (
    DeletedRows,
    LakeFile,
    LakeProjection,
    LakeSplit,
    PendingDeletes,
    RewrittenRows,
    WriteContext,
)

_NO_ROWS: Final = OffsetSet.dense(0, 0)


def rewrite_files_without(
    binding: PaimonTableBinding, context: WriteContext, rows: Mapping[int, OffsetSet]
) -> tuple[list[LakeFile], RewrittenRows]:
    """Rewrite the files of the latest snapshot that have rows at these offsets, without these rows.

    Returns the new files with one entry for each removed file, see `DeletedRows`, and the rows that may be in files
    without offsets. The files are durable on return.
    """
    table = binding.require()
    if table.snapshot is None or not rows:
        return [], RewrittenRows({}, None)
    spec, projection = PaimonFileSpec.from_json(context.lake), own_projection(table, binding.spec)
    output = FileOutput(context, spec, binding.files_at(spec.data_location), binding.world.ids)

    def write(file: FileRewrite) -> list[LakeFile]:
        removed, num_moved = file.removed_offsets, file.retained_offsets.num_rows
        location, bucket = file.split.location, file.offsets.bucket
        entry = _removed_file(spec, location, bucket, removed.range, num_dropped=removed.num_rows, num_moved=num_moved)
        return [*rewrite_without_rows(file, output, projection, binding.files_at), entry]

    touched, moved = _find_touched_files(binding, table, spec, rows)
    return [file for of_group in write_groups(binding.storage, touched, write) for file in of_group], moved


def _removed_file(
    spec: PaimonFileSpec,
    location: str,
    bucket: int,
    offsets: OffsetRange,
    *,
    num_dropped: int,
    num_moved: int,
    has_offsets: bool = True,
) -> LakeFile:
    """Return the entry of a file that the round removes. See `DeletedRows`."""
    deletes = DeletedRows(location, num_dropped=num_dropped, num_moved=num_moved, has_offsets=has_offsets)
    return LakeFile(location, bucket, offsets, num_dropped, 0, spec.schema_id, spec.spec_id, (), deletes=deletes)


def _find_touched_files(
    binding: PaimonTableBinding, table: PaimonTable, spec: PaimonFileSpec, rows: Mapping[int, OffsetSet]
) -> tuple[list[FileRewrite], RewrittenRows]:
    """Return the files that have some of the rows. Reads only footers of files that may have some, by their names."""
    reader = MetadataReader(table, StorageFileIO(binding.files))
    candidates: list[LakeSplit] = []
    foreign: str | None = None
    for entry in reader.live_entries(table.snapshot):
        location = reader.location(entry)
        named = parse_file_offsets(location)
        if named is None:
            foreign = location if _may_hold_rows(entry, spec, rows) else foreign
        elif rows.get(named[0], _NO_ROWS).within(named[1]):
            candidates.append(LakeSplit(location, entry.file.file_size, entry.file.row_count))
    sizes = {split.location: split.size_bytes for split in candidates}
    footers = read_offsets_of_files(binding.storage, binding.settings, sizes, binding.spec.writers, list(sizes))
    remaining = dict(rows)
    touched: list[FileRewrite] = []
    for split, own in zip(candidates, footers, strict=True):
        if own is None:
            foreign = split.location
        elif deleted := own.runs.common(remaining.get(own.bucket, _NO_ROWS)):
            remaining[own.bucket] = remaining[own.bucket].without(deleted)
            touched.append(FileRewrite(split, own, deleted))
    moved = {bucket: runs for bucket, runs in remaining.items() if runs} if foreign is not None else {}
    return touched, RewrittenRows(moved, foreign)


def _may_hold_rows(entry: ManifestEntry, spec: PaimonFileSpec, rows: Mapping[int, OffsetSet]) -> bool:
    """Return whether a file of another engine may be in a bucket with some of the rows."""
    is_bucketed = spec.num_buckets != UNAWARE_BUCKETS and entry.total_buckets == spec.num_buckets
    return not is_bucketed or entry.bucket in rows


def list_data_files(binding: PaimonTableBinding, table: PaimonTable, snapshot_id: int) -> Sequence[str]:
    """Return the locations of all data files of a snapshot in a stable order. Raises `SnapshotExpiredError`."""
    reader = MetadataReader(table, StorageFileIO(binding.files))
    return sorted(map(reader.location, reader.live_entries(binding.snapshots.require(snapshot_id, table.snapshot))))


def snapshot_identity(binding: PaimonTableBinding, snapshot_id: int) -> str | None:
    """Return a unique name of a snapshot, or None if it has expired.

    The name changes if another writer renames its snapshot over it, or reuses its number after a rollback.
    """
    snapshot = binding.snapshots.find(snapshot_id)
    return None if snapshot is None else snapshot_name(snapshot)


def retains_external_files(binding: PaimonTableBinding, older: int, newer: int) -> bool:
    """Return whether snapshot ``newer`` provably retains each data file without offsets of snapshot ``older``.

    That is so if every commit after ``older`` is the package's, and added files or rewrote only the package's files.
    """
    return older <= newer and all(
        _retains_external_files(binding.snapshots.find(number)) for number in range(newer, older, -1)
    )


def adds_only_own_files(binding: PaimonTableBinding, older: int, newer: int) -> bool:
    """Return whether all commits after ``older`` are the package's, so that no other engine added rows."""
    return older <= newer and all(_is_own(binding.snapshots.find(number)) for number in range(newer, older, -1))


def _is_own(snapshot: Snapshot | None) -> bool:
    return snapshot is not None and commit_of(snapshot) is not None


def _retains_external_files(snapshot: Snapshot | None) -> bool:
    if snapshot is None or not _is_own(snapshot):
        return False
    return snapshot.commit_kind in ("APPEND", "COMPACT") or FOREIGN_KEPT_PROPERTY in (snapshot.properties or {})


def rewrite_external_files(
    binding: PaimonTableBinding, context: WriteContext, pending: PendingDeletes, moved: RewrittenRows
) -> list[LakeFile]:
    """Rewrite files without offsets that have deleted rows. See `LakeTable.delete_rows`.

    ``moved`` are deleted rows that had offsets. Returns the new files, and one entry for each removed file.
    """
    if not pending.file_deletes and not moved.rows:
        return []
    spec = PaimonFileSpec.from_json(context.lake)
    table = binding.require()
    planned = table.snapshot
    if planned is None or snapshot_name(planned) != spec.planned_on:
        raise CommitConflictError(
            f"lake table {table.location}: the snapshot with which this round started is no longer the latest; retry"
        )
    require_applied(table.location, planned.id, offsets_at(binding, planned), pending.applied_through)
    live = _PaimonFiles(binding, table, planned, own_projection(table, binding.spec))
    deleted = find_deleted_positions(live, pending, moved)
    touched = [live.rewrite_for(spec, name, positions) for name, positions in deleted.items()]
    output = FileOutput(context, spec, binding.files_at(spec.data_location), binding.world.ids)

    def write(file: ExternalFileRewrite) -> list[LakeFile]:
        written = rewrite_without_positions(file, output, live.projection, binding.files_at)
        entry = _removed_file(
            spec,
            file.split.location,
            file.bucket,
            OffsetRange(0, 0),
            num_dropped=file.removed_positions.num_rows,
            num_moved=file.num_kept,
            has_offsets=False,
        )
        return [*([written] if written is not None else ()), entry]

    return [file for of_group in write_groups(binding.storage, touched, write) for file in of_group]


class _PaimonFiles(SnapshotFiles):
    def __init__(
        self, binding: PaimonTableBinding, table: PaimonTable, snapshot: Snapshot, projection: LakeProjection
    ) -> None:
        reader, names = MetadataReader(table, StorageFileIO(binding.files)), StorageFiles(binding.storage)
        entries = ((reader.location(entry), entry) for entry in reader.live_entries(snapshot))
        self.binding: PaimonTableBinding = binding
        self.projection = projection
        self.location = table.location
        self.names = self._entries = {names.name_of(location): (location, entry) for location, entry in entries}
        self._table = table

    def split(self, name: str) -> LakeSplit:
        location, entry = self._entries[name]
        names = names_in_file(self._table, self._table.schema, entry, inside=bool(self.projection.inner))
        return LakeSplit(location, entry.file.file_size, entry.file.row_count, field_names=names)

    def rewrite_for(self, spec: PaimonFileSpec, name: str, positions: Positions) -> ExternalFileRewrite:
        """Return the rewrite of a file of this snapshot. Raises `LakeMismatchError`."""
        location, entry = self._entries[name]
        if entry.total_buckets != spec.num_buckets:
            raise LakeMismatchError(
                f"lake file {location} of {self.location} was written for {entry.total_buckets} buckets, expected "
                f"{spec.num_buckets}; rescale its partition with the engine that wrote it"
            )
        values = zip(entry.partition.values, spec.partition_fields, strict=True)
        partition = tuple(encode_field(value, field) for value, field in values)
        sequences = OffsetRange(entry.file.min_sequence_number, entry.file.max_sequence_number + 1)
        return ExternalFileRewrite(self.split(name), entry.bucket, partition, sequences, OffsetSet.of(positions))

    def files_before(self, recorded: int) -> Iterator[_PaimonFiles]:
        snapshots = self.binding.snapshots
        snapshot: Snapshot | None = snapshots.require(recorded, self._table.snapshot)
        while snapshot is not None:
            yield _PaimonFiles(self.binding, self._table, snapshot, self.projection)
            snapshot = snapshots.find(snapshot.id - 1)
