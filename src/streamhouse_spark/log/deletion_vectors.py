"""Deletes of a log table: rows whose bytes are still stored, and which readers skip.

Offsets stay dense: a deleted row keeps its place in the log. Entries are dropped when their rows are trimmed or
truncated.

Rows of lake files without offsets are deleted by file and position instead, in one lake snapshot. They are skipped in
that snapshot and in later recorded ones with the same files, until one has applied the delete.

Rows of dropped partitions are separate: the lake does not have them, and offsets alone do not show it. A reader that
has not read them from the log yet skips them, and a lake that is rebuilt from the log does not get them. A stream that
has read them is not notified. Changes between versions contain them as deletions, and a rollback restores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange

DELETIONS_MAX: Final = 64
"""Records whose deletions a state keeps apart; those of older records are merged."""
_BEYOND: Final = 1 << 62
K = TypeVar("K")

FileRows = Mapping[str, OffsetSet]
"""Name of a lake file, see `lake.parquet.parquet_io.StorageFiles.name_of` → positions of some of its rows."""
NO_FILE_ROWS: Final[FileRows] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """Deletes the rows at these offsets of buckets, each of which must be live. They keep their places in the log.

    It also deletes the rows at these positions of lake files of the lake snapshot ``snapshot_id``.
    """

    rows: Mapping[int, OffsetSet]
    files: FileRows = field(default_factory=dict)
    snapshot_id: int | None = None
    """None without files."""
    updated: Mapping[int, OffsetSet] = field(default_factory=dict)
    """The offsets of those rows that an update replaced; the rest were deleted."""
    updated_files: FileRows = field(default_factory=dict)
    """The positions of such rows in lake files."""

    @property
    def num_rows(self) -> int:
        return count_rows(self.rows) + count_rows(self.files)

    def with_updated(self, rows: Mapping[int, OffsetSet], files: FileRows) -> DeleteRows:
        """Return the action with its rows among these marked as updated."""
        return replace(self, updated=intersect_rows(self.rows, rows), updated_files=intersect_rows(self.files, files))

    def to_json(self) -> dict[str, Any]:
        """Return the action as JSON. With files it has its own kind, so that older versions of this package
        stop there.
        """
        out: dict[str, Any] = {"type": "delete-rows", "rows": rows_to_json(self.rows)}
        if self.files:
            files = _files_to_json(self.files)
            out |= {"type": "delete-file-rows", "snapshot_id": self.snapshot_id, "files": files}
        if (self.updated, self.updated_files) == (self.rows, self.files):
            return {**out, "updated": True} if self.num_rows else out
        if self.updated:
            out["updated"] = rows_to_json(self.updated)
        if self.updated_files:
            out["updated_files"] = _files_to_json(self.updated_files)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeleteRows:
        rows, files = rows_from_json(data["rows"]), _files_from_json(data.get("files", {}))
        updated = rows, files
        if data.get("updated") is not True:
            updated = rows_from_json(data.get("updated", {})), _files_from_json(data.get("updated_files", {}))
        return cls(rows, files, data.get("snapshot_id"), *updated)


def count_rows(rows: Mapping[Any, OffsetSet]) -> int:
    return sum(runs.num_rows for runs in rows.values())


def without_rows(rows: Mapping[K, OffsetSet], removed: Mapping[K, OffsetSet]) -> dict[K, OffsetSet]:
    """Return the rows per bucket or file that are not in ``removed``; empty keys are left out."""
    left = {key: runs.without(removed[key]) if key in removed else runs for key, runs in rows.items()}
    return {key: runs for key, runs in left.items() if runs}


def intersect_rows(rows: Mapping[K, OffsetSet], other_rows: Mapping[K, OffsetSet]) -> dict[K, OffsetSet]:
    """Return the rows per bucket or file that are in both; empty keys are left out."""
    common = {key: runs.common(other_rows[key]) for key, runs in rows.items() if key in other_rows}
    return {key: runs for key, runs in common.items() if runs}


def _files_to_json(rows: FileRows) -> dict[str, str]:
    return {name: runs.to_text() for name, runs in sorted(rows.items())}


def _files_from_json(data: Mapping[str, str]) -> dict[str, OffsetSet]:
    return {name: OffsetSet.from_text(text, where="a record that deletes rows") for name, text in data.items()}


@dataclass(frozen=True, slots=True)
class Deletion:
    """The rows that one record deleted, or several consecutive ones."""

    commit: int
    """Number of the record; of several, the last."""
    time_ms: int
    rows: Mapping[int, OffsetSet]
    """Bucket → offsets, at least one per bucket."""
    first_commit: int
    """The first of the records."""
    first_ms: int
    is_in_lake: bool = False
    """Whether some of the rows are deleted in the lake, and no longer listed here."""
    files: FileRows = field(default_factory=dict)
    """Rows without offsets, until a recorded lake snapshot has applied their delete."""
    snapshot_id: int | None = None
    """The lake snapshot that has these files; None without files."""

    def to_json(self) -> list[Any]:
        rows = rows_to_json(self.rows)
        out = [self.commit, self.time_ms, self.first_commit, self.first_ms, self.is_in_lake, rows]
        if not self.files:
            return out
        return [*out, self.snapshot_id, _files_to_json(self.files)]

    @classmethod
    def from_json(cls, data: Any) -> Deletion:
        commit, time_ms, first_commit, first_ms, is_in_lake, rows, *of_files = data
        snapshot_id, files = of_files or (None, {})
        fields = rows_from_json(rows), first_commit, first_ms, is_in_lake, _files_from_json(files), snapshot_id
        return cls(commit, time_ms, *fields)


class Deletions(tuple[Deletion, ...]):  # noqa: SLOT001 - it keeps what it has joined
    """The deletions of a state. They cache the union of their offsets: appends leave it unchanged, and every reader
    needs it.
    """

    @cached_property
    def rows(self) -> Mapping[int, OffsetSet]:
        """Bucket → all offsets. Raises as `union_deleted_offsets`."""
        return union_deleted_offsets(self)

    def with_rows(self, deletions: Deletions, rows: Mapping[int, OffsetSet]) -> Deletions:
        """Return ``deletions``, which must be these plus ``rows``, with the union computed incrementally."""
        merged = {bucket: OffsetSet.union([self.rows[bucket], rows[bucket]]) for bucket in rows if bucket in self.rows}
        deletions.__dict__["rows"] = {**self.rows, **rows, **merged}
        return deletions


NO_DELETIONS: Final = Deletions()


def union_deleted_offsets(deletions: Iterable[Deletion]) -> Mapping[int, OffsetSet]:
    """Return bucket → all deleted offsets. Raises `ValueError` if an offset was deleted twice."""
    return _union_rows(deletion.rows for deletion in deletions)


def _union_rows(rows: Iterable[Mapping[K, OffsetSet]]) -> dict[K, OffsetSet]:
    parts: dict[K, list[OffsetSet]] = {}
    for some in rows:
        for key, runs in some.items():
            parts.setdefault(key, []).append(runs)
    return {key: runs[0] if len(runs) == 1 else OffsetSet.union(runs) for key, runs in parts.items()}


def find_already_deleted(
    action: DeleteRows,
    held: Mapping[int, OffsetRange],
    deleted: Mapping[int, OffsetSet],
    deletions: Iterable[Deletion],
    history: Sequence[FileDeletes],
    lake: FileDeletes | None,
) -> str | None:
    """Return the bucket or lake file of which an action deletes rows that are not live; None if all are live."""
    for bucket, runs in action.rows.items():
        is_held = bucket in held and runs and runs.within(held[bucket]) == runs
        if not is_held or (bucket in deleted and deleted[bucket].common(runs)):
            return f"bucket {bucket} that are not the table's"
    has_same_files = lake is not None and have_same_files(history, action.snapshot_id, lake.snapshot_id)
    deleted_file_rows = union_deleted_file_rows(deletions) if action.files else {}
    for name, runs in action.files.items():
        if not has_same_files or not runs or (name in deleted_file_rows and deleted_file_rows[name].common(runs)):
            return f"lake file {name} that are not the table's"
    return None


def append_deletion(deletions: Deletions, action: DeleteRows, commit: int, time_ms: int) -> Deletions:
    """Return the deletions with that of one more record at the end."""
    if not action.rows and not action.files:
        return deletions
    deletion = Deletion(commit, time_ms, dict(action.rows), commit, time_ms)
    merged = sort_deletions((*deletions, replace(deletion, files=dict(action.files), snapshot_id=action.snapshot_id)))
    return deletions.with_rows(merged, action.rows)


def sort_deletions(deletions: Iterable[Deletion]) -> Deletions:
    """Return the deletions in record order, the oldest merged into one if there are more than `DELETIONS_MAX`.

    Those with files stay separate, so that no lake snapshot has to apply some of them twice.
    """
    ordered = sorted(deletions, key=lambda deletion: deletion.commit)
    while len(ordered) > DELETIONS_MAX:
        at = next((i for i, (a, b) in enumerate(pairwise(ordered)) if not a.files and not b.files), None)
        if at is None:
            break
        first, second = ordered[at : at + 2]
        is_in_lake = first.is_in_lake or second.is_in_lake
        joined = replace(first, commit=second.commit, time_ms=second.time_ms, is_in_lake=is_in_lake)
        ordered[at : at + 2] = [replace(joined, rows=union_deleted_offsets((first, second)))]
    return Deletions(ordered)


def from_offsets(deletions: Deletions, starts: Mapping[int, int]) -> Deletions:
    """Return the deletions of rows at or above ``starts``, for the buckets that these name."""
    left = (replace(deletion, rows=_from(deletion.rows, starts)) for deletion in deletions)
    return Deletions(deletion for deletion in left if deletion.rows or deletion.files or deletion.is_in_lake)


def without_files(deletions: Iterable[Deletion]) -> Deletions:
    """Return the deletions without the rows of lake files, for a table with another lake."""
    return Deletions(replace(d, files={}, snapshot_id=None, is_in_lake=True) if d.files else d for d in deletions)


def unapplied_deletes(
    deletions: Iterable[Deletion], applied_through: int, offsets: Mapping[int, int]
) -> Mapping[int, OffsetSet]:
    """Return bucket → deleted rows that a lake snapshot with these offsets may still hold.

    The snapshot has applied the deletions up to the commit ``applied_through``.
    """
    unapplied = union_deleted_offsets(
        replace(deletion, rows=_from(deletion.rows, offsets)) if deletion.commit <= applied_through else deletion
        for deletion in deletions
    )
    return {bucket: runs for bucket, runs in unapplied.items() if runs}


class LakeDeletes(Protocol):
    """The rows that a recorded lake snapshot holds and misses."""

    @property
    def offsets(self) -> Mapping[int, int]: ...

    @property
    def dropped_rows(self) -> int: ...

    @property
    def applied_through(self) -> int: ...


def count_newly_dropped(
    deletions: Sequence[Deletion], before: LakeDeletes | None, after: LakeDeletes
) -> tuple[int, int]:
    """Return how many more rows a lake snapshot misses than the one before, and how many of these were deleted."""
    dropped_before, applied_through, offsets = (
        (before.dropped_rows, before.applied_through, before.offsets) if before is not None else (0, 0, {})
    )
    waiting = unapplied_deletes(deletions, applied_through, offsets)
    left = unapplied_deletes(deletions, after.applied_through, after.offsets)
    return after.dropped_rows - dropped_before, count_rows(waiting) - count_rows(left)


def drop_applied_deletes(deletions: Deletions, applied_through: int, held: Mapping[int, int]) -> Deletions:
    """Return the deletions without rows below ``held`` that the lake snapshot has applied, up to ``applied_through``.

    Only the lake would hold such rows. All rows of its files are dropped with them.
    """

    def left(deletion: Deletion) -> Deletion:
        if deletion.commit > applied_through:
            return deletion
        rows = _from(deletion.rows, held)
        is_in_lake = deletion.is_in_lake or rows != deletion.rows or bool(deletion.files)
        return replace(deletion, rows=rows, is_in_lake=is_in_lake, files={}, snapshot_id=None)

    return Deletions(map(left, deletions))


# -- rows of lake files ------------------------------------------------------------------------------------------------


class FileDeletes(Protocol):
    """A recorded lake snapshot."""

    @property
    def snapshot_id(self) -> int: ...

    @property
    def keeps_files(self) -> bool: ...


def unapplied_file_deletes(deletions: Iterable[Deletion], applied_through: int) -> tuple[Deletion, ...]:
    """Return the deletions of lake file rows that a snapshot with the deletions up to ``applied_through`` still has."""
    return tuple(deletion for deletion in deletions if deletion.files and deletion.commit > applied_through)


def union_deleted_file_rows(deletions: Iterable[Deletion]) -> FileRows:
    """Return all deleted rows of lake files. Raises `ValueError` if one was deleted twice."""
    return _union_rows(deletion.files for deletion in deletions)


def of_snapshot(deletions: Iterable[Deletion], lake: FileDeletes | None) -> Deletions:
    """Return the deletions as those of the recorded snapshot, which has the same files. Without one they
    are unknown.
    """
    if lake is None:
        return without_files(deletions)
    return Deletions(replace(d, snapshot_id=lake.snapshot_id) if d.files else d for d in deletions)


def have_same_files(history: Sequence[FileDeletes], snapshot_id: int | None, other_id: int | None) -> bool:
    """Return whether the files without offsets that two lake snapshots share are unchanged between them.

    A position then means the same row in both. ``history`` are the recorded snapshots.
    """
    if snapshot_id is None or other_id is None:
        return False
    if snapshot_id == other_id:
        return True
    places = [
        [i for i, pair in enumerate(history) if pair.snapshot_id == candidate] for candidate in (snapshot_id, other_id)
    ]
    if not all(places):
        return False
    first, last = sorted((places[0][-1], places[1][-1]))
    return all(pair.keeps_files for pair in history[first + 1 : last + 1])


def _from(rows: Mapping[int, OffsetSet], starts: Mapping[int, int]) -> dict[int, OffsetSet]:
    left = {bucket: runs.within(OffsetRange(starts.get(bucket, 0), _BEYOND)) for bucket, runs in rows.items()}
    return {bucket: runs for bucket, runs in left.items() if runs}


def rows_to_json(rows: Mapping[int, OffsetSet]) -> dict[str, str]:
    return {str(bucket): runs.to_text() for bucket, runs in sorted(rows.items())}


def rows_from_json(data: Mapping[str, str]) -> dict[int, OffsetSet]:
    where = "a record that deletes rows"
    return {int(bucket): OffsetSet.from_text(text, where=where) for bucket, text in data.items()}


# -- rows of dropped partitions ----------------------------------------------------------------------------------------

DROPPED_ROWS: Final = "dropped-rows"
DROPPED_FILE_ROWS: Final = "dropped-file-rows"


@dataclass(frozen=True, slots=True)
class PartitionDropRows:
    """Records the rows of partitions that were dropped from the lake, and that the log still holds.

    ``count`` is how many of the rows missing from the recorded lake snapshot this accounts for, including those that
    the log no longer holds. Rows without offsets are named by position in the files of the lake snapshot
    ``snapshot_id``. They are not counted, because another engine may have moved them there while the log still holds
    them.
    """

    rows: Mapping[int, OffsetSet]
    count: int
    files: FileRows = field(default_factory=dict)
    snapshot_id: int | None = None
    """None without files."""
    total: int | None = None
    """How many rows were dropped; None in records of earlier versions, which did not count rows without offsets."""

    def names_all_rows(self, *, is_adopted: bool) -> bool:
        """Return whether every dropped row is named here. ``is_adopted`` says that the table adopted a lake table."""
        if self.total is None:
            return not is_adopted and count_rows(self.rows) == self.count
        return count_rows(self.rows) + count_rows(self.files) == self.total

    @property
    def deletion(self) -> DeleteRows:
        """The action that deletes the same rows individually."""
        return DeleteRows(self.rows, self.files, self.snapshot_id)

    def to_json(self) -> dict[str, Any]:
        """Return the action as JSON. With files it has its own kind: an older version of this package would show
        changes without them.
        """
        kind = DROPPED_FILE_ROWS if self.files else DROPPED_ROWS
        out = {"type": kind, "rows": rows_to_json(self.rows), "count": self.count}
        if self.total is not None:
            out["total"] = self.total
        if not self.files:
            return out
        return {**out, "snapshot_id": self.snapshot_id, "files": _files_to_json(self.files)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PartitionDropRows:
        files, snapshot_id = _files_from_json(data.get("files", {})), data.get("snapshot_id")
        return cls(rows_from_json(data["rows"]), int(data["count"]), files, snapshot_id, data.get("total"))


@dataclass(frozen=True, slots=True)
class DroppedPartitionRows:
    """Dropped rows, as a state knows them."""

    named: Deletions = NO_DELETIONS
    """Rows of dropped partitions that the log still holds, the latest drop last."""
    accounted: int = 0
    """How many of the rows missing from the recorded lake snapshot are known to be deleted, or were named here."""
    newest: int = 0
    """Number of the last record that named some; 0 for none."""

    def with_pair(self, grown: int, applied: int) -> DroppedPartitionRows:
        """Return the rows after a lake snapshot that misses ``grown`` more rows and newly applies ``applied`` deletes.

        If the deletes do not account for all missing rows, a partition was dropped.
        """
        return replace(self, accounted=self.accounted + grown) if 0 < grown <= applied else self

    def with_action(self, action: PartitionDropRows, commit: int, time_ms: int) -> DroppedPartitionRows:
        named = append_deletion(self.named, DeleteRows(action.rows), commit, time_ms)
        return DroppedPartitionRows(named, self.accounted + action.count, commit)

    def from_offsets(self, starts: Mapping[int, int]) -> DroppedPartitionRows:
        """Return the rows at or above ``starts``, for the buckets that these name."""
        return replace(self, named=from_offsets(self.named, starts)) if self.named else self

    def to_json(self) -> dict[str, Any]:
        named = [deletion.to_json() for deletion in self.named]
        return {"accounted": self.accounted, "newest": self.newest, "named": named}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DroppedPartitionRows:
        named = Deletions(Deletion.from_json(entry) for entry in data["named"])
        return cls(named, int(data["accounted"]), int(data["newest"]))


NO_DROPPED_ROWS: Final = DroppedPartitionRows()


# -- all rows, and files -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Truncation:
    """The last record that truncated the table: rows below ``offsets[bucket]`` no longer belong to it."""

    commit: int
    time_ms: int
    offsets: Mapping[int, int]
