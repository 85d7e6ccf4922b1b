"""Scan tasks of a read: log ranges, lake files and inlined rows, serialised as JSON.

A task carries all that its reader needs in addition to its plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.lake.types import LakeProjection, LakeSplit
from streamhouse_spark.log.delete_vectors import rows_from_json, rows_to_json
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.read.commit_ranges import CommitRanges
from streamhouse_spark.schema.table_schema import TableSchema


@dataclass(frozen=True, slots=True)
class LogScanTask:
    split: LogSplit

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    def to_json(self) -> dict[str, Any]:
        return {"kind": "log", "split": self.split.to_json()}


@dataclass(frozen=True, slots=True)
class LakeScanTask:
    split: LakeSplit
    bucket: int | None = None
    """Bucket of all its rows, if known."""
    deleted: Mapping[int, OffsetSet] = field(default_factory=dict)
    """Bucket → offsets of pending deletes: rows to skip that the lake snapshot still has."""
    deleted_positions: OffsetSet | None = None
    """File positions of pending deletes: rows to skip that the lake snapshot still has."""
    place: int | None = None
    """Position of the file among all files of the snapshot, if its rows are to be identified by it."""

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    @property
    def has_pending_deletes(self) -> bool:
        """Whether the task may have pending deletes."""
        return bool(self.deleted) or self.deleted_positions is not None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": "lake", "split": self.split.to_json(), "bucket": self.bucket}
        if self.deleted:
            out["deleted"] = rows_to_json(self.deleted)
        if self.deleted_positions is not None:
            out["gone"] = self.deleted_positions.to_text()
        return out if self.place is None else {**out, "place": self.place}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LakeScanTask:
        deleted = rows_from_json(data.get("deleted", {}))
        deleted_positions = OffsetSet.from_text(data["gone"], where="a plan") if "gone" in data else None
        return cls(LakeSplit.from_json(data["split"]), data["bucket"], deleted, deleted_positions, data.get("place"))


@dataclass(frozen=True, slots=True)
class OffsetsScanTask:
    """A log range that was trimmed from the hot log and is read from the lake."""

    bucket: int
    offsets: OffsetRange
    size_bytes: int
    snapshot_id: int | None = None
    """The lake snapshot to read, whose missing rows are skipped. None for the latest, in which no row may be missing.
    In a scan of changes, the files of the snapshot provide deleted rows as well.
    """
    deleted: OffsetSet | None = None
    """Rows to skip, which the lake may still have."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "offsets",
            "bucket": self.bucket,
            "offsets": [self.offsets.start, self.offsets.end],
            "size_bytes": self.size_bytes,
            **({"snapshot_id": self.snapshot_id} if self.snapshot_id is not None else {}),
            **({"deleted": self.deleted.to_text()} if self.deleted is not None else {}),
        }


@dataclass(frozen=True, slots=True)
class ArchiveScanTask:
    """Changes of a bucket to read from a page of the change archive, because the hot log may no longer have them."""

    bucket: int
    offsets: OffsetRange
    page: str
    """UUID of the page."""
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "archive",
            "bucket": self.bucket,
            "offsets": [self.offsets.start, self.offsets.end],
            "page": self.page,
            "size_bytes": self.size_bytes,
        }


@dataclass(frozen=True, slots=True)
class KeyedScanTask:
    """Rows of a primary-key table that must be merged with its latest changes.

    With ``lake`` or ``base``, the task reads the rows of that lake split or key-value snapshot whose keys have no
    change. Without either, it reads the rows that result from the changes of the bucket.
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

    def to_json(self) -> dict[str, Any]:
        lake = self.lake.to_json() if self.lake else None
        base = self.base.to_json() if self.base else None
        return {"kind": "keyed", "bucket": self.bucket, "lake": lake, "size_bytes": self.size_bytes, "base": base}


@dataclass(frozen=True, slots=True)
class StartScanTask:
    """Rows of a key-value snapshot that start a changelog stream."""

    split: LogSplit
    offset: int
    """The bucket's offset up to which the snapshot holds the rows."""

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes

    def to_json(self) -> dict[str, Any]:
        return {"kind": "start", "split": self.split.to_json(), "offset": self.offset}


@dataclass(frozen=True, slots=True)
class BinlogScanTask:
    """All changes of a bucket for ``$binlog``, as one task because an update is two rows of the log."""

    split: LogSplit
    schema: TableSchema
    """All columns of the table."""
    archived: tuple[ArchiveScanTask, ...] = ()
    """The changes before those of the hot log."""

    @property
    def size_bytes(self) -> int:
        return self.split.size_bytes + sum(task.size_bytes for task in self.archived)

    def to_json(self) -> dict[str, Any]:
        archived = [task.to_json() for task in self.archived]
        return {
            "kind": "binlog",
            "split": self.split.to_json(),
            "schema": self.schema.to_json(),
            "archived": archived,
        }


@dataclass(frozen=True, slots=True)
class FileRowsScanTask:
    """A data file of a lake snapshot whose rows are identified by position, because they have no offsets."""

    name: str
    """Its name as recorded in deletions, see `StorageFiles.name_of`."""
    snapshot_id: int
    size_bytes: int

    @property
    def bucket(self) -> None:
        """Its rows may be of any bucket."""
        return

    def to_json(self) -> dict[str, Any]:
        return {"kind": "file", "name": self.name, "snapshot_id": self.snapshot_id, "size_bytes": self.size_bytes}


@dataclass(frozen=True, slots=True)
class VersionRowsScanTask:
    """All rows that a bucket of a primary-key table had at a version, numbered in read order."""

    bucket: int | None
    """None for lake files of unknown bucket."""
    plan: ScanPlan
    """The scan of these rows, with all columns of the table."""
    num_rows: int
    """Upper bound of the number of rows."""

    @property
    def size_bytes(self) -> int:
        return sum(task.size_bytes for task in self.plan.pieces)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "version", "bucket": self.bucket, "plan": self.plan.to_json(), "num_rows": self.num_rows}


@dataclass(frozen=True, slots=True)
class ChangesScanTask:
    """Rows of a bucket as changes, each with its commit. Rows at offsets of no commit are skipped.

    For a lake file and for a version, positions take the place of offsets.
    """

    rows: LogScanTask | OffsetsScanTask | ArchiveScanTask | FileRowsScanTask | VersionRowsScanTask
    commits: CommitRanges
    is_deleted: bool = False
    """Whether the commits deleted the rows, in a log table; else they appended them."""
    key: tuple[str, ...] = ()
    """The primary key, if a commit may have several changes of a key, which are reduced to their net change."""
    is_changelog: bool = False
    """Whether change types are named as in ``$changelog``; else as in Spark's ``CHANGES``."""

    @property
    def bucket(self) -> int | None:
        return self.rows.split.bucket if isinstance(self.rows, LogScanTask) else self.rows.bucket

    @property
    def size_bytes(self) -> int:
        return self.rows.size_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "changes",
            "rows": self.rows.to_json(),
            "commits": self.commits.to_json(),
            "is_deleted": self.is_deleted,
            "key": list(self.key),
            "is_changelog": self.is_changelog,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChangesScanTask:
        rows = task_from_json(data["rows"])
        assert isinstance(
            rows, LogScanTask | OffsetsScanTask | ArchiveScanTask | FileRowsScanTask | VersionRowsScanTask
        )
        commits = CommitRanges.from_json(data["commits"])
        return cls(rows, commits, data["is_deleted"], tuple(data["key"]), data["is_changelog"])


@dataclass(frozen=True, slots=True)
class ViewScanTask:
    """A whole system or metadata table."""

    suffix: str
    size_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"kind": "view", "suffix": self.suffix}


ScanTask = (
    LogScanTask
    | LakeScanTask
    | OffsetsScanTask
    | ArchiveScanTask
    | KeyedScanTask
    | StartScanTask
    | BinlogScanTask
    | FileRowsScanTask
    | VersionRowsScanTask
    | ChangesScanTask
    | ViewScanTask
)


def task_from_json(data: Mapping[str, Any]) -> ScanTask:
    match data["kind"]:
        case "log":
            return LogScanTask(LogSplit.from_json(data["split"]))
        case "lake":
            return LakeScanTask.from_json(data)
        case "offsets":
            offsets = OffsetRange(*data["offsets"])
            deleted = OffsetSet.from_text(data["deleted"], where="a plan") if "deleted" in data else None
            return OffsetsScanTask(data["bucket"], offsets, data["size_bytes"], data.get("snapshot_id"), deleted)
        case "keyed":
            lake = LakeSplit.from_json(data["lake"]) if data["lake"] else None
            base = LogSplit.from_json(data["base"]) if data["base"] else None
            return KeyedScanTask(data["bucket"], lake, data["size_bytes"], base)
        case "start":
            return StartScanTask(LogSplit.from_json(data["split"]), data["offset"])
        case "binlog":
            archived = tuple(_archive_task_from_json(task) for task in data["archived"])
            return BinlogScanTask(LogSplit.from_json(data["split"]), TableSchema.from_json(data["schema"]), archived)
        case "archive":
            return _archive_task_from_json(data)
        case "file":
            return FileRowsScanTask(data["name"], data["snapshot_id"], data["size_bytes"])
        case "version":
            return VersionRowsScanTask(data["bucket"], ScanPlan.from_json(data["plan"]), data["num_rows"])
        case "changes":
            return ChangesScanTask.from_json(data)
        case _:
            return ViewScanTask(data["suffix"])


def _archive_task_from_json(data: Mapping[str, Any]) -> ArchiveScanTask:
    return ArchiveScanTask(data["bucket"], OffsetRange(*data["offsets"]), data["page"], data["size_bytes"])


def count_segments(plan: ScanPlan) -> int:
    """Count the log and key-value snapshot segments that the plan reads."""
    return sum(len(split.segments) for split in log_splits(plan))


def log_splits(plan: ScanPlan) -> Iterator[LogSplit]:
    """Return the splits of the log and of key-value snapshots that the plan reads."""
    yield from plan.keyed.tails if plan.keyed is not None else ()
    for task in plan.pieces:
        rows = task.rows if isinstance(task, ChangesScanTask) else task
        if isinstance(rows, VersionRowsScanTask):
            yield from log_splits(rows.plan)
        elif isinstance(rows, LogScanTask | StartScanTask | BinlogScanTask):
            yield rows.split
        elif isinstance(rows, KeyedScanTask) and rows.base is not None:
            yield rows.base


@dataclass(frozen=True, slots=True)
class MergeColumns:
    """Columns and changes for reading a primary-key table, in addition to the requested columns."""

    schema: TableSchema
    """Columns to read from lake files and changes: the requested ones and the primary key."""
    key: tuple[str, ...]
    tails: tuple[LogSplit, ...]
    """The changes that the lake snapshot does not hold, one split per bucket with changes."""
    history: str | None = None
    """Attempt of the latest record after these changes, because a restored table may hold other rows at the same
    offsets. None if unknown.
    """

    def for_tasks(self, tasks: Sequence[ScanTask]) -> MergeColumns:
        """Return these columns with only the changes that the tasks need."""
        buckets = {task.bucket for task in tasks if isinstance(task, KeyedScanTask)}
        needed = tuple(tail for tail in self.tails if None in buckets or tail.bucket in buckets)
        return replace(self, tails=needed)

    def to_json(self) -> dict[str, Any]:
        tails = [tail.to_json() for tail in self.tails]
        return {"schema": self.schema.to_json(), "key": list(self.key), "tails": tails, "history": self.history}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MergeColumns:
        tails = tuple(LogSplit.from_json(tail) for tail in data["tails"])
        return cls(TableSchema.from_json(data["schema"]), tuple(data["key"]), tails, data["history"])


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """All scan tasks of one read of one table state, with their common properties."""

    table: str
    table_uuid: str
    schema: TableSchema
    """The table columns to read, in the order of the result."""
    pieces: tuple[ScanTask, ...]
    projection: LakeProjection | None = None
    """The field ids of these columns, or of those of ``keyed``, in lake files. Set if there are lake tasks."""
    keyed: MergeColumns | None = None
    """Set for the rows of a primary-key table."""
    binlog_start: int | None = None
    """For ``$binlog``: the tasks belong to one bucket and hold its changes from this offset on, perhaps one row
    earlier.
    """

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "uuid": self.table_uuid,
            "schema": self.schema.to_json(),
            "pieces": [task.to_json() for task in self.pieces],
            "projection": self.projection.to_json() if self.projection else None,
            "keyed": self.keyed.to_json() if self.keyed else None,
            "binlog_start": self.binlog_start,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ScanPlan:
        projection = data["projection"]
        return cls(
            data["table"],
            data["uuid"],
            TableSchema.from_json(data["schema"]),
            tuple(task_from_json(task) for task in data["pieces"]),
            LakeProjection.from_json(projection) if projection is not None else None,
            MergeColumns.from_json(data["keyed"]) if data["keyed"] is not None else None,
            data["binlog_start"],
        )

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
        return replace(self, pieces=tuple(tasks), keyed=keyed)
