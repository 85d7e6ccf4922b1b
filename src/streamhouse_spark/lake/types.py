"""Values of a lake table: snapshots, files, splits, plans and reports. Those of tasks are serializable as JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.json_codec import JsonSerializable
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.schema.table_schema import TableSchema

if TYPE_CHECKING:
    from streamhouse_spark.log.deletion_vectors import Deletion
    from streamhouse_spark.log.history_index import HistoryPoint


COMMIT_USER = "__streamhouse_lake_tiering"
"""``commit-user`` of the package's snapshots, and name of the tag that protects the latest of them from expiry."""
NEVER_TRUNCATED: Mapping[int, int] = MappingProxyType({})
Filter: TypeAlias = "pc.Expression | None"
FieldNames = tuple[tuple[int, str], ...]
"""Field ids and names of columns, or ids and paths (`schema.nested_fields.join_path`) of nested fields."""
Claim = Callable[[Collection[int], Collection[int]], None]
"""Called before an expiry, with the snapshots to expire and with all snapshots.

Prevents later tags of the snapshots to expire, or raises `CommitConflictError` if one has a tag.
"""
SPLIT_BYTES_TARGET = 128 << 20


@dataclass(frozen=True, slots=True)
class DeletedRows(JsonSerializable):
    """A data file and its deleted rows, as described by a position delete file.

    In a format without delete files, the data file to remove, because other files hold its remaining rows.
    """

    location: str
    """Location of the data file."""
    replaces: tuple[str, ...] = ()
    """Older position delete files whose positions this file includes. The same snapshot removes them."""

    num_duplicates: int = 0
    """Number of newly deleted duplicates: rows next to another row of their key, which only other engines add."""
    num_dropped: int = 0
    """Number of newly deleted rows of a log table."""
    num_moved: int = 0
    """If the data file is removed, the number of rows that moved to other files."""
    has_offsets: bool = True
    """If the data file is removed, whether its rows have offsets."""


@dataclass(frozen=True, slots=True)
class LiveFile(JsonSerializable):
    """A data file of a snapshot with its position delete files. Serializable.

    ``partition`` and the bounds are in the binary form of the lake. Bounds are by field id, of key columns.
    """

    location: str
    size_bytes: int
    num_rows: int
    """Number of rows, including deleted ones."""
    spec_id: int
    partition: tuple[bytes | None, ...]
    own_deletes: tuple[str, ...] = ()
    """Delete files for this data file alone."""
    shared_deletes: tuple[str, ...] = ()
    """Delete files that may also apply to other data files. Only other engines write them."""
    lower: Mapping[int, bytes] = field(default_factory=dict)
    upper: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def deletes(self) -> tuple[str, ...]:
        return (*self.own_deletes, *self.shared_deletes)


@dataclass(frozen=True, slots=True)
class KeyRange(JsonSerializable):
    """The key range of a file in key order with unique keys."""

    lowest: tuple[bytes, ...]
    """The first key: the values of its columns in the binary form of the lake."""
    highest: tuple[bytes, ...]
    """The last key."""
    lower: tuple[bytes, ...]
    """Minimum of each key column."""
    upper: tuple[bytes, ...]
    """Maximum of each key column."""
    sequences: OffsetRange
    """Range of the sequence numbers of the rows. The row with the largest number wins for a key."""
    num_deleted: int
    """Number of rows that delete their key."""
    level: int
    """The level in the merge tree. Files of level 0 may share keys."""


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """A snapshot of the lake table, with the rows at offsets ``[starts[bucket], offsets[bucket])`` of each bucket.

    ``starts`` are the first offsets after the last truncation that is applied to the snapshot, and empty if there was
    none. ``dropped_rows`` counts the missing rows, which were deleted or whose partitions were dropped.
    ``dropped_without_offsets`` counts rows without offsets in dropped partitions.
    """

    id: int
    offsets: Mapping[int, int]
    timestamp_ms: int
    starts: Mapping[int, int] = field(default_factory=dict)
    dropped_rows: int = 0
    history: HistoryPoint | None = field(default=None, compare=False)
    """The log's latest record with rows at the time of tiering. None in older snapshots."""
    dropped_without_offsets: int = 0

    @property
    def applied_through(self) -> int:
        """The latest record whose deletes the snapshot has applied."""
        return self.history.number if self.history is not None else 0


@dataclass(frozen=True, slots=True)
class LakeFile(JsonSerializable):
    """A written data file or position delete file, committed or not. Also a data file to remove; see `DeletedRows`.

    ``offsets`` are those of its rows, or with a primary key those of the changes. ``partition`` has the partition
    values in the binary form of the lake, and None for null. ``columns`` has statistics with binary bounds by field id.
    """

    location: str
    bucket: int
    offsets: OffsetRange
    num_rows: int
    size_bytes: int
    schema_id: int
    spec_id: int
    partition: tuple[bytes | None, ...]
    columns: Mapping[str, Mapping[int, int | bytes]] = field(default_factory=dict)
    split_offsets: tuple[int, ...] = ()
    deletes: DeletedRows | None = None
    """None for a data file."""
    keys: KeyRange | None = None
    """The key range, which readers need in a lake that merges by key."""

    @property
    def num_left(self) -> int:
        """Net number of rows that the file adds."""
        if self.deletes is not None:
            return -self.deletes.num_moved
        return self.num_rows - (self.keys.num_deleted if self.keys is not None else 0)


@dataclass(frozen=True, slots=True)
class LakeSplit(JsonSerializable):
    """A part of one data file: its row groups ``[first, last)``, or all row groups if ``row_groups`` is None."""

    location: str
    size_bytes: int
    """Bytes of this part."""
    num_rows: int
    """Rows of this part. An estimate if the file is read in parts or has deleted rows."""
    row_groups: tuple[int, int] | None = None
    position_deletes: tuple[str, ...] = ()
    """Locations of position delete files."""
    bucket: int | None = None
    """None if the file's partition does not determine it."""
    merge: MergedFiles | None = None
    """Files that are merged by key, because they share keys or have deletes. ``location`` is the first of them.

    ``size_bytes`` is their sum, and ``num_rows`` an upper bound.
    """
    field_names: FieldNames = ()
    """Former names of columns and nested fields, if the file has no field ids and was written with those names."""

    @property
    def is_plain(self) -> bool:
        """Whether it is a whole file without deletes, which the Parquet reader of an engine can read."""
        return self.row_groups is None and not self.position_deletes and self.merge is None


@dataclass(frozen=True, slots=True)
class LakeProjection(JsonSerializable):
    """The columns to read, and how to find them in files: by field id, or by name in files without ids.

    ``schema`` has names, order and types of the result. ``field_ids[i]`` is None for a column that the lake table does
    not have, which is read as null. ``lake_names[i]`` is the column's name in the lake. It is None if the column was
    renamed, so that files without ids cannot be read. If the nested fields of a column changed, ``inner[i]`` has their
    ids, and None for a field that the lake does not have. Otherwise it is None, and nested fields match by name.
    """

    schema: TableSchema
    field_ids: tuple[int | None, ...]
    lake_names: tuple[str | None, ...]
    inner: tuple[tuple[int | None, ...] | None, ...] = ()
    """Empty if every column has None."""
    first_names: tuple[FieldNames, ...] = ()
    """For columns in ``inner``, the nested names before their first change, for the package's files without ids."""

    def of_columns(self, names: Container[str]) -> LakeProjection:
        """Return the projection restricted to the columns in ``names``."""
        chosen = [i for i, column in enumerate(self.schema.columns) if column.name in names]
        return LakeProjection(
            TableSchema(tuple(self.schema.columns[i] for i in chosen)),
            tuple(self.field_ids[i] for i in chosen),
            tuple(self.lake_names[i] for i in chosen),
            tuple(self.inner[i] for i in chosen) if self.inner else (),
            tuple(self.first_names[i] for i in chosen) if self.first_names else (),
        )

    @property
    def inside(self) -> tuple[tuple[tuple[int | None, ...] | None, FieldNames], ...]:
        """``inner`` and ``first_names`` of each column."""
        number = len(self.field_ids)
        return tuple(zip(self.inner or (None,) * number, self.first_names or ((),) * number, strict=True))


@dataclass(frozen=True, slots=True)
class MergedFile:
    location: str
    size_bytes: int
    num_rows: int
    field_names: FieldNames = ()
    """See `LakeSplit.field_names`."""


@dataclass(frozen=True, slots=True)
class MergedFiles(JsonSerializable):
    """Data files of one bucket and partition, each sorted by primary key with unique keys."""

    files: tuple[MergedFile, ...]
    by: LakeProjection
    """The key columns in order, the sequence number, whose maximum identifies the latest row of a key, and the change
    type (see `streamhouse_spark.keys.change_type.ChangeType`).
    """


@dataclass(frozen=True, slots=True)
class LakePlan:
    """A consistent read of the lake table. ``snapshot`` is None for a table without snapshots, which has no rows."""

    snapshot: LakeSnapshot | None
    projection: LakeProjection
    splits: tuple[LakeSplit, ...]

    @property
    def num_rows(self) -> int:
        return sum(split.num_rows for split in self.splits)


@dataclass(frozen=True, slots=True)
class WriteContext(JsonSerializable):
    """The context of a task that writes data files of the table. ``lake`` is JSON of the format."""

    table_uuid: str
    schema: TableSchema
    """The table's schema, which is that of the log's batches."""
    target_file_bytes: int
    lake: Mapping[str, Any]
    primary_key: tuple[str, ...] = ()
    """The key columns, or empty for a log table."""

    @property
    def key_indexes(self) -> tuple[int, ...]:
        """Indexes of the key columns in the schema."""
        return tuple(self.schema.names.index(name) for name in self.primary_key)


@dataclass(frozen=True, slots=True)
class CompactReport:
    files_removed: int = 0
    files_added: int = 0
    rows: int = 0
    snapshot: LakeSnapshot | None = None
    healed_rows: int = 0
    """With a primary key, the number of removed duplicates: additional rows of a key, which another engine added."""
    purged_rows: int = 0
    """Number of deleted rows, and in a Paimon lake of replaced rows, that the new files no longer store."""


@dataclass(frozen=True, slots=True)
class LakeDropReport:
    files: int = 0
    """Dropped data files."""
    rows: int = 0
    """Rows of the dropped files."""
    kept_rows: int = 0
    """Rows of these files that were appended after the drop, and rewritten."""
    snapshot: LakeSnapshot | None = None
    """The snapshot of the drop. None if there was nothing to drop, or for a dry run."""


SNAPSHOTS_KEPT = 10


@dataclass(frozen=True, slots=True)
class ExpiryRules:
    """Selects the snapshots that expiry retains."""

    last: int
    """Number of latest snapshots to retain."""
    ms: int
    """Minimum age of expired snapshots, in milliseconds."""


@dataclass(frozen=True, slots=True)
class ExpireReport:
    snapshots: tuple[int, ...] = ()
    files: tuple[str, ...] = ()


def has_same_offsets(left: Mapping[int, int], right: Mapping[int, int]) -> bool:
    """Return whether two mappings have equal offsets. A missing bucket is at 0."""
    return all(left.get(bucket, 0) == right.get(bucket, 0) for bucket in {*left, *right})


@dataclass(frozen=True, slots=True)
class ManifestReport:
    """Numbers of merged manifests, or with ``dry_run`` of those to merge."""

    removed: int = 0
    added: int = 0
    snapshot_id: int | None = None
    """The new snapshot. None if there was nothing to do, or for a dry run."""


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of one column in the metadata of a file, as Python values. None if unknown.

    ``low`` and ``high`` are bounds, which may be outside the values because texts are truncated. They exclude NaN.
    Dates are in days, timestamps in microseconds.
    """

    low: Any = None
    high: Any = None
    null_count: int | None = None
    value_count: int | None = None
    """Number of values, including nulls and NaN."""
    nan_count: int | None = None


@dataclass(frozen=True, slots=True)
class ScanFile:
    """A data file, or several files that are merged by key."""

    location: str
    size_bytes: int
    num_rows: int
    """Stored rows, including deleted rows and rows whose key is also in another merged file."""
    bucket: int | None
    """None if the file's partition does not determine it."""
    row_group_starts: tuple[int, ...] = ()
    """Byte positions of its row groups, if known."""
    position_deletes: tuple[str, ...] = ()
    own_deletes: tuple[tuple[str, int], ...] = ()
    """Locations and sizes of ``position_deletes`` if each applies to this file alone, or empty."""
    partition: Mapping[str, Any] = field(default_factory=dict)
    """Partition column → the value in all rows."""
    statistics: Mapping[str, ColumnStatistics] = field(default_factory=dict)
    """Known statistics of the requested columns."""
    column_bytes: Mapping[str, int] = field(default_factory=dict)
    merge: MergedFiles | None = None
    """See `LakeSplit.merge`. Statistics and partition cover all these files."""
    field_names: FieldNames = ()
    """See `LakeSplit.field_names`."""
    num_deleted: int | None = 0
    """Number of stored rows that are deleted or replaced. None if only a read can determine it."""
    deleted_positions: OffsetSet | None = None
    """Positions of rows that the read must skip in addition to rows deleted in the snapshot. They may overlap."""

    @property
    def num_live(self) -> int | None:
        """Number of live rows. None if only a read can determine it."""
        if self.num_deleted is None or (self.num_deleted and self.deleted_positions is not None):
            return None
        return (
            self.num_rows
            - self.num_deleted
            - (self.deleted_positions.num_rows if self.deleted_positions is not None else 0)
        )

    @property
    def has_rows_as_stored(self) -> bool:
        """Whether every stored row is live, without deletes or merging."""
        return not self.position_deletes and self.merge is None and self.deleted_positions is None

    def splits(self) -> list[LakeSplit]:
        """Return splits for the package's readers. A large file is split into groups of whole row groups."""
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
    """Return ranges ``[first, last)`` of row groups with their bytes, each of about `SPLIT_BYTES_TARGET`.

    Returns None for a file that is not worth splitting.
    """
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
    """A consistent read of the lake table: its files and their columns."""

    snapshot: LakeSnapshot
    projection: LakeProjection
    files: tuple[ScanFile, ...]
    readable_by_name: frozenset[str]
    """Columns that any engine may read by name from every file, or as null from files without the name.

    Their name and type never changed, and the name was never reused.
    """


@dataclass(frozen=True, slots=True)
class RewrittenRows:
    """Deleted rows whose files with offsets no longer exist."""

    rows: Mapping[int, OffsetSet]
    """Bucket → offsets."""
    foreign: str | None
    """A file without offsets that may hold some of the rows."""


class LogRowReader(Protocol):
    """Reads deleted rows from the log."""

    def read(self, rows: Mapping[int, OffsetSet]) -> tuple[pa.Table, Mapping[int, OffsetSet]]:
        """Return the rows that the log retains, with the columns of the table, and the offsets of all other rows.

        Known rows of dropped partitions are in neither result, because no lake file holds them.
        """


@dataclass(frozen=True, slots=True)
class PendingDeletes:
    file_deletes: tuple[Deletion, ...] = ()
    """Deletes of rows in files without offsets."""
    recorded: int | None = None
    """The recorded lake snapshot. It has rows whose files other engines replaced afterwards."""
    applied_through: int = 0
    """The latest record whose deletes the lake had applied when the round was planned."""
    log: LogRowReader | None = None
    """The log, for rows that the recorded snapshot does not have yet."""

    def read_log_rows(self, moved: RewrittenRows, schema: pa.Schema) -> tuple[pa.Table, RewrittenRows]:
        """Return the rewritten rows that the log retains, and the others."""
        if self.log is None or not moved.rows:
            return schema.empty_table(), moved
        deleted, remaining = self.log.read(moved.rows)
        return deleted, replace(moved, rows=remaining)


NO_PENDING_DELETES: Final = PendingDeletes()


@dataclass(frozen=True, slots=True)
class LakeValidators:
    """The lake is unchanged if the objects ``present`` are unchanged and the objects ``absent`` do not exist."""

    present: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LakeVersion:
    """The object with the latest state of a lake table. Every change adds a successor or removes the object."""

    key: str
    digest: bytes
    """The digest of its content."""
    successor: str
    """The key of the object that the next change adds."""
