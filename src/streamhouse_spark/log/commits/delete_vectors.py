"""Rows of a table without a primary key that records deleted by their offsets, and whose bytes are still stored.

Offsets stay dense: a deleted row keeps its place in the log, and every reader leaves it out. What a state knows of
deletions goes with the rows, when these are trimmed or truncated.

Rows of lake files without offsets are deleted by file and position instead, as one lake snapshot has them. They are
left out of that snapshot, and of those recorded since that have the same such files, until one lacks them.

Rows of dropped partitions are others: the lake lacks them, and offsets alone do not say so. A reader of the log who has
not read them yet leaves them out, and a lake that is built anew from the log is without them. A stream that has read
them is not told. Changes between versions have them as deletions, and a rollback brings them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from streamhouse_spark.core.fork_safety import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.offset_ranges import OffsetRuns
from streamhouse_spark.core.types import OffsetRange

DELETIONS_MAX: Final = 64
"""Records whose deletions a state tells apart; those of older ones are one."""
_BEYOND: Final = 1 << 62
K = TypeVar("K")

FileRows = Mapping[str, OffsetRuns]
"""Name of a lake file, see `lake.parquet.parquet_io.StorageFiles.name_of` → positions of some of its rows."""
NO_FILE_ROWS: Final[FileRows] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """Rows at these offsets of buckets are no longer the table's: each was until now. They keep their places in the
    log.

    Nor are those at these positions of lake files, which the lake snapshot ``snapshot_id`` has.
    """

    rows: Mapping[int, OffsetRuns]
    files: FileRows = field(default_factory=dict)
    snapshot_id: int | None = None
    """None without files."""
    updated: Mapping[int, OffsetRuns] = field(default_factory=dict)
    """The offsets of these whose rows an update replaced: the others were deleted."""
    updated_files: FileRows = field(default_factory=dict)
    """The positions of such rows."""

    @property
    def num_rows(self) -> int:
        return num_rows_of(self.rows) + num_rows_of(self.files)

    def with_updated(self, rows: Mapping[int, OffsetRuns], files: FileRows) -> DeleteRows:
        """Return it with those of its rows that are among these as updated ones."""
        return replace(self, updated=intersect_rows(self.rows, rows), updated_files=intersect_rows(self.files, files))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON. With files it has a name of its own: a version of this package that does not know them
        stops there.
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


def num_rows_of(rows: Mapping[Any, OffsetRuns]) -> int:
    return sum(runs.num_rows for runs in rows.values())


def without_rows(rows: Mapping[K, OffsetRuns], removed: Mapping[K, OffsetRuns]) -> dict[K, OffsetRuns]:
    """Return the rows of each bucket, or of each file, that the others do not have; buckets without any are absent."""
    left = {key: runs.without(removed[key]) if key in removed else runs for key, runs in rows.items()}
    return {key: runs for key, runs in left.items() if runs}


def intersect_rows(rows: Mapping[K, OffsetRuns], other_rows: Mapping[K, OffsetRuns]) -> dict[K, OffsetRuns]:
    """Return the rows of each bucket, or of each file, that the others have too; buckets without any are absent."""
    common = {key: runs.common(other_rows[key]) for key, runs in rows.items() if key in other_rows}
    return {key: runs for key, runs in common.items() if runs}


def _files_to_json(rows: FileRows) -> dict[str, str]:
    return {name: runs.to_text() for name, runs in sorted(rows.items())}


def _files_from_json(data: Mapping[str, str]) -> dict[str, OffsetRuns]:
    return {name: OffsetRuns.from_text(text, where="a record that deletes rows") for name, text in data.items()}


@dataclass(frozen=True, slots=True)
class Deletion:
    """The rows that one record deleted, or several one after another."""

    commit: int
    """Number of the record, of several the newest."""
    time_ms: int
    rows: Mapping[int, OffsetRuns]
    """Bucket → offsets, of each bucket at least one."""
    first_commit: int
    """The oldest of the records."""
    first_ms: int
    is_in_lake: bool = False
    """Whether some of the rows are deleted in the lake, and no longer named here."""
    files: FileRows = field(default_factory=dict)
    """Rows without offsets, until a recorded lake snapshot lacks them."""
    snapshot_id: int | None = None
    """The lake snapshot that has these files; None without."""

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
    """The deletions of a state, which join their offsets once: records that add rows leave them as they are, and every
    reader of a state asks for all offsets.
    """

    @cached_property
    def rows(self) -> Mapping[int, OffsetRuns]:
        """Bucket → all offsets. Raises as `union_deleted_offsets`."""
        return union_deleted_offsets(self)

    def with_rows(self, deletions: Deletions, rows: Mapping[int, OffsetRuns]) -> Deletions:
        """Return ``deletions``, which are these and those of ``rows``: so the others are not joined anew."""
        merged = {bucket: OffsetRuns.union([self.rows[bucket], rows[bucket]]) for bucket in rows if bucket in self.rows}
        deletions.__dict__["rows"] = {**self.rows, **rows, **merged}
        return deletions


NO_DELETIONS: Final = Deletions()


def union_deleted_offsets(deletions: Iterable[Deletion]) -> Mapping[int, OffsetRuns]:
    """Return bucket → all offsets that were deleted. Raises `ValueError` if an offset was deleted twice."""
    parts: dict[int, list[OffsetRuns]] = {}
    for deletion in deletions:
        for bucket, runs in deletion.rows.items():
            parts.setdefault(bucket, []).append(runs)
    return {
        bucket: bucket_parts[0] if len(bucket_parts) == 1 else OffsetRuns.union(bucket_parts)
        for bucket, bucket_parts in parts.items()
    }


def find_already_deleted(
    action: DeleteRows,
    held: Mapping[int, OffsetRange],
    deleted: Mapping[int, OffsetRuns],
    deletions: Iterable[Deletion],
    history: Sequence[FileDeletes],
    lake: FileDeletes | None,
) -> str | None:
    """Say of which bucket or lake file an action names rows that are not held, or are deleted, or none; None if all
    are live.
    """
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
    """Return the deletions with that of one more record behind them."""
    if not action.rows and not action.files:
        return deletions
    deletion = Deletion(commit, time_ms, dict(action.rows), commit, time_ms)
    merged = in_order((*deletions, replace(deletion, files=dict(action.files), snapshot_id=action.snapshot_id)))
    return deletions.with_rows(merged, action.rows)


def in_order(deletions: Iterable[Deletion]) -> Deletions:
    """Return the deletions in the order of their records, the oldest as one where there are more than
    `DELETIONS_MAX`. Those with files stay apart, so that no lake snapshot is asked to lack some of them again.
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
    """Return the deletions of rows from ``starts`` on, in buckets that these name."""
    left = (replace(deletion, rows=_from(deletion.rows, starts)) for deletion in deletions)
    return Deletions(deletion for deletion in left if deletion.rows or deletion.files or deletion.is_in_lake)


def without_files(deletions: Iterable[Deletion]) -> Deletions:
    """Return the deletions without the rows of lake files: the table has another lake."""
    return Deletions(replace(d, files={}, snapshot_id=None, is_in_lake=True) if d.files else d for d in deletions)


def unapplied_deletes(
    deletions: Iterable[Deletion], applied_through: int, offsets: Mapping[int, int]
) -> Mapping[int, OffsetRuns]:
    """Return bucket → deleted rows that are not known to be absent in a lake snapshot with these offsets, which lacks
    those of the deletions up to the commit ``applied_through``.
    """
    unapplied = union_deleted_offsets(
        replace(deletion, rows=_from(deletion.rows, offsets)) if deletion.commit <= applied_through else deletion
        for deletion in deletions
    )
    return {bucket: runs for bucket, runs in unapplied.items() if runs}


class LakeDeletes(Protocol):
    """The rows that a recorded lake snapshot holds and lacks."""

    @property
    def offsets(self) -> Mapping[int, int]: ...

    @property
    def dropped_rows(self) -> int: ...

    @property
    def told(self) -> int: ...


def newly_lacking(deletions: Sequence[Deletion], before: LakeDeletes | None, after: LakeDeletes) -> tuple[int, int]:
    """Return how many rows more a lake snapshot lacks than one before it, and how many of these were deleted."""
    dropped_before, applied_through, offsets = (
        (before.dropped_rows, before.told, before.offsets) if before is not None else (0, 0, {})
    )
    waiting, left = (
        unapplied_deletes(deletions, applied_through, offsets),
        unapplied_deletes(deletions, after.told, after.offsets),
    )
    applied = sum(runs.num_rows for runs in waiting.values()) - sum(runs.num_rows for runs in left.values())
    return after.dropped_rows - dropped_before, applied


def drop_applied_deletes(deletions: Deletions, applied_through: int, held: Mapping[int, int]) -> Deletions:
    """Return the deletions without the rows below ``held``, which only a lake snapshot would have, and which it lacks:
    those of the deletions up to the commit ``applied_through``. So go all rows of its files.
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
    """Return all rows of lake files. Raises `ValueError` if one was deleted twice."""
    parts: dict[str, list[OffsetRuns]] = {}
    for deletion in deletions:
        for name, runs in deletion.files.items():
            parts.setdefault(name, []).append(runs)
    return {
        name: file_parts[0] if len(file_parts) == 1 else OffsetRuns.union(file_parts)
        for name, file_parts in parts.items()
    }


def of_snapshot(deletions: Iterable[Deletion], lake: FileDeletes | None) -> Deletions:
    """Return the deletions as those of the recorded snapshot, which has the same files: others are no longer known."""
    if lake is None:
        return without_files(deletions)
    return Deletions(replace(d, snapshot_id=lake.snapshot_id) if d.files else d for d in deletions)


def have_same_files(history: Sequence[FileDeletes], snapshot_id: int | None, other_id: int | None) -> bool:
    """Tell whether files without offsets that one of two lake snapshots has are in the other, where both have them,
    as they were: so that a position in one of them means the same row. ``history`` are the recorded ones.
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


def _from(rows: Mapping[int, OffsetRuns], starts: Mapping[int, int]) -> dict[int, OffsetRuns]:
    left = {bucket: runs.within(OffsetRange(starts.get(bucket, 0), _BEYOND)) for bucket, runs in rows.items()}
    return {bucket: runs for bucket, runs in left.items() if runs}


def rows_to_json(rows: Mapping[int, OffsetRuns]) -> dict[str, str]:
    return {str(bucket): runs.to_text() for bucket, runs in sorted(rows.items())}


def rows_from_json(data: Mapping[str, str]) -> dict[int, OffsetRuns]:
    where = "a record that deletes rows"
    return {int(bucket): OffsetRuns.from_text(text, where=where) for bucket, text in data.items()}


# -- rows of dropped partitions ----------------------------------------------------------------------------------------

DROPPED_ROWS: Final = "dropped-rows"
DROPPED_FILE_ROWS: Final = "dropped-file-rows"


@dataclass(frozen=True, slots=True)
class PartitionDropRows:
    """The rows at these offsets are of partitions that were dropped from the lake: the table no longer has them, and
    the log still does.

    ``count`` is how many of the rows that the recorded lake snapshot lacks this accounts for, those included that the
    log does not hold any more. Rows without offsets that went too are those at these positions of lake files, which
    the lake snapshot ``snapshot_id`` has; they are not counted, since another engine may have moved them there, and
    the log may hold them.
    """

    rows: Mapping[int, OffsetRuns]
    count: int
    files: FileRows = field(default_factory=dict)
    snapshot_id: int | None = None
    """None without files."""
    total: int | None = None
    """How many rows went; None in records of earlier versions, which did not count rows without offsets."""

    def tells_all(self, *, is_adopted: bool) -> bool:
        """Tell whether each row that went is named here, of a table that was made of a lake table or not."""
        if self.total is None:
            return not is_adopted and num_rows_of(self.rows) == self.count
        return num_rows_of(self.rows) + num_rows_of(self.files) == self.total

    @property
    def deletion(self) -> DeleteRows:
        """The action that deletes the same rows one by one."""
        return DeleteRows(self.rows, self.files, self.snapshot_id)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON. With files it has a name of its own: a version of this package that does not know them
        would show changes without them.
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
    """Rows of dropped partitions that the log still holds, of the newest drop last."""
    accounted: int = 0
    """How many of the rows that the recorded lake snapshot lacks are known to be deleted, or named here once."""
    newest: int = 0
    """Number of the newest record that named some; 0 for none."""

    def with_pair(self, grown: int, applied: int) -> DroppedPartitionRows:
        """Return it behind a lake snapshot that lacks ``grown`` rows more, where ``applied`` deleted rows are lacking
        that were not before. Where these do not account for all, a partition was dropped.
        """
        return replace(self, accounted=self.accounted + grown) if 0 < grown <= applied else self

    def with_action(self, action: PartitionDropRows, commit: int, time_ms: int) -> DroppedPartitionRows:
        named = append_deletion(self.named, DeleteRows(action.rows), commit, time_ms)
        return DroppedPartitionRows(named, self.accounted + action.count, commit)

    def from_offsets(self, starts: Mapping[int, int]) -> DroppedPartitionRows:
        """Return it without rows below ``starts``, in buckets that these name."""
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
    """The newest record that emptied the table: rows below ``offsets[bucket]`` are no longer the table's."""

    commit: int
    time_ms: int
    offsets: Mapping[int, int]
