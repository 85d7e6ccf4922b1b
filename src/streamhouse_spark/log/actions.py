"""The actions of a commit record, as values. `log.state` defines the effect of each on a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from typing import Any, Final

from streamhouse_spark.config.table_properties import BRANCH
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.errors import FormatVersionError
from streamhouse_spark.expressions.check_constraints import has_constraints
from streamhouse_spark.expressions.generated_columns import has_generated_columns
from streamhouse_spark.log.deletion_vectors import DeleteRows, PartitionDropRows
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.segment import Segment, action_kind
from streamhouse_spark.schema.partitioning import SetPartitioning
from streamhouse_spark.schema.table_schema import TableSchema


@dataclass(frozen=True, slots=True)
class ArchivePage:
    """All changes of the commits after those of the previous page, up to ``last_commit``."""

    uuid: str
    last_commit: int
    ends: Mapping[int, int]
    """Bucket → offset after its last change in the page, for buckets with changes."""
    num_rows: int
    memory_bytes: int
    """Estimated bytes of the rows in memory."""
    first_ms: int
    last_ms: int
    """The earliest and the latest commit time of the changes."""
    last_us: int
    """The display time of the last commit with changes."""
    level: int = 0
    """Number of merges that led to this page."""

    def to_json(self) -> dict[str, Any]:
        return {
            "uuid": self.uuid,
            "commit": self.last_commit,
            "ends": offsets_to_json(self.ends),
            "rows": self.num_rows,
            "bytes": self.memory_bytes,
            "time": [self.first_ms, self.last_ms, self.last_us],
            "level": self.level,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ArchivePage:
        ends = offsets_from_json(data["ends"])
        first_ms, last_ms, last_us = data["time"]
        counts = data["rows"], data["bytes"]
        return cls(data["uuid"], data["commit"], ends, *counts, first_ms, last_ms, last_us, data["level"])


@dataclass(frozen=True, slots=True)
class Archive:
    """The change archive of a primary-key table: pages of changes that outlive the hot log, the oldest first.

    A page is an object with all changes of some consecutive commits (`log.archive`). The state has only the extent of
    each page. Pages are contiguous, and reach at least to the start of the hot log.
    """

    pages: tuple[ArchivePage, ...] = ()
    starts: Mapping[int, int] = field(default_factory=dict)
    """Bucket → offset of the first change in the pages, for all buckets."""
    first_commit: int = 0
    """The first commit after which the pages have the commit of each change."""

    def __bool__(self) -> bool:
        return bool(self.pages)

    @property
    def last_commit(self) -> int:
        """The last commit whose changes are archived; 0 for none."""
        return self.pages[-1].last_commit if self.pages else 0

    def end(self, bucket: int) -> int:
        """Return the offset after the bucket's last change in the pages."""
        ends = (page.ends[bucket] for page in reversed(self.pages) if bucket in page.ends)
        return next(ends, self.starts.get(bucket, 0))

    def is_contiguous_with(self, starts: Mapping[int, int]) -> bool:
        """Return whether there is no gap between the pages and logs that start at these offsets."""
        return bool(self.pages) and all(self.end(bucket) >= start for bucket, start in starts.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "pages": [page.to_json() for page in self.pages],
            "starts": offsets_to_json(self.starts),
            "first_commit": self.first_commit,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Archive:
        pages = tuple(ArchivePage.from_json(page) for page in data["pages"])
        return cls(pages, offsets_from_json(data["starts"]), data["first_commit"])


NO_ARCHIVE = Archive()


@dataclass(frozen=True, slots=True)
class SetArchive:
    """Replaces the archive. ``removed_keys`` are the objects that only removed pages named."""

    archive: Archive
    removed_keys: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"type": "archive", **self.archive.to_json(), "gone": list(self.removed_keys)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SetArchive:
        return cls(Archive.from_json(data), tuple(data["gone"]))


def pages_between(archive: Archive, bucket: int) -> Iterable[tuple[ArchivePage, int, int]]:
    """Yield the pages with changes of a bucket, each with the half-open range of the changes' offsets."""
    start = archive.starts.get(bucket, 0)
    for page in archive.pages:
        end = page.ends.get(bucket, start)
        if end > start:
            yield page, start, end
            start = end


COPY: Final = "copy"
"""The kind of a `Create` with ``former_uuids``, which older versions of this package reject."""


@dataclass(frozen=True, slots=True)
class Create:
    """Creates the table. The first action of record 1, and of no other record."""

    name: str
    schema: TableSchema
    partition_by: tuple[str, ...]
    num_buckets: int
    properties: Mapping[str, str]
    lake_location: str
    former_uuids: tuple[str, ...] = ()
    """Uuids of the tables that this one is a copy of, the oldest first."""


@dataclass(frozen=True, slots=True)
class Append:
    """Adds segments at the end of their buckets, all of them or none.

    ``inline_rows[i]`` are the bytes of ``segments[i]`` that the record holds; set only while the record is built.
    """

    segments: tuple[Segment, ...]
    inline_rows: tuple[bytes | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Replace:
    """Replaces all segments within their bucket's ``[start, end)`` by ``segments`` with the same rows and offsets."""

    bucket: int
    start: int
    end: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Trim:
    """Advances the first offset of buckets."""

    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Empties the table: rows below ``offsets``, the bucket ends before this action, no longer belong to it.

    If all rows are those of an adopted lake, which have no offsets, ``offsets`` are one more than the bucket ends.
    Later rows continue at ``offsets``. Segments are removed, and lake snapshots with rows below ``offsets`` no longer
    count.
    """

    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TieredSnapshot:
    """A lake snapshot of the rows at offsets ``[starts[bucket], offsets[bucket])`` of each bucket.

    ``starts`` are the first offsets after the last truncation that is applied to the snapshot; empty if there was none.
    ``dropped_rows`` counts the rows that are missing from the snapshot, because they were deleted or their partitions
    were dropped.
    """

    snapshot_id: int
    offsets: Mapping[int, int]
    time_ms: int = 0
    starts: Mapping[int, int] = field(default_factory=dict)
    dropped_rows: int = 0
    applied_through: int = 0
    """Number of the last record whose deletions are applied to the snapshot; 0 if no record deleted rows."""
    keeps_files: bool = False
    """Whether all files of other engines in the previously recorded snapshot are in this snapshot, unchanged."""
    dropped_without_offsets: int = 0
    """Number of missing rows without offsets, which were dropped with a partition."""

    @property
    def dropped_own(self) -> int:
        """Number of missing rows that may have offsets."""
        return self.dropped_rows - self.dropped_without_offsets


@dataclass(frozen=True, slots=True)
class ResetLake:
    """Replaces the lake table by an empty one at ``lake_location``. Snapshots of the former lake no longer count.

    Rows of buckets below ``starts`` are lost, as by a truncation at these offsets.
    """

    lake_location: str
    starts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetProperties:
    changed: Mapping[str, str]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SetSchema:
    schema_id: int
    schema: TableSchema


@dataclass(frozen=True, slots=True)
class Rename:
    """Gives the table this name, if the name's pointer refers to the table.

    Repeating the current name aborts every rename in progress.
    """

    name: str


@dataclass(frozen=True, slots=True)
class MarkOrphans:
    """Condemns orphan files. They must not be committed, and are deleted after the grace period."""

    keys: tuple[str, ...]
    expiring: frozenset[int] | None = None
    """All lake snapshots that are being expired, which tags must not name; None leaves them unchanged."""


@dataclass(frozen=True, slots=True)
class ConfirmDeleted:
    """Records that condemned files are deleted. The state drops their entries."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Drops the table. Only clean-up records, a `Rename`, and `Undrop` or `Tombstone` may follow."""

    successor: str | None = None
    """Uuid of the table that replaces this table under its name."""


@dataclass(frozen=True, slots=True)
class Undrop:
    """Restores a dropped table under this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Ends the grace period of a dropped table: it cannot be undropped, and its files are deleted."""


@dataclass(frozen=True, slots=True)
class ForgetTransactions:
    app_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExpireTransactions:
    """Compacts the entries of writers that have not written for ``table.transactions.ttl`` to their last version.

    Repeated writes are detected before and after it; see `log.transactions`.
    """

    app_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommitConsumerOffset:
    """Records that a named consumer has processed all rows below ``offsets``. None removes the consumer."""

    consumer_id: str
    offsets: Mapping[int, int] | None
    history: HistoryPoint | None = None
    """The last record with rows when the offsets were taken; None in older records."""


@dataclass(frozen=True, slots=True)
class KvSnapshot:
    """The rows of a bucket of a primary-key table after exactly the changes ``[begins, offset)``.

    ``segments`` hold the rows in key order, as table columns without the change type; their offsets are row numbers.
    The snapshot replaces the bucket's previous snapshot.
    """

    bucket: int
    begins: int
    """Offset at which the bucket was last truncated."""
    offset: int
    segments: tuple[Segment, ...]

    @property
    def num_rows(self) -> int:
        return sum(segment.num_rows for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Tag:
    """Names a version. The files that its readers need are retained until the tag is dropped."""

    name: str
    version: int
    uuid: str
    """Uuid of the object that holds the version's state."""
    lake_snapshot: int | None = None
    """The lake snapshot that the version reads."""
    retain_ms: int | None = None
    """Time after which maintenance drops the tag; None for never."""


@dataclass(frozen=True, slots=True)
class DropTag:
    names: tuple[str, ...]


Action = (
    Create
    | Append
    | Replace
    | DeleteRows
    | Trim
    | Truncate
    | TieredSnapshot
    | ResetLake
    | SetProperties
    | SetSchema
    | SetPartitioning
    | Rename
    | MarkOrphans
    | ConfirmDeleted
    | Drop
    | Undrop
    | Tombstone
    | ForgetTransactions
    | ExpireTransactions
    | CommitConsumerOffset
    | KvSnapshot
    | Tag
    | DropTag
    | SetArchive
    | PartitionDropRows
)


@dataclass(slots=True)
class Payload:
    """The binary part of a file that is being encoded. `add` returns the byte range of a part."""

    parts: list[bytes] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, part: bytes) -> tuple[int, int]:
        start = self.size_bytes
        self.parts.append(part)
        self.size_bytes += len(part)
        return start, self.size_bytes


def segment_to_json(segment: Segment, payload: Payload) -> dict[str, Any]:
    out = segment.to_json()
    if segment.index_bytes:
        out["index"] = list(payload.add(segment.index_bytes))
    return out


def _with_checks(kind: str, properties: Mapping[str, str], schema: TableSchema | None = None) -> str:
    """Return the kind of an action with these properties, or this schema.

    Constraints, generated columns, field ids, variants and a branch's metadata have separate kinds, which older
    versions of this package reject.
    """
    form = "-generated" if has_generated_columns(properties) else "-checked" if has_constraints(properties) else ""
    form = "-branch" if BRANCH in properties else form
    if schema is not None and schema.has_variants:
        return f"{kind}-variant"
    return f"{kind}-fields" if schema is not None and schema.has_field_ids else kind + form


def without_rows(action: Action, payload: Payload) -> Action:
    """Return the action as it is read back: inline rows are in the payload, and segments have their positions."""
    if not isinstance(action, Append) or not action.inline_rows:
        return action
    return Append(
        tuple(
            segment if rows is None else replace(segment, inline=payload.add(rows))
            for segment, rows in zip(action.segments, action.inline_rows, strict=True)
        ),
    )


def segment_from_json(data: Mapping[str, Any], payload: memoryview) -> Segment:
    span = data.get("index")
    return Segment.from_json(data, bytes(payload[span[0] : span[1]]) if span else b"")


def action_to_json(action: Action, payload: Payload) -> dict[str, Any]:  # noqa: C901 - one case per action
    match action:
        case Create():
            return {
                "type": _with_checks(COPY if action.former_uuids else "create", action.properties, action.schema),
                "name": action.name,
                "columns": action.schema.to_json(),
                "partition_by": list(action.partition_by),
                "buckets": action.num_buckets,
                "properties": dict(action.properties),
                "lake_location": action.lake_location,
                **({"former_uuids": list(action.former_uuids)} if action.former_uuids else {}),
            }
        case Append(segments):
            return {
                "type": action_kind("append", segments),
                "segments": [segment_to_json(s, payload) for s in segments],
            }
        case Replace(bucket, start, end, segments):
            return {
                "type": action_kind("replace", segments),
                "bucket": bucket,
                "range": [start, end],
                "segments": [segment_to_json(s, payload) for s in segments],
            }
        case Trim(starts):
            return {"type": "trim", "starts": offsets_to_json(starts)}
        case Truncate(offsets):
            return {"type": "truncate", "offsets": offsets_to_json(offsets)}
        case TieredSnapshot():
            return {"type": "lake", **lake_to_json(action)}
        case ResetLake(lake_location, starts):
            return {"type": "retier", "lake_location": lake_location, "starts": offsets_to_json(starts)}
        case SetProperties(changed, removed):
            return {"type": _with_checks("properties", changed), "set": dict(changed), "unset": list(removed)}
        case SetSchema(schema_id, schema):
            return {"type": _with_checks("schema", {}, schema), "schema_id": schema_id, "columns": schema.to_json()}
        case Rename(name):
            return {"type": "rename", "name": name}
        case MarkOrphans(keys, lake):
            return {"type": "condemn", "keys": list(keys), **({} if lake is None else {"expiring": sorted(lake)})}
        case ConfirmDeleted(keys):
            return {"type": "purge", "keys": list(keys)}
        case Drop(successor):
            return {"type": "drop"} if successor is None else {"type": "drop", "successor": successor}
        case Undrop(name):
            return {"type": "undrop", "name": name}
        case Tombstone():
            return {"type": "bury"}
        case ForgetTransactions(app_ids):
            return {"type": "forget", "app_ids": list(app_ids)}
        case ExpireTransactions(app_ids):
            return {"type": "expire", "app_ids": list(app_ids)}
        case CommitConsumerOffset(consumer_id, offsets, history):
            moved = None if offsets is None else offsets_to_json(offsets)
            mark = {"history": list(history)} if history is not None else {}
            return {"type": "consumer", "consumer_id": consumer_id, "offsets": moved, **mark}
        case KvSnapshot():
            return {"type": action_kind("kv", action.segments), **snapshot_to_json(action, payload)}
        case Tag():
            return {"type": "tag", **asdict(action)}
        case DropTag(names):
            return {"type": "untag", "names": list(names)}
        case SetArchive() | SetPartitioning() | DeleteRows() | PartitionDropRows():
            return action.to_json()


def action_from_json(data: Mapping[str, Any], payload: memoryview) -> Action:  # noqa: C901 - as above
    match data["type"]:
        case "create" | "create-checked" | "create-generated" | "create-fields" | "create-variant" | "copy":
            return _create_from_json(data)
        case "copy-checked" | "copy-generated" | "copy-fields" | "copy-variant":
            return _create_from_json(data)
        case "append" | "append-parts":
            return Append(tuple(segment_from_json(s, payload) for s in data["segments"]))
        case "replace" | "replace-parts":
            start, end = data["range"]
            return Replace(data["bucket"], start, end, tuple(segment_from_json(s, payload) for s in data["segments"]))
        case "delete-rows" | "delete-file-rows":
            return DeleteRows.from_json(data)
        case "trim":
            return Trim(offsets_from_json(data["starts"]))
        case "truncate":
            return Truncate(offsets_from_json(data["offsets"]))
        case "lake":
            return lake_from_json(data)
        case "retier":
            return ResetLake(data["lake_location"], offsets_from_json(data["starts"]))
        case "properties" | "properties-checked" | "properties-branch":
            return SetProperties(data["set"], tuple(data["unset"]))
        case "schema" | "schema-fields" | "schema-variant":
            return SetSchema(data["schema_id"], TableSchema.from_json(data["columns"]))
        case "rename":
            return Rename(data["name"])
        case "condemn":
            return MarkOrphans(tuple(data["keys"]), frozenset(data["expiring"]) if "expiring" in data else None)
        case "purge":
            return ConfirmDeleted(tuple(data["keys"]))
        case "drop":
            return Drop(data.get("successor"))
        case "undrop":
            return Undrop(data["name"])
        case "bury":
            return Tombstone()
        case "forget":
            return ForgetTransactions(tuple(data["app_ids"]))
        case "expire":
            return ExpireTransactions(tuple(data["app_ids"]))
        case "consumer":
            offsets = data["offsets"]
            mark = HistoryPoint.from_json(data["history"]) if "history" in data else None
            return CommitConsumerOffset(
                data["consumer_id"], None if offsets is None else offsets_from_json(offsets), mark
            )
        case "kv" | "kv-parts":
            return snapshot_from_json(data, payload)
        case "tag":
            return Tag(data["name"], data["version"], data["uuid"], data["lake_snapshot"], data["retain_ms"])
        case "untag":
            return DropTag(tuple(data["names"]))
        case "partitioning":
            return SetPartitioning.from_json(data)
        case "archive":
            return SetArchive.from_json(data)
        case "dropped-rows" | "dropped-file-rows":
            return PartitionDropRows.from_json(data)
        case unknown:
            raise FormatVersionError(
                f"a record of the table has the action {unknown!r}, which this version of streamhouse-spark does not "
                "support; upgrade streamhouse-spark"
            )


def _create_from_json(data: Mapping[str, Any]) -> Create:
    return Create(
        data["name"],
        TableSchema.from_json(data["columns"]),
        tuple(data["partition_by"]),
        data["buckets"],
        data["properties"],
        data["lake_location"],
        tuple(data.get("former_uuids", ())),
    )


def moves_rows(actions: Iterable[Action]) -> bool:
    """Return whether a record with these actions appends or deletes rows, or truncates the table."""
    return any(isinstance(a, Truncate | DeleteRows) or (isinstance(a, Append) and a.segments) for a in actions)


def lake_to_json(pair: TieredSnapshot) -> dict[str, Any]:
    out = {"snapshot_id": pair.snapshot_id, "offsets": offsets_to_json(pair.offsets), "time_ms": pair.time_ms}
    if pair.starts:
        out["starts"] = offsets_to_json(pair.starts)
    counts = {
        "dropped_rows": pair.dropped_rows,
        "told": pair.applied_through,
        "dropped_others": pair.dropped_without_offsets,
    }
    out.update({name: number for name, number in counts.items() if number})
    return {**out, "keeps_files": True} if pair.keeps_files else out


def lake_from_json(data: Mapping[str, Any]) -> TieredSnapshot:
    starts = offsets_from_json(data.get("starts", {}))
    held = data.get("dropped_rows", 0), data.get("told", 0), data.get("keeps_files", False)
    offsets, dropped_others = offsets_from_json(data["offsets"]), data.get("dropped_others", 0)
    return TieredSnapshot(data["snapshot_id"], offsets, data["time_ms"], starts, *held, dropped_others)


def snapshot_to_json(snapshot: KvSnapshot, payload: Payload) -> dict[str, Any]:
    return {
        "bucket": snapshot.bucket,
        "range": [snapshot.begins, snapshot.offset],
        "segments": [segment_to_json(s, payload) for s in snapshot.segments],
    }


def snapshot_from_json(data: Mapping[str, Any], payload: memoryview) -> KvSnapshot:
    segments = tuple(segment_from_json(s, payload) for s in data["segments"])
    begins, offset = data["range"]
    return KvSnapshot(data["bucket"], begins, offset, segments)


def offsets_to_json(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(bucket): offset for bucket, offset in sorted(offsets.items())}


def offsets_from_json(data: Mapping[str, int]) -> dict[int, int]:
    return {int(bucket): offset for bucket, offset in data.items()}
