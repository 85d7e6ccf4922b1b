"""Positions of deleted rows without offsets in the files of a lake snapshot, in any format.

A file that still exists has the row at its position. If another engine replaced the file, its rows are in newer files:
there, as many rows are deleted as equal the deleted ones in all columns. Equal rows are indistinguishable, so these are
the deleted ones. There may be fewer if that engine deleted some itself.
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
from streamhouse_spark.lake.file_access import offset_files
from streamhouse_spark.lake.parquet.file_writer import may_hold
from streamhouse_spark.lake.parquet.reader import OffsetFile, Positions, read_deleted_positions
from streamhouse_spark.lake.parquet.row_positions import find_equal_rows, read_rows_at
from streamhouse_spark.lake.snapshot_properties import LakeOffsets
from streamhouse_spark.lake.types import LakeProjection, LakeSplit, PendingDeletes, RewrittenRows
from streamhouse_spark.lake.validation import require_deletes_resolved
from streamhouse_spark.log.deletion_vectors import FileRows, union_deleted_file_rows


class SnapshotFiles(ABC):
    """The data files of a lake snapshot, by name."""

    place: LakeTableBinding[Any]
    how: LakeProjection
    """Reads all columns of the table."""
    location: str
    """The table, for messages."""
    names: Collection[str]

    @abstractmethod
    def split(self, name: str) -> LakeSplit: ...

    @abstractmethod
    def files_before(self, recorded: int) -> Iterator[SnapshotFiles]:
        """Return the files of the recorded snapshot, and of those below if another engine may have replaced it. Raises
        `SnapshotExpiredError`.
        """

    def files_with(self, lost_rows: FileRows, recorded: int) -> SnapshotFiles:
        """Return the files of the latest of these snapshots that has the lost ones. Raises `SnapshotExpiredError`."""
        for files in self.files_before(recorded):
            if all(name in files.names for name in lost_rows):
                return files
        lost = ", ".join(sorted(lost_rows)[:3])
        raise SnapshotExpiredError(f"no kept snapshot up to {recorded} has {lost}; restore it")

    def read_offsets(self, names: Collection[str]) -> Iterator[tuple[LakeSplit, OffsetFile | None]]:
        """Return files with the offsets in their footers."""
        place, splits = self.place, [self.split(name) for name in names]
        sizes = {split.location: split.size_bytes for split in splits}
        footers = offset_files(place.storage, place.settings, sizes, place.spec.writers, list(sizes))
        return zip(splits, footers, strict=True)


def require_applied(location: str, snapshot_id: int, offsets: LakeOffsets | None, applied_through: int) -> None:
    """Require that a snapshot has applied exactly the expected deletions: otherwise rows that equal deleted ones would
    be deleted too. Raises `CommitConflictError`.
    """
    applied = offsets.applied_through if offsets is not None else 0
    if applied != applied_through:
        raise CommitConflictError(
            f"lake table {location}: snapshot {snapshot_id} lacks rows of deletions up to commit {applied}, "
            f"{applied_through} was expected: another tiering service was faster; try again"
        )


def find_deleted_positions(live: SnapshotFiles, pending: PendingDeletes, moved: RewrittenRows) -> dict[str, Positions]:
    """Return name → ascending positions of the deleted rows in the files of the latest snapshot.

    ``moved`` are rows that had offsets when they were deleted.
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
    """Find rows of replaced files in newer files: name → positions.

    The recorded snapshot has all files whose rows were deleted since the lake last applied deletions, and the log has
    the rows after its offsets.
    """
    of_log, left = pending.read_log_rows(moved, live.how.schema.arrow)
    if not (lost_rows or of_log.num_rows or left.rows):
        return {}
    try:
        before = None if pending.recorded is None else live.files_with(lost_rows, pending.recorded)
        rows_of_file = {**lost_rows, **_group_rows_by_file(live, before, left)}
        splits = {name: before.split(name) for name in rows_of_file} if before is not None else {}
        rows = read_rows_at(live.place.files_at, splits, rows_of_file, live.how)
    except (SnapshotExpiredError, FileNotFoundError) as error:
        raise LakeMismatchError(
            f"lake table {live.location}: rows of snapshot {pending.recorded} were deleted, and before a round could "
            f"delete them another engine replaced their files and expired that snapshot ({error}), so that nothing "
            "tells which rows these are; restore the snapshot with its files"
        ) from error
    newer = sorted(name for name in live.names if before is None or name not in before.names)
    unread = ((name, split) for name, (split, own) in zip(newer, live.read_offsets(newer), strict=True) if own is None)
    return dict(find_equal_rows(live.place.files_at, unread, pa.concat_tables([rows, of_log]), live.how))


def _group_rows_by_file(live: SnapshotFiles, before: SnapshotFiles | None, moved: RewrittenRows) -> FileRows:
    """Group rows at offsets by the files that had them. Raises `LakeMismatchError` if a row is in no file."""
    left, rows_of_file = dict(moved.rows), {}
    if before is not None:
        candidates = [name for name in before.names if _may_hold_rows(name, left)]
        for name, (split, own) in zip(candidates, before.read_offsets(candidates), strict=True):
            if own is None or not (hit := own.runs.common(left.get(own.bucket, OffsetSet.dense(0, 0)))):
                continue
            left[own.bucket] = left[own.bucket].without(hit)
            files = live.place.files_at(split.location)
            deleted = read_deleted_positions(files, split.location, split.position_deletes)
            if rows := OffsetSet.of(np.setdiff1d(own.runs.rows_at(hit), deleted)):
                rows_of_file[name] = rows
    require_deletes_resolved(str(live.place.spec.path), left, moved.foreign)
    return rows_of_file


def _may_hold_rows(name: str, rows: Mapping[int, OffsetSet]) -> bool:
    return any(may_hold(name, bucket, runs.range) for bucket, runs in rows.items() if runs)
