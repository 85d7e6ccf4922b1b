"""Deleted rows of a log table that are still stored: the actions that delete them, and what readers skip.

Offsets stay dense: a deleted row keeps its offset in the log. `log.state` drops entries when their rows are trimmed,
truncated or deleted from the lake.

A row of a lake file without an offset is deleted by its file and position in a lake snapshot. It is skipped in that
snapshot, and in later recorded snapshots with the same files, until a snapshot has applied the delete.

Rows of dropped partitions are a separate set: they are missing from the lake, and offsets alone do not show it. A
reader that has not read them from the log skips them, and a lake that is rebuilt from the log does not contain them. A
stream that has read them is not notified. Changes between versions contain them as deletions, and a rollback restores
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, TypeVar

from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange

_BEYOND: Final = 1 << 62
K = TypeVar("K")

FileRows = Mapping[str, OffsetSet]
"""Name of a lake file, see `lake.parquet.parquet_io.StorageFiles.name_of` → positions of rows."""
NO_FILE_ROWS: Final[FileRows] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """Deletes the rows at these offsets of buckets, and at these positions of files of one lake snapshot.

    Every row must be live. Deleted rows keep their offsets.
    """

    rows: Mapping[int, OffsetSet]
    files: FileRows = field(default_factory=dict)
    snapshot_id: int | None = None
    """The lake snapshot that has the files; None without files."""
    updated: Mapping[int, OffsetSet] = field(default_factory=dict)
    """The part of ``rows`` that updates replaced; the other rows were deleted."""
    updated_files: FileRows = field(default_factory=dict)
    """The part of ``files`` that updates replaced."""

    @property
    def num_rows(self) -> int:
        return count_rows(self.rows) + count_rows(self.files)

    def with_updated(self, rows: Mapping[int, OffsetSet], files: FileRows) -> DeleteRows:
        """Return the action with those of its rows that are also in the arguments marked as updated."""
        return replace(self, updated=intersect_rows(self.rows, rows), updated_files=intersect_rows(self.files, files))

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"type": "delete-rows", "rows": _to_json(self.rows)}
        if self.files:  # its own kind, which older versions of this package reject
            out |= {"type": "delete-file-rows", "snapshot_id": self.snapshot_id, "files": _to_json(self.files)}
        if (self.updated, self.updated_files) == (self.rows, self.files):
            return {**out, "updated": True} if self.num_rows else out
        if self.updated:
            out["updated"] = _to_json(self.updated)
        if self.updated_files:
            out["updated_files"] = _to_json(self.updated_files)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeleteRows:
        rows, files = _rows_from_json(data["rows"]), _files_from_json(data.get("files", {}))
        updated = rows, files
        if data.get("updated") is not True:
            updated = _rows_from_json(data.get("updated", {})), _files_from_json(data.get("updated_files", {}))
        return cls(rows, files, data.get("snapshot_id"), *updated)


def count_rows(rows: Mapping[Any, OffsetSet]) -> int:
    return sum(runs.num_rows for runs in rows.values())


def without_rows(rows: Mapping[K, OffsetSet], removed: Mapping[K, OffsetSet]) -> dict[K, OffsetSet]:
    """Return the rows per bucket or file that are not in ``removed``, without empty entries."""
    left = {key: runs.without(removed[key]) if key in removed else runs for key, runs in rows.items()}
    return {key: runs for key, runs in left.items() if runs}


def intersect_rows(rows: Mapping[K, OffsetSet], other_rows: Mapping[K, OffsetSet]) -> dict[K, OffsetSet]:
    """Return the rows per bucket or file that are in both arguments, without empty entries."""
    common = {key: runs.common(other_rows[key]) for key, runs in rows.items() if key in other_rows}
    return {key: runs for key, runs in common.items() if runs}


def select_rows_from(rows: Mapping[int, OffsetSet], starts: Mapping[int, int]) -> dict[int, OffsetSet]:
    """Return the rows per bucket at or above ``starts``, without empty entries. The default start is 0."""
    left = {bucket: runs.within(OffsetRange(starts.get(bucket, 0), _BEYOND)) for bucket, runs in rows.items()}
    return {bucket: runs for bucket, runs in left.items() if runs}


def _to_json(rows: Mapping[Any, OffsetSet]) -> dict[str, str]:
    return {str(key): runs.to_text() for key, runs in sorted(rows.items())}


def _files_from_json(data: Mapping[str, str]) -> dict[str, OffsetSet]:
    return {name: OffsetSet.from_text(text, where="a record that deletes rows") for name, text in data.items()}


def _rows_from_json(data: Mapping[str, str]) -> dict[int, OffsetSet]:
    return {int(bucket): runs for bucket, runs in _files_from_json(data).items()}


@dataclass(frozen=True, slots=True)
class Deletion:
    """The rows that one record deleted, or several consecutive records."""

    commit: int
    """Number of the last record."""
    time_ms: int
    """Time of the last record."""
    rows: Mapping[int, OffsetSet]
    """Bucket → offsets, at least one per bucket."""
    first_commit: int
    first_ms: int
    is_in_lake: bool = False
    """Whether some of the deleted rows were also deleted from the lake, and are no longer listed here."""
    files: FileRows = field(default_factory=dict)
    """Rows without offsets, until a recorded lake snapshot has applied their delete."""
    snapshot_id: int | None = None
    """The lake snapshot that has the files; None without files."""

    def to_json(self) -> list[Any]:
        out = [self.commit, self.time_ms, self.first_commit, self.first_ms, self.is_in_lake, _to_json(self.rows)]
        return [*out, self.snapshot_id, _to_json(self.files)] if self.files else out

    @classmethod
    def from_json(cls, data: Any) -> Deletion:
        commit, time_ms, first_commit, first_ms, is_in_lake, rows, *of_files = data
        snapshot_id, files = of_files or (None, {})
        fields = _rows_from_json(rows), first_commit, first_ms, is_in_lake, _files_from_json(files), snapshot_id
        return cls(commit, time_ms, *fields)


class Deletions(tuple[Deletion, ...]):  # noqa: SLOT001 - caches a property
    """The deletions of a state, the latest last. Caches the union of their offsets, which every reader needs."""

    @cached_property
    def rows(self) -> Mapping[int, OffsetSet]:
        """Bucket → all deleted offsets. Raises `ValueError` if an offset was deleted twice."""
        return union_deleted_offsets(self)

    def with_rows(self, deletions: Deletions, rows: Mapping[int, OffsetSet]) -> Deletions:
        """Return ``deletions``, which must be these plus ``rows``. Their union is computed incrementally."""
        merged = {bucket: OffsetSet.union([self.rows[bucket], rows[bucket]]) for bucket in rows if bucket in self.rows}
        deletions.__dict__["rows"] = {**self.rows, **rows, **merged}
        return deletions


NO_DELETIONS: Final = Deletions()


def union_deleted_offsets(deletions: Iterable[Deletion]) -> Mapping[int, OffsetSet]:
    """Return bucket → all deleted offsets. Raises `ValueError` if an offset was deleted twice."""
    return _union_rows(deletion.rows for deletion in deletions)


def union_deleted_file_rows(deletions: Iterable[Deletion]) -> FileRows:
    """Return all deleted rows of lake files. Raises `ValueError` if a row was deleted twice."""
    return _union_rows(deletion.files for deletion in deletions)


def _union_rows(rows: Iterable[Mapping[K, OffsetSet]]) -> dict[K, OffsetSet]:
    parts: dict[K, list[OffsetSet]] = {}
    for some in rows:
        for key, runs in some.items():
            parts.setdefault(key, []).append(runs)
    return {key: runs[0] if len(runs) == 1 else OffsetSet.union(runs) for key, runs in parts.items()}


def unapplied_deletes(
    deletions: Iterable[Deletion], applied_through: int, offsets: Mapping[int, int]
) -> Mapping[int, OffsetSet]:
    """Return bucket → deleted rows that a lake snapshot with these offsets may still hold.

    The snapshot has applied the deletions up to the commit ``applied_through``.
    """
    unapplied = union_deleted_offsets(
        replace(deletion, rows=select_rows_from(deletion.rows, offsets))
        if deletion.commit <= applied_through
        else deletion
        for deletion in deletions
    )
    return {bucket: runs for bucket, runs in unapplied.items() if runs}


def unapplied_file_deletes(deletions: Iterable[Deletion], applied_through: int) -> tuple[Deletion, ...]:
    """Return the deletions of lake file rows after the record ``applied_through``."""
    return tuple(deletion for deletion in deletions if deletion.files and deletion.commit > applied_through)


# -- rows of dropped partitions ----------------------------------------------------------------------------------------

DROPPED_ROWS: Final = "dropped-rows"
DROPPED_FILE_ROWS: Final = "dropped-file-rows"


@dataclass(frozen=True, slots=True)
class PartitionDropRows:
    """Records the rows of partitions that were dropped from the lake, and that the log still holds.

    ``count`` is how many rows that are missing from the recorded lake snapshot this action explains, including rows
    that the log no longer holds. Rows without offsets are named by position in files of the lake snapshot
    ``snapshot_id``. They are not counted: another engine may have moved them there, so that the log also holds them.
    """

    rows: Mapping[int, OffsetSet]
    count: int
    files: FileRows = field(default_factory=dict)
    snapshot_id: int | None = None
    """The lake snapshot that had the files; None without files."""
    total: int | None = None
    """Number of dropped rows; None in records of earlier versions, which did not count rows without offsets."""

    def names_all_rows(self, *, is_adopted: bool) -> bool:
        """Return whether the action names every dropped row. ``is_adopted`` is set for a table that adopted its
        lake.
        """
        if self.total is None:
            return not is_adopted and count_rows(self.rows) == self.count
        return count_rows(self.rows) + count_rows(self.files) == self.total

    @property
    def deletion(self) -> DeleteRows:
        """The action that deletes these rows individually."""
        return DeleteRows(self.rows, self.files, self.snapshot_id)

    def to_json(self) -> dict[str, Any]:
        # With files the action has its own kind: an older version of this package would show changes without them.
        kind = DROPPED_FILE_ROWS if self.files else DROPPED_ROWS
        out = {"type": kind, "rows": _to_json(self.rows), "count": self.count}
        if self.total is not None:
            out["total"] = self.total
        return {**out, "snapshot_id": self.snapshot_id, "files": _to_json(self.files)} if self.files else out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PartitionDropRows:
        files, snapshot_id = _files_from_json(data.get("files", {})), data.get("snapshot_id")
        return cls(_rows_from_json(data["rows"]), int(data["count"]), files, snapshot_id, data.get("total"))
