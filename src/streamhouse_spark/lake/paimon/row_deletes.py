"""Deletion of single rows in a Paimon lake of a log table: rewrites files without them.

Every Paimon reader reads such files correctly. Deletion vectors would cost less, but Paimon's streaming readers ignore
that table option.

**Commit point:** that of the round, whose snapshot removes the files, adds their replacements and holds the offsets.
Every attempt fails if one of the files is no longer live, because then the rows are elsewhere. Rows keep their offsets;
those of deleted rows are in no file.

Rows without offsets in a Paimon lake of a log table: their names, and their deletion by file and position.

A file with such rows is rewritten without the deleted ones, like files with offsets (`lake/paimon/row_deletes.py`).
Its other rows still have no offsets. If another engine replaced the file since, as many rows as equal the deleted ones
are deleted from the new files.

**Commit point:** that of the round. Its snapshot must directly follow the one in which the rows were searched:
otherwise a row that equals a deleted one could be deleted twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError, LakeMismatchError, SnapshotExpiredError
from streamhouse_spark.lake.file_access import offset_files
from streamhouse_spark.lake.paimon.file_io import PaimonFiles
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
from streamhouse_spark.lake.parquet.file_writer import may_hold, parse_file_offsets
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.parquet.reader import OffsetFile
from streamhouse_spark.lake.parquet.row_positions import RowPlaces, find_equal_rows, read_rows_at
from streamhouse_spark.lake.types import (
    DeletedRows,
    LakeFile,
    LakeProjection,
    LakeSplit,
    PendingDeletes,
    RewrittenRows,
    WriteContext,
)
from streamhouse_spark.lake.validation import require_deletes_resolved
from streamhouse_spark.log.delete_vectors import FileRows, union_deleted_file_rows

_NO_ROWS: Final = OffsetSet.dense(0, 0)


def rewrite_files_without(
    place: PaimonTableBinding, context: WriteContext, rows: Mapping[int, OffsetSet]
) -> tuple[list[LakeFile], RewrittenRows]:
    """Rewrite the files of the latest snapshot that have rows at these offsets, without these rows.

    Returns the new files with one entry for each removed file, see `DeletedRows`, and the rows that may be in files
    without offsets. The files are durable on return.
    """
    table = place.require()
    if table.snapshot is None or not rows:
        return [], RewrittenRows({}, None)
    spec, how = PaimonFileSpec.from_json(context.lake), own_projection(table, place.spec)
    files = place.files_at(spec.data_location)

    def write(file: FileRewrite) -> list[LakeFile]:
        written = rewrite_without_rows(file, context, spec, how, files, place.world.ids)
        return [*written, _file_to_rewrite(file, spec)]

    touched, moved = _find_touched_files(place, table, spec, rows)
    return [file for of_group in write_groups(place.storage, touched, write) for file in of_group], moved


def _file_to_rewrite(file: FileRewrite, spec: PaimonFileSpec) -> LakeFile:
    location, num_dropped = file.split.location, file.removed_offsets.num_rows
    return LakeFile(
        location=location,
        bucket=file.offsets.bucket,
        offsets=file.removed_offsets.range,
        num_rows=num_dropped,
        size_bytes=0,
        schema_id=spec.schema_id,
        spec_id=spec.spec_id,
        partition=(),
        deletes=DeletedRows(location, num_dropped=num_dropped, num_moved=file.retained_offsets.num_rows),
    )


def _find_touched_files(
    place: PaimonTableBinding, table: PaimonTable, spec: PaimonFileSpec, rows: Mapping[int, OffsetSet]
) -> tuple[list[FileRewrite], RewrittenRows]:
    """Find the files that have some of the rows. Reads only footers of files that can have some by their names."""
    reader = MetadataReader(table, PaimonFiles(place.files))
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
    footers = offset_files(place.storage, place.settings, sizes, place.spec.writers, list(sizes))
    left = dict(rows)
    touched: list[FileRewrite] = []
    for split, own in zip(candidates, footers, strict=True):
        if own is None:
            foreign = split.location
        elif deleted := own.runs.common(left.get(own.bucket, _NO_ROWS)):
            left[own.bucket] = left[own.bucket].without(deleted)
            touched.append(FileRewrite(split, own, deleted))
    moved = {bucket: runs for bucket, runs in left.items() if runs} if foreign is not None else {}
    return touched, RewrittenRows(moved, foreign)


def _may_hold_rows(entry: ManifestEntry, spec: PaimonFileSpec, rows: Mapping[int, OffsetSet]) -> bool:
    """Return whether a file of another engine may be of a bucket with some of the rows."""
    is_bucketed = spec.num_buckets != UNAWARE_BUCKETS and entry.total_buckets == spec.num_buckets
    return not is_bucketed or entry.bucket in rows


_NO_POSITIONS = OffsetSet.dense(0, 0)


def list_data_files(place: PaimonTableBinding, table: PaimonTable, snapshot_id: int) -> Sequence[str]:
    """Return the locations of all data files of a snapshot in a stable order. Raises `SnapshotExpiredError`."""
    reader = MetadataReader(table, PaimonFiles(place.files))
    return sorted(map(reader.location, reader.live_entries(place.snapshots.require(snapshot_id, table.snapshot))))


def snapshot_mark(place: PaimonTableBinding, snapshot_id: int) -> str | None:
    """Return a unique name of a snapshot, or None if it has expired.

    The name changes if another writer renames its snapshot over it, or takes its number after a rollback.
    """
    snapshot = place.snapshots.find(snapshot_id)
    return None if snapshot is None else snapshot_name(snapshot)


def retains_external_files(place: PaimonTableBinding, older: int, newer: int) -> bool:
    """Return whether a snapshot provably retains each data file without offsets of an older one: every commit since is
    the package's, and added files or rewrote only its own.
    """
    return older <= newer and all(
        _retains_external_files(place.snapshots.find(number)) for number in range(newer, older, -1)
    )


def adds_only_own_files(place: PaimonTableBinding, older: int, newer: int) -> bool:
    """Return whether each row without an offset provably comes from an older snapshot: every commit since is the
    package's.
    """
    return older <= newer and all(_is_own(place.snapshots.find(number)) for number in range(newer, older, -1))


def _is_own(snapshot: Snapshot | None) -> bool:
    return snapshot is not None and commit_of(snapshot) is not None


def _retains_external_files(snapshot: Snapshot | None) -> bool:
    if snapshot is None or not _is_own(snapshot):
        return False
    return snapshot.commit_kind in ("APPEND", "COMPACT") or FOREIGN_KEPT_PROPERTY in (snapshot.properties or {})


# -- a round ----------------------------------------------------------------------------------------------------------


def rewrite_external_files(
    place: PaimonTableBinding, context: WriteContext, pending: PendingDeletes, moved: RewrittenRows
) -> list[LakeFile]:
    """Rewrite files without offsets that have deleted rows, as `LakeTable.delete_rows` does.

    ``moved`` are rows that had offsets when they were deleted. Returns the new files, and one entry for each removed
    file.
    """
    if not pending.file_deletes and not moved.rows:
        return []
    spec = PaimonFileSpec.from_json(context.lake)
    table = place.require()
    planned = _planned_snapshot(place, table, spec, pending.applied_through)
    how = own_projection(table, place.spec)
    live = _SnapshotFiles.of(place, table, planned, how)
    to_delete = {
        name: [runs.offsets()]
        for name, runs in union_deleted_file_rows(pending.file_deletes).items()
        if name in live.entries
    }
    for name, positions in _find_rewritten_rows(live, pending, moved).items():
        to_delete.setdefault(name, []).append(positions)
    touched = [
        live.rewrite_for(spec, name, np.unique(np.concatenate(parts))) for name, parts in sorted(to_delete.items())
    ]

    def write(file: ExternalFileRewrite) -> list[LakeFile]:
        written = rewrite_without_positions(file, context, spec, how, place.files_at, place.world.ids)
        return [*([written] if written is not None else ()), _external_file_to_rewrite(file, spec)]

    return [file for of_group in write_groups(place.storage, touched, write) for file in of_group]


def _planned_snapshot(
    place: PaimonTableBinding, table: PaimonTable, spec: PaimonFileSpec, applied_through: int
) -> Snapshot:
    """Return the snapshot that the round began with.

    It must have applied exactly the expected deletions: otherwise rows that equal deleted ones would be deleted too.
    Raises `CommitConflictError`.
    """
    planned = table.snapshot
    if planned is None or snapshot_name(planned) != spec.planned_on:
        raise CommitConflictError(
            f"lake table {table.location}: the snapshot that this round began with is no longer the latest; try again"
        )
    offsets = offsets_at(place, planned)
    applied = offsets.history.number if offsets is not None and offsets.history is not None else 0
    if applied != applied_through:
        raise CommitConflictError(
            f"lake table {table.location}: snapshot {planned.id} lacks rows of deletions up to commit {applied}, "
            f"{applied_through} was expected: another tiering service was faster; try again"
        )
    return planned


def _external_file_to_rewrite(file: ExternalFileRewrite, spec: PaimonFileSpec) -> LakeFile:
    location, num_dropped = file.split.location, file.removed_positions.num_rows
    return LakeFile(
        location=location,
        bucket=file.bucket,
        offsets=OffsetRange(0, 0),
        num_rows=num_dropped,
        size_bytes=0,
        schema_id=spec.schema_id,
        spec_id=spec.spec_id,
        partition=(),
        deletes=DeletedRows(location, num_dropped=num_dropped, num_moved=file.num_kept, has_offsets=False),
    )


@dataclass(frozen=True, slots=True)
class _SnapshotFiles:
    """The data files of a snapshot, by name."""

    place: PaimonTableBinding
    table: PaimonTable
    how: LakeProjection
    entries: Mapping[str, tuple[str, ManifestEntry]]
    """Name → location and description."""

    @classmethod
    def of(
        cls, place: PaimonTableBinding, table: PaimonTable, snapshot: Snapshot, how: LakeProjection
    ) -> _SnapshotFiles:
        reader, names = MetadataReader(table, PaimonFiles(place.files)), StorageFiles(place.storage)
        entries = ((reader.location(entry), entry) for entry in reader.live_entries(snapshot))
        return cls(place, table, how, {names.name_of(location): (location, entry) for location, entry in entries})

    def split(self, name: str) -> LakeSplit:
        location, entry = self.entries[name]
        names = names_in_file(self.table, self.table.schema, entry, inside=bool(self.how.inner))
        return LakeSplit(location, entry.file.file_size, entry.file.row_count, field_names=names)

    def rewrite_for(self, spec: PaimonFileSpec, name: str, positions: RowPlaces) -> ExternalFileRewrite:
        """Return the rewrite of a file of this snapshot. Raises `LakeMismatchError`."""
        location, entry = self.entries[name]
        if entry.total_buckets != spec.num_buckets:
            raise LakeMismatchError(
                f"lake file {location} of {self.table.location} was written for {entry.total_buckets} buckets, and the "
                f"table has {spec.num_buckets}; rescale its partition with the engine that wrote it"
            )
        values = zip(entry.partition.values, spec.partition_fields, strict=True)
        partition = tuple(encode_field(value, field) for value, field in values)
        sequences = OffsetRange(entry.file.min_sequence_number, entry.file.max_sequence_number + 1)
        return ExternalFileRewrite(self.split(name), entry.bucket, partition, sequences, OffsetSet.of(positions))

    def read_offsets_of(self, names: Collection[str]) -> Iterator[tuple[str, OffsetFile | None]]:
        """Return the offsets of files, from their footers."""
        place, located = self.place, {name: self.entries[name] for name in names}
        sizes = {location: entry.file.file_size for location, entry in located.values()}
        offset_files_of_sizes = offset_files(place.storage, place.settings, sizes, place.spec.writers, list(sizes))
        return zip(located, offset_files_of_sizes, strict=True)


# -- rows whose files were replaced ------------------------------------------------------------------------------------


def _find_rewritten_rows(live: _SnapshotFiles, pending: PendingDeletes, moved: RewrittenRows) -> dict[str, RowPlaces]:
    """Find rows of replaced files in newer files: name → positions.

    The recorded snapshot has all files whose rows were deleted since the lake last applied deletions, and the log has
    the rows after its offsets.
    """
    lost_rows = {
        name: runs for name, runs in union_deleted_file_rows(pending.file_deletes).items() if name not in live.entries
    }
    of_log, left = pending.read_log_rows(moved, live.how.schema.arrow)
    if not (lost_rows or of_log.num_rows or left.rows):
        return {}
    before = replace(live, entries={})
    try:
        if pending.recorded is not None:
            before = _files_with_lost_rows(live, pending.recorded, lost_rows)
        lost_rows |= _group_rows_by_file(before, left)
        rows = read_rows_at(live.place.files_at, {name: before.split(name) for name in lost_rows}, lost_rows, live.how)
    except SnapshotExpiredError as error:
        raise LakeMismatchError(
            f"lake table {live.table.location}: rows of snapshot {pending.recorded} were deleted, and before a round "
            f"could delete them another engine replaced their files and expired that snapshot ({error}), so that "
            "nothing tells which rows these are; restore the snapshot with its files"
        ) from error
    newer = sorted(name for name in live.entries if name not in before.entries)
    without_own_offsets = ((name, live.split(name)) for name, own in live.read_offsets_of(newer) if own is None)
    return dict(find_equal_rows(live.place.files_at, without_own_offsets, pa.concat_tables([rows, of_log]), live.how))


def _files_with_lost_rows(live: _SnapshotFiles, recorded: int, lost_rows: FileRows) -> _SnapshotFiles:
    """Return the files of the latest snapshot that has the lost files: the recorded one, or one below if another engine
    replaced that. Raises `SnapshotExpiredError`.
    """
    snapshot: Snapshot | None = live.place.snapshots.require(recorded, live.table.snapshot)
    while snapshot is not None:
        files = _SnapshotFiles.of(live.place, live.table, snapshot, live.how)
        if all(name in files.entries for name in lost_rows):
            return files
        snapshot = live.place.snapshots.find(snapshot.id - 1)
    raise SnapshotExpiredError(f"no kept snapshot up to {recorded} has {', '.join(sorted(lost_rows)[:3])}; restore it")


def _group_rows_by_file(before: _SnapshotFiles, moved: RewrittenRows) -> FileRows:
    """Group rows at offsets by the files that had them. Raises `LakeMismatchError` if a row is in no file."""
    left, deleted = dict(moved.rows), {}
    for name, own in before.read_offsets_of(
        [name for name in before.entries if _external_file_may_hold_rows(name, left)]
    ):
        if own is None or not (hit := own.runs.common(left.get(own.bucket, _NO_POSITIONS))):
            continue
        left[own.bucket] = left[own.bucket].without(hit)
        deleted[name] = OffsetSet.of(own.runs.rows_at(hit))
    require_deletes_resolved(str(before.place.spec.path), left, moved.foreign)
    return deleted


def _external_file_may_hold_rows(name: str, rows: Mapping[int, OffsetSet]) -> bool:
    return any(may_hold(name, bucket, runs.range) for bucket, runs in rows.items() if runs)
