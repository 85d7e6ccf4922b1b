"""Finds the positions of deleted rows without offsets in the files of a lake snapshot, in any format.

If the file of a deleted row still exists, the row is at its position. If another engine replaced the file, its rows are
in newer files: for each deleted row, one of the rows that are equal in all columns is deleted there. Equal rows are
indistinguishable. If that engine deleted some, fewer equal rows exist.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.errors import CommitConflictError, LakeMismatchError, SnapshotExpiredError
from streamhouse_spark.lake.base import LakeTableBinding
from streamhouse_spark.lake.file_access import read_offsets_of_files
from streamhouse_spark.lake.parquet.file_writer import may_hold
from streamhouse_spark.lake.parquet.reader import FileWithOffsets, Positions, read_deleted_positions
from streamhouse_spark.lake.parquet.row_positions import find_equal_rows, read_rows_at
from streamhouse_spark.lake.snapshot_properties import LakeOffsets
from streamhouse_spark.lake.types import LakeProjection, LakeSplit, PendingDeletes, RewrittenRows
from streamhouse_spark.lake.validation import require_deletes_resolved
from streamhouse_spark.log.deletion_vectors import FileRows, union_deleted_file_rows


class SnapshotFiles(ABC):
    """The data files of a lake snapshot, by name."""

    binding: LakeTableBinding[Any]
    projection: LakeProjection
    """The projection of all columns of the table."""
    location: str
    """The location of the lake table, for messages."""
    names: Collection[str]

    @abstractmethod
    def split(self, name: str) -> LakeSplit: ...

    @abstractmethod
    def files_before(self, recorded: int) -> Iterator[SnapshotFiles]:
        """Yield the files of the recorded snapshot, and of earlier snapshots if another engine may have replaced it.

        Raises `SnapshotExpiredError`.
        """

    def files_with(self, lost_rows: FileRows, recorded: int) -> SnapshotFiles:
        """Return the files of the latest such snapshot that has all lost files. Raises `SnapshotExpiredError`."""
        for files in self.files_before(recorded):
            if all(name in files.names for name in lost_rows):
                return files
        lost = ", ".join(sorted(lost_rows)[:3])
        raise SnapshotExpiredError(f"no retained snapshot up to {recorded} has {lost}; restore the snapshot")

    def read_offsets(self, names: Collection[str]) -> Iterator[tuple[LakeSplit, FileWithOffsets | None]]:
        """Return the files with the offsets in their footers, or None for a file without offsets."""
        binding, splits = self.binding, [self.split(name) for name in names]
        sizes = {split.location: split.size_bytes for split in splits}
        footers = read_offsets_of_files(binding.storage, binding.settings, sizes, binding.spec.writers, list(sizes))
        return zip(splits, footers, strict=True)


def require_applied(location: str, snapshot_id: int, offsets: LakeOffsets | None, applied_through: int) -> None:
    """Require that a snapshot has applied exactly the expected deletes. Raises `CommitConflictError`.

    Otherwise a round could delete rows that are equal to rows that were already deleted.
    """
    applied = offsets.applied_through if offsets is not None else 0
    if applied != applied_through:
        raise CommitConflictError(
            f"lake table {location}: snapshot {snapshot_id} has applied deletes up to commit {applied}, expected "
            f"{applied_through}: another tiering service committed concurrently; retry"
        )


def find_deleted_positions(live: SnapshotFiles, pending: PendingDeletes, moved: RewrittenRows) -> dict[str, Positions]:
    """Return file name → ascending positions of the deleted rows in the files of the latest snapshot.

    ``moved`` are deleted rows that had offsets.
    """
    deleted = union_deleted_file_rows(pending.file_deletes)
    parts_of_file = {name: [runs.offsets()] for name, runs in deleted.items() if name in live.names}
    lost_rows = {name: runs for name, runs in deleted.items() if name not in live.names}
    for name, positions in _find_rewritten_rows(live, lost_rows, pending, moved).items():
        parts_of_file.setdefault(name, []).append(positions)
    return {name: np.unique(np.concatenate(parts)) for name, parts in sorted(parts_of_file.items())}


def _find_rewritten_rows(
    live: SnapshotFiles, lost_rows: FileRows, pending: PendingDeletes, moved: RewrittenRows
) -> dict[str, Positions]:
    """Return the positions, by file name, of rows of replaced files in newer files.

    The recorded snapshot has all files whose rows were deleted since the lake last applied deletes. The log has the
    rows after the offsets of the snapshot.
    """
    of_log, remaining = pending.read_log_rows(moved, live.projection.schema.arrow)
    if not (lost_rows or of_log.num_rows or remaining.rows):
        return {}
    try:
        before = None if pending.recorded is None else live.files_with(lost_rows, pending.recorded)
        rows_of_file = {**lost_rows, **_group_rows_by_file(live, before, remaining)}
        splits = {name: before.split(name) for name in rows_of_file} if before is not None else {}
        rows = read_rows_at(live.binding.files_at, splits, rows_of_file, live.projection)
    except (SnapshotExpiredError, FileNotFoundError) as error:
        raise LakeMismatchError(
            f"lake table {live.location}: rows of snapshot {pending.recorded} were deleted, but before a round applied "
            f"the deletes, another engine replaced their files and expired that snapshot ({error}), so the rows cannot "
            "be identified; restore the snapshot with its files"
        ) from error
    newer = sorted(name for name in live.names if before is None or name not in before.names)
    unread = ((name, split) for name, (split, own) in zip(newer, live.read_offsets(newer), strict=True) if own is None)
    return dict(find_equal_rows(live.binding.files_at, unread, pa.concat_tables([rows, of_log]), live.projection))


def _group_rows_by_file(live: SnapshotFiles, before: SnapshotFiles | None, moved: RewrittenRows) -> FileRows:
    """Group rows at offsets by the files that had them. Raises `LakeMismatchError` if a row is in no file."""
    remaining, rows_of_file = dict(moved.rows), {}
    if before is not None:
        candidates = [name for name in before.names if _may_hold_rows(name, remaining)]
        for name, (split, own) in zip(candidates, before.read_offsets(candidates), strict=True):
            if own is None or not (hit := own.runs.common(remaining.get(own.bucket, OffsetSet.dense(0, 0)))):
                continue
            remaining[own.bucket] = remaining[own.bucket].without(hit)
            files = live.binding.files_at(split.location)
            deleted = read_deleted_positions(files, split.location, split.position_deletes)
            if rows := OffsetSet.of(np.setdiff1d(own.runs.rows_at(hit), deleted)):
                rows_of_file[name] = rows
    require_deletes_resolved(str(live.binding.spec.path), remaining, moved.foreign)
    return rows_of_file


def _may_hold_rows(name: str, rows: Mapping[int, OffsetSet]) -> bool:
    return any(may_hold(name, bucket, runs.range) for bucket, runs in rows.items() if runs)
