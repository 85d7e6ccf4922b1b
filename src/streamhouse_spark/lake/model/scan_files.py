"""Data files of a lake snapshot, with the metadata that planners and engines need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.lake.model.values import FieldNames, LakeProjection, LakeSnapshot, LakeSplit, MergedFiles

SPLIT_BYTES_TARGET = 128 << 20


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of one column in a file's metadata, as Python values; None if unknown.

    ``low`` and ``high`` may lie outside of the values (texts are truncated), and exclude NaN. Dates are days,
    timestamps microseconds.
    """

    low: Any = None
    high: Any = None
    null_count: int | None = None
    value_count: int | None = None
    """Number of values, nulls and NaN included."""
    nan_count: int | None = None


@dataclass(frozen=True, slots=True)
class ScanFile:
    """A data file, or several that are read as one."""

    location: str
    size_bytes: int
    num_rows: int
    """Rows stored in the file, ignoring deletes and keys that other files have too."""
    bucket: int | None
    """None if the file's partition does not determine it."""
    row_group_starts: tuple[int, ...] = ()
    """Byte positions of its row groups, as far as known."""
    position_deletes: tuple[str, ...] = ()
    own_deletes: tuple[tuple[str, int], ...] = ()
    """The same with their sizes, if each is about this file alone; otherwise empty."""
    partition: Mapping[str, Any] = field(default_factory=dict)
    """Partition column → the value of all rows."""
    statistics: Mapping[str, ColumnStatistics] = field(default_factory=dict)
    """Statistics of the requested columns, as far as known."""
    column_bytes: Mapping[str, int] = field(default_factory=dict)
    merge: MergedFiles | None = None
    """See `LakeSplit.merge`; statistics and partition cover all of the files."""
    field_names: FieldNames = ()
    """See `LakeSplit.field_names`."""
    num_deleted: int | None = 0
    """Number of stored rows that are deleted or replaced; None if only a read can tell."""
    deleted_positions: OffsetSet | None = None
    """Positions of further rows to leave out, which the snapshot still has. Some may already be deleted there."""

    @property
    def num_live(self) -> int | None:
        """Number of live rows; None if only a read can tell."""
        if self.num_deleted is None or (self.num_deleted and self.deleted_positions is not None):
            return None
        return (
            self.num_rows
            - self.num_deleted
            - (self.deleted_positions.num_rows if self.deleted_positions is not None else 0)
        )

    @property
    def has_rows_as_stored(self) -> bool:
        """Whether exactly the stored rows are live, without deletes or merges."""
        return not self.position_deletes and self.merge is None and self.deleted_positions is None

    def splits(self) -> list[LakeSplit]:
        """Return the file as splits for the package's readers, in parts of whole row groups if it is large."""
        parts = row_group_parts(self.size_bytes, self.row_group_starts)
        if parts is None:
            deletes, names = self.position_deletes, self.field_names
            size_bytes, num_rows = self.size_bytes, self.num_rows
            return [LakeSplit(self.location, size_bytes, num_rows, None, deletes, self.bucket, self.merge, names)]
        rows_per_byte = self.num_rows / self.size_bytes
        return [
            LakeSplit(
                self.location,
                size_bytes,
                round(size_bytes * rows_per_byte),
                part,
                self.position_deletes,
                self.bucket,
                field_names=self.field_names,
            )
            for part, size_bytes in parts
        ]


def row_group_parts(size_bytes: int, starts: Sequence[int]) -> list[tuple[tuple[int, int], int]] | None:
    """Return row groups ``[first, last)`` with their bytes, about a target size each. None for a file of one part."""
    if size_bytes <= SPLIT_BYTES_TARGET * 3 // 2 or len(starts) < 2:
        return None
    ends = [*starts[1:], size_bytes]
    parts: list[tuple[tuple[int, int], int]] = []
    first = 0
    for i, end in enumerate(ends):
        part_bytes = end - starts[first]
        if part_bytes >= SPLIT_BYTES_TARGET or i == len(ends) - 1:
            parts.append(((first, i + 1), part_bytes))
            first = i + 1
    return parts


@dataclass(frozen=True, slots=True)
class LakeScan:
    """One consistent read of the lake table: its files and their columns."""

    snapshot: LakeSnapshot
    projection: LakeProjection
    files: tuple[ScanFile, ...]
    same_by_name: frozenset[str]
    """Columns that any engine may read from every file by name, or as null if a file has no such name: neither name nor
    type ever changed or was reused."""
