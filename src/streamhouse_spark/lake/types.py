"""The values of a lake table: snapshots, files, splits, plans, reports. Those of tasks serialize as JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.json_codec import Portable
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.schema.table_schema import TableSchema

if TYPE_CHECKING:
    from streamhouse_spark.log.deletion_vectors import Deletion
    from streamhouse_spark.log.history_index import HistoryPoint


COMMIT_USER = "__streamhouse_lake_tiering"
"""``commit-user`` of the package's snapshots, and name of the tag that keeps the latest of them from expiring."""
NEVER_TRUNCATED: Mapping[int, int] = MappingProxyType({})
Filter: TypeAlias = "pc.Expression | None"
FieldNames = tuple[tuple[int, str], ...]
"""Field ids and names of columns, or of nested fields with their paths (`schema.nested_fields.join_path`)."""
Claim = Callable[[Collection[int], Collection[int]], None]
"""Called before an expiry, with the snapshots to expire and all existing ones. Ensures that no tag names the former
afterwards, or raises `CommitConflictError` if one does."""
SPLIT_BYTES_TARGET = 128 << 20


@dataclass(frozen=True, slots=True)
class DeletedRows(Portable):
    """A data file with its deleted rows, named by a position delete file.

    In a format without such files: the data file to remove, because other files hold its remaining rows.
    """

    location: str
    """Location of the data file."""
    replaces: tuple[str, ...] = ()
    """Position delete files that the same snapshot removes, because this one includes their positions."""

    num_duplicates: int = 0
    """Number of newly deleted rows next to another row of their key: duplicates, which only other engines add."""
    num_dropped: int = 0
    """Number of newly deleted rows of a log table."""
    num_moved: int = 0
    """Number of rows moved to other files, if the data file is removed."""
    has_offsets: bool = True
    """Whether the rows of the data file have offsets, if it is removed."""


@dataclass(frozen=True, slots=True)
class LiveFile(Portable):
    """A data file of a snapshot with its position delete files. Serializable.

    ``partition`` and the bounds are in the lake's binary form. Bounds cover the key columns by field id, as far as
    known.
    """

    location: str
    size_bytes: int
    num_rows: int
    """Rows of the file, deleted ones included."""
    spec_id: int
    partition: tuple[bytes | None, ...]
    own_deletes: tuple[str, ...] = ()
    """Files that name positions of this file alone."""
    shared_deletes: tuple[str, ...] = ()
    """Files that may name positions of other files too; only other engines write them."""
    lower: Mapping[int, bytes] = field(default_factory=dict)
    upper: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def deletes(self) -> tuple[str, ...]:
        return (*self.own_deletes, *self.shared_deletes)


@dataclass(frozen=True, slots=True)
class KeyRange(Portable):
    """The key range of a file that has each key once, in key order."""

    lowest: tuple[bytes, ...]
    """The first key: its columns in the lake's binary form."""
    highest: tuple[bytes, ...]
    """The last key."""
    lower: tuple[bytes, ...]
    """Least value of each key column."""
    upper: tuple[bytes, ...]
    """Greatest value of each key column."""
    sequences: OffsetRange
    """Range of the rows' sequence numbers: the largest number of a key wins."""
    num_deleted: int
    """Rows that delete their key."""
    level: int
    """0 for a file whose keys may be in other files too."""


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """A snapshot of the lake table. It holds exactly the rows ``[starts[bucket], offsets[bucket])`` of each bucket.

    ``starts`` are the offsets of the last truncation that the lake knows of, empty without one. Deleted rows and those
    of dropped partitions are missing: ``dropped_rows`` counts them, ``dropped_without_offsets`` those of dropped
    partitions without offsets.
    """

    id: int
    offsets: Mapping[int, int]
    timestamp_ms: int
    starts: Mapping[int, int] = field(default_factory=dict)
    dropped_rows: int = 0
    history: HistoryPoint | None = field(default=None, compare=False)
    """The log's latest record with rows at the time of tiering; None in older snapshots."""
    dropped_without_offsets: int = 0

    @property
    def applied_through(self) -> int:
        """The latest record whose deletions the snapshot has applied."""
        return self.history.number if self.history is not None else 0


@dataclass(frozen=True, slots=True)
class LakeFile(Portable):
    """A data file or position delete file that was written, whether committed yet or not. Or a data file to remove; see
    `DeletedRows`.

    ``offsets`` are those of its rows; with a primary key, those of the underlying changes. ``partition`` holds the
    partition values in the lake's binary form, None for null; ``columns`` the statistics by field id, with bounds in
    the lake's binary form.
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
    """The key range that readers need in a lake that merges by key."""

    @property
    def num_left(self) -> int:
        """Net number of rows that the file adds."""
        if self.deletes is not None:
            return -self.deletes.num_moved
        return self.num_rows - (self.keys.num_deleted if self.keys is not None else 0)


@dataclass(frozen=True, slots=True)
class LakeSplit(Portable):
    """A part of one data file: its row groups ``[first, last)``, or all if ``row_groups`` is None."""

    location: str
    size_bytes: int
    """Bytes of this part."""
    num_rows: int
    """Rows of this part; an estimate if the file is read in parts or has deleted rows."""
    row_groups: tuple[int, int] | None = None
    position_deletes: tuple[str, ...] = ()
    """Position delete files."""
    bucket: int | None = None
    """None if the file's partition does not determine it."""
    merge: MergedFiles | None = None
    """Files read as one, because they share keys or have deletes; ``location`` is that of the first.

    Bytes are the sum, and rows an upper bound.
    """
    field_names: FieldNames = ()
    """Names of columns and nested fields in a file without field ids that was written under other names."""

    @property
    def is_plain(self) -> bool:
        """Whether it is a whole file without deletes or casts, for an engine's own Parquet reader."""
        return self.row_groups is None and not self.position_deletes and self.merge is None


@dataclass(frozen=True, slots=True)
class LakeProjection(Portable):
    """The columns to read and their identity in files: by field id, or by name in files without ids.

    ``schema`` gives names, order and types of the result. ``field_ids[i]`` is None for a column that the lake table
    does not have, which reads as null. ``lake_names[i]`` is the column's name in the lake; None if it had several, so
    that files without ids cannot be read. ``inner[i]`` has the nested field ids of a column that changed inside, None
    for a field missing from the lake; it is None for other columns, whose nested fields match by name.
    """

    schema: TableSchema
    field_ids: tuple[int | None, ...]
    lake_names: tuple[str | None, ...]
    inner: tuple[tuple[int | None, ...] | None, ...] = ()
    """Empty if it is None for all columns."""
    first_names: tuple[FieldNames, ...] = ()
    """For columns in ``inner`` the nested names before the first change inside, for own files without the ids."""

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
class MergedFiles(Portable):
    """Data files of one bucket and partition, each sorted by primary key with unique keys."""

    files: tuple[MergedFile, ...]
    by: LakeProjection
    """The key columns in order, then the sequence number that identifies the latest row of a key, then the change type
    (see `streamhouse_spark.keys.change_type.ChangeType`)."""


@dataclass(frozen=True, slots=True)
class LakePlan:
    """One consistent read of the lake table. ``snapshot`` is None for a table without snapshots, which has no rows."""

    snapshot: LakeSnapshot | None
    projection: LakeProjection
    splits: tuple[LakeSplit, ...]

    @property
    def num_rows(self) -> int:
        return sum(split.num_rows for split in self.splits)


@dataclass(frozen=True, slots=True)
class WriteContext(Portable):
    """The context of a task that writes data files of the table. ``lake`` is the format's own part, as JSON."""

    table_uuid: str
    schema: TableSchema
    """The table's schema, which the log's batches have."""
    target_file_bytes: int
    lake: Mapping[str, Any]
    primary_key: tuple[str, ...] = ()
    """The key columns; empty for a log table."""

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
    """With a primary key, the number of removed duplicates: rows beyond one per key, added by another engine."""
    purged_rows: int = 0
    """Deleted rows, and in a Paimon lake older rows of a key, that the new files no longer store."""


@dataclass(frozen=True, slots=True)
class LakeDropReport:
    files: int = 0
    """Dropped data files."""
    rows: int = 0
    """Rows of the dropped files."""
    kept_rows: int = 0
    """Rows of these files that were appended later and rewritten."""
    snapshot: LakeSnapshot | None = None
    """The snapshot without them; None if there was nothing to drop, or for a dry run."""


@dataclass(frozen=True, slots=True)
class ExpiryRules:
    """A rule of expiry: the snapshots that stay."""

    last: int
    """Number of latest snapshots that stay."""
    ms: int
    """Age below which all stay."""


@dataclass(frozen=True, slots=True)
class ExpireReport:
    snapshots: tuple[int, ...] = ()
    files: tuple[str, ...] = ()


def same_offsets(left: Mapping[int, int], right: Mapping[int, int]) -> bool:
    """Return whether two mappings have the same offsets. A missing bucket is at 0."""
    return all(left.get(bucket, 0) == right.get(bucket, 0) for bucket in {*left, *right})


@dataclass(frozen=True, slots=True)
class ManifestReport:
    """Merged manifests; with ``dry_run``, those that would be merged."""

    removed: int = 0
    added: int = 0
    snapshot_id: int | None = None
    """The new snapshot; None if there was nothing to do, or for a dry run."""


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


@dataclass(frozen=True, slots=True)
class RewrittenRows:
    """Deleted rows that are in no file with offsets anymore."""

    rows: Mapping[int, OffsetSet]
    """Bucket → offsets."""
    foreign: str | None
    """A file without offsets that may hold some of them."""


class LogRowReader(Protocol):
    """The log as a source of deleted rows."""

    def read(self, rows: Mapping[int, OffsetSet]) -> tuple[pa.Table, Mapping[int, OffsetSet]]:
        """Return the rows that the log still has, in the table's columns, and the offsets of the rest.

        Rows of dropped partitions are in neither, as far as known: no file of the lake holds them.
        """


@dataclass(frozen=True, slots=True)
class PendingDeletes:
    file_deletes: tuple[Deletion, ...] = ()
    """Deletions of rows in files without offsets."""
    recorded: int | None = None
    """The recorded lake snapshot, which holds rows whose files other engines have replaced since."""
    applied_through: int = 0
    """The latest record whose deletions the lake had applied when the round was planned."""
    log: LogRowReader | None = None
    """The log, for rows that the recorded snapshot does not have yet."""

    def read_log_rows(self, moved: RewrittenRows, schema: pa.Schema) -> tuple[pa.Table, RewrittenRows]:
        """Return the moved rows that the log still has, and the rest."""
        if self.log is None or not moved.rows:
            return schema.empty_table(), moved
        deleted, left = self.log.read(moved.rows)
        return deleted, replace(moved, rows=left)


NO_PENDING_DELETES: Final = PendingDeletes()


@dataclass(frozen=True, slots=True)
class LakeValidators:
    """The lake is unchanged while the objects ``there`` are unchanged and those in ``absent`` do not exist."""

    there: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LakeVersion:
    """The object that holds the latest state of a lake table. Every change adds a successor or removes it."""

    key: str
    content: bytes
    """A digest of its content."""
    following: str
    """The key of the object that the next change adds."""
