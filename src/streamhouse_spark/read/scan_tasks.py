"""Scan plans and their tasks: log ranges, lake files, and rows of other sources. They are sent to readers as JSON.

Only processes of the same version exchange plans, so the JSON has no compatible format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from streamhouse_spark.core.json_codec import JsonSerializable
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.lake.types import LakeProjection, LakeSplit
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.read.commit_ranges import CommitRanges
from streamhouse_spark.schema.table_schema import TableSchema


@dataclass(frozen=True, slots=True)
class LogScanTask(JsonSerializable):
    split: LogSplit

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes


@dataclass(frozen=True, slots=True)
class LakeScanTask(JsonSerializable):
    split: LakeSplit
    bucket: int | None = None
    """Bucket of all rows, if known."""
    deleted: Mapping[int, OffsetSet] = field(default_factory=dict)
    """Bucket → offsets of pending deletes, which the reader skips."""
    deleted_positions: OffsetSet | None = None
    """Positions in the file of pending deletes, which the reader skips."""
    place: int | None = None
    """Position of the file among all files of the snapshot, if row ids are read."""

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    @property
    def has_pending_deletes(self) -> bool:
        """Whether the file may contain pending deletes."""
        return bool(self.deleted) or self.deleted_positions is not None


@dataclass(frozen=True, slots=True)
class OffsetsScanTask(JsonSerializable):
    """A range of offsets that was trimmed from the hot log and is read from the lake."""

    bucket: int
    offsets: OffsetRange
    size_bytes: int
    snapshot_id: int | None = None
    """The lake snapshot to read. Rows that are missing from it are skipped. None for the latest snapshot, from which no
    row may be missing. A scan of changes also reads the deleted rows in the files of the snapshot.
    """
    deleted: OffsetSet | None = None
    """Rows to skip, which the lake may contain."""


@dataclass(frozen=True, slots=True)
class ArchiveScanTask(JsonSerializable):
    """Changes of a bucket in a page of the change archive, because they may have been trimmed from the hot log."""

    bucket: int
    offsets: OffsetRange
    page: str
    """UUID of the page."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KeyedScanTask(JsonSerializable):
    """Rows of a primary-key table that must be merged with its latest changes.

    With ``lake`` or ``base``, the task reads the rows of the lake split or key-value snapshot whose keys have no
    change. Otherwise it reads the rows that result from the changes of the bucket.
    """

    bucket: int | None
    """None for a lake file of unknown bucket, which is merged with the changes of all buckets."""
    lake: LakeSplit | None
    size_bytes: int
    base: LogSplit | None = None

    @property
    def is_of_changes(self) -> bool:
        """Whether the task reads the merged changes instead of older rows."""
        return self.lake is None and self.base is None


@dataclass(frozen=True, slots=True)
class BootstrapScanTask(JsonSerializable):
    """Rows of a key-value snapshot that start a changelog stream."""

    split: LogSplit
    offset: int
    """The end offset of the snapshot."""

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes


@dataclass(frozen=True, slots=True)
class BinlogScanTask(JsonSerializable):
    """All changes of a bucket for ``$binlog``. Not split, because an update is two rows of the log."""

    split: LogSplit
    schema: TableSchema
    """All columns of the table."""
    archived: tuple[ArchiveScanTask, ...] = ()
    """The changes before those of the hot log."""

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes + sum(task.size_bytes for task in self.archived)


@dataclass(frozen=True, slots=True)
class FileRowsScanTask(JsonSerializable):
    """A data file of a lake snapshot whose rows are identified by position, because they have no offsets."""

    name: str
    """The name of the file in deletions, see `StorageFiles.name_of`."""
    snapshot_id: int
    size_bytes: int

    @property
    def bucket(self) -> None:
        """None, because its rows may be of any bucket."""
        return


@dataclass(frozen=True, slots=True)
class VersionRowsScanTask(JsonSerializable):
    """All rows that a bucket of a primary-key table had at a version, numbered in read order."""

    bucket: int | None
    """None for lake files of unknown bucket."""
    plan: ScanPlan
    """The scan of the rows, with all columns of the table."""
    num_rows: int
    """Upper bound of the number of rows."""

    @property
    def size_bytes(self) -> int:
        return sum(task.size_bytes for task in self.plan.tasks)


@dataclass(frozen=True, slots=True)
class ChangesScanTask(JsonSerializable):
    """Rows of a bucket as changes, each with its commit. Rows outside of `commits` are skipped.

    For `FileRowsScanTask` and `VersionRowsScanTask`, `commits` has positions instead of offsets.
    """

    rows: LogScanTask | OffsetsScanTask | ArchiveScanTask | FileRowsScanTask | VersionRowsScanTask
    commits: CommitRanges
    is_deleted: bool = False
    """Whether the commits of a log table deleted the rows, instead of appending them."""
    key: tuple[str, ...] = ()
    """The primary key, if a commit may have several changes of a key. They are reduced to their net change."""
    is_changelog: bool = False
    """Whether change types are named as in ``$changelog``, instead of Spark's ``CHANGES``."""

    @property
    def bucket(self) -> int | None:
        return self.rows.split.bucket if isinstance(self.rows, LogScanTask) else self.rows.bucket

    @property
    def size_bytes(self) -> int:
        return self.rows.size_bytes


@dataclass(frozen=True, slots=True)
class ViewScanTask(JsonSerializable):
    """A whole system or metadata table."""

    suffix: str
    size_bytes: int = 0


ScanTask = (
    LogScanTask
    | LakeScanTask
    | OffsetsScanTask
    | ArchiveScanTask
    | KeyedScanTask
    | BootstrapScanTask
    | BinlogScanTask
    | FileRowsScanTask
    | VersionRowsScanTask
    | ChangesScanTask
    | ViewScanTask
)


def count_segments(plan: ScanPlan) -> int:
    """Count the log and key-value snapshot segments that the plan reads."""
    return sum(len(split.segments) for split in log_splits(plan))


def log_splits(plan: ScanPlan) -> Iterator[LogSplit]:
    """Return the splits of the log and of key-value snapshots that the plan reads."""
    yield from plan.keyed.tails if plan.keyed is not None else ()
    for task in plan.tasks:
        rows = task.rows if isinstance(task, ChangesScanTask) else task
        if isinstance(rows, VersionRowsScanTask):
            yield from log_splits(rows.plan)
        elif isinstance(rows, LogScanTask | BootstrapScanTask | BinlogScanTask):
            yield rows.split
        elif isinstance(rows, KeyedScanTask) and rows.base is not None:
            yield rows.base


@dataclass(frozen=True, slots=True)
class MergeColumns(JsonSerializable):
    """The columns and changes for merging the rows of a primary-key table."""

    schema: TableSchema
    """The columns to read from lake files and changes: the requested columns and the primary key."""
    key: tuple[str, ...]
    tails: tuple[LogSplit, ...]
    """The changes that are missing from the lake snapshot, one split per bucket with changes."""
    history: str | None = None
    """Attempt of the latest record, or None if unknown. A restored table may have other rows at the same offsets."""

    def for_tasks(self, tasks: Sequence[ScanTask]) -> MergeColumns:
        """Return a copy with only the changes that the tasks need."""
        buckets = {task.bucket for task in tasks if isinstance(task, KeyedScanTask)}
        needed = tuple(tail for tail in self.tails if None in buckets or tail.bucket in buckets)
        return replace(self, tails=needed)


@dataclass(frozen=True, slots=True)
class ScanPlan(JsonSerializable):
    """All scan tasks of one read of one table state, with their common properties."""

    table: str
    table_uuid: str
    schema: TableSchema
    """The table columns to read, in the order of the result."""
    tasks: tuple[ScanTask, ...]
    projection: LakeProjection | None = None
    """The field ids in lake files of `schema`, or of ``keyed.schema``. Set if there are lake tasks."""
    keyed: MergeColumns | None = None
    """Set for the rows of a primary-key table."""
    binlog_start: int | None = None
    """The first offset of a plan for ``$binlog``, whose tasks belong to one bucket. They may start one row earlier."""

    def of_columns(self, schema: TableSchema) -> ScanPlan:
        """Return the plan of a read of a subset of the columns."""
        keyed, names = self.keyed, {*schema.names}
        if keyed is not None:
            names |= {*keyed.key}
            keyed = replace(keyed, schema=TableSchema(tuple(c for c in keyed.schema.columns if c.name in names)))
        projection = self.projection.of_columns(names) if self.projection is not None else None
        return replace(self, schema=schema, projection=projection, keyed=keyed)

    def with_tasks(self, tasks: Sequence[ScanTask]) -> ScanPlan:
        keyed = self.keyed.for_tasks(tasks) if self.keyed else None
        return replace(self, tasks=tuple(tasks), keyed=keyed)
