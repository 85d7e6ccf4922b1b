"""The snapshots of an Iceberg table and their log offsets, read without Iceberg's library.

`ParsedSnapshots` has the needed parts of the library's metadata with their names, so that all functions work with both.
The offsets are in the summaries of the package's snapshots, which are found along the parent chain. The tag
`COMMIT_USER` moves in the same commit, so that no engine expires the latest snapshot with offsets. The tag is used only
if an expiry cut the chain before any offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import LakeRolledBackError
from streamhouse_spark.lake.metadata_cache import LruCache
from streamhouse_spark.lake.snapshot_properties import (
    COMMIT_PROPERTY,
    OFFSETS_PROPERTY,
    USER_PROPERTY,
    LakeOffsets,
    make_lake_snapshot,
    parse_offsets,
    writer_time_ms,
)
from streamhouse_spark.lake.types import COMMIT_USER, LakeSnapshot

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry

_DAMAGE: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)

_parsed: LruCache[bytes, ParsedSnapshots] = LruCache(8)


class SnapshotLike(Protocol):
    """A snapshot, parsed here or by the library."""

    @property
    def snapshot_id(self) -> int: ...

    @property
    def parent_snapshot_id(self) -> int | None: ...

    @property
    def sequence_number(self) -> int | None: ...

    @property
    def timestamp_ms(self) -> int: ...

    @property
    def summary(self) -> Mapping[str, Any] | None: ...


class RefLike(Protocol):
    """A tag or branch, parsed here or by the library."""

    @property
    def snapshot_id(self) -> int: ...


SnapshotT = TypeVar("SnapshotT", bound=SnapshotLike)
AnySnapshot_co = TypeVar("AnySnapshot_co", bound=SnapshotLike, covariant=True)


class SnapshotsLike(Protocol[AnySnapshot_co]):
    """Metadata with its snapshots, parsed here or by the library."""

    @property
    def location(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    @property
    def snapshots(self) -> Sequence[AnySnapshot_co]: ...

    @property
    def refs(self) -> Mapping[str, RefLike]: ...

    @property
    def current_snapshot_id(self) -> int | None: ...

    def current_snapshot(self) -> AnySnapshot_co | None: ...

    def snapshot_by_id(self, snapshot_id: int) -> AnySnapshot_co | None: ...


@dataclass(frozen=True, slots=True)
class ParsedSnapshot:
    """An `SnapshotLike`, parsed here."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int | None
    timestamp_ms: int
    summary: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class ParsedRef:
    """An `RefLike`, parsed here."""

    snapshot_id: int


@dataclass(frozen=True, slots=True)
class ParsedSnapshots:
    """`SnapshotsLike`, parsed here."""

    location: str
    properties: Mapping[str, str]
    snapshots: Sequence[ParsedSnapshot]
    refs: Mapping[str, ParsedRef]
    current_snapshot_id: int | None

    def current_snapshot(self) -> ParsedSnapshot | None:
        return None if self.current_snapshot_id is None else self.snapshot_by_id(self.current_snapshot_id)

    def snapshot_by_id(self, snapshot_id: int) -> ParsedSnapshot | None:
        return next((snapshot for snapshot in self.snapshots if snapshot.snapshot_id == snapshot_id), None)


def read_snapshots(data: bytes) -> ParsedSnapshots | None:
    """Parse metadata of format version 2. Returns None for other versions and damage, which Iceberg's library reports.

    The cache is keyed by content, so it is never stale.
    """
    if (snapshots := _parsed.get(data)) is not None:
        return snapshots
    try:
        snapshots = _parse_snapshots(json.loads(data))
    except _DAMAGE:
        return None
    _parsed.put(data, snapshots)
    return snapshots


def _parse_snapshots(metadata: Mapping[str, Any]) -> ParsedSnapshots:
    if _parse_number(metadata["format-version"]) != 2:
        raise ValueError("another format version")
    current, refs = metadata.get("current-snapshot-id"), metadata.get("refs", {})
    snapshots = ParsedSnapshots(
        location=_parse_text(metadata["location"]),
        properties=_parse_texts(metadata.get("properties", {})),
        snapshots=[_parse_snapshot(snapshot) for snapshot in metadata.get("snapshots", ())],
        refs={name: ParsedRef(_parse_number(ref["snapshot-id"])) for name, ref in refs.items()},
        current_snapshot_id=None if current in (None, -1) else _parse_number(current),
    )
    if snapshots.current_snapshot_id is not None and snapshots.current_snapshot() is None:
        raise ValueError("the current snapshot is missing")
    return snapshots


def _parse_snapshot(snapshot: Mapping[str, Any]) -> ParsedSnapshot:
    parent, summary = snapshot.get("parent-snapshot-id"), snapshot.get("summary")
    return ParsedSnapshot(
        snapshot_id=_parse_number(snapshot["snapshot-id"]),
        parent_snapshot_id=None if parent is None else _parse_number(parent),
        sequence_number=_parse_number(snapshot.get("sequence-number", 0)),
        timestamp_ms=_parse_number(snapshot["timestamp-ms"]),
        summary=None if summary is None else _parse_texts(summary),
    )


def _parse_number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a number")
    return value


def _parse_text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is not a text")
    return value


def _parse_texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _parse_text(value) for name, value in values.items()}


def offsets_at(metadata: SnapshotsLike[SnapshotT], snapshot: SnapshotT, table_uuid: str) -> LakeOffsets | None:
    """Return the offsets of a snapshot: its own, or those of the nearest ancestor with offsets."""
    for ancestor in iter_ancestor_snapshots(metadata, snapshot):
        offsets = own_offsets(ancestor, table_uuid, metadata.location)
        if offsets is not None:
            return offsets
    return None


def newest_offsets(metadata: SnapshotsLike[SnapshotLike], table_uuid: str) -> LakeOffsets | None:
    """Return the offsets of the current snapshot, or None if the table never had any.

    Raises `LakeRolledBackError` if the tagged snapshot has later offsets than the current one.
    """
    head = metadata.current_snapshot()
    offsets = offsets_at(metadata, head, table_uuid) if head else None
    tagged = _snapshot_of_tag(metadata)
    if tagged is None or (offsets is not None and offsets.snapshot_id == tagged.snapshot_id):
        return offsets
    chain = list(iter_ancestor_snapshots(metadata, head)) if head else []
    if any(s.snapshot_id == tagged.snapshot_id for s in chain):
        return offsets  # a commit with newer offsets did not move the tag
    oldest = chain[-1] if chain else None
    was_cut = oldest is not None and _sequence_number(oldest) > max(_sequence_number(tagged), 1)
    if offsets is None and was_cut:
        return own_offsets(tagged, table_uuid, metadata.location)
    holder = metadata.snapshot_by_id(offsets.snapshot_id) if offsets else None
    if holder is not None and _sequence_number(holder) > _sequence_number(tagged):
        return offsets
    raise LakeRolledBackError(
        f"lake table {metadata.location} was rolled back: snapshot {tagged.snapshot_id} with the latest log offsets is "
        f"not an ancestor of the current snapshot {metadata.current_snapshot_id}; roll the lake forward to it (tag "
        f"{COMMIT_USER}), or rebuild the lake from the log (streamhouse retier)"
    )


def iter_ancestor_snapshots(metadata: SnapshotsLike[SnapshotT], snapshot: SnapshotT) -> Iterator[SnapshotT]:
    """Yield the snapshot and its retained ancestors, latest first."""
    by_id = {s.snapshot_id: s for s in metadata.snapshots}
    current: SnapshotT | None = snapshot
    while current is not None:
        yield current
        parent = current.parent_snapshot_id
        current = by_id.get(parent) if parent is not None else None


def retains_external_files(metadata: SnapshotsLike[SnapshotLike], older: int, newer: int) -> bool:
    """Return whether snapshot ``newer`` provably retains other engines' files of its ancestor ``older`` unchanged.

    That is so if every commit after ``older`` is this package's, and removed no file or rewrote only the package's
    files.
    """
    newest = metadata.snapshot_by_id(newer)
    for ancestor in iter_ancestor_snapshots(metadata, newest) if newest is not None else ():
        if ancestor.snapshot_id == older:
            return True
        properties = ancestor.summary or {}
        operation = properties.get("operation")
        is_rewrite = getattr(operation, "value", operation) == "replace"
        is_ours = properties.get(USER_PROPERTY) == COMMIT_USER and properties.get(COMMIT_PROPERTY) is not None
        if not is_ours or not (is_rewrite or properties.get("deleted-data-files", "0") == "0"):
            return False
    return False


def iter_ancestors(metadata: TableMetadata, snapshot_id: int, table_uuid: str) -> Iterator[LakeSnapshot]:
    """Yield a snapshot and its retained ancestors with their offsets, latest first."""
    newest = metadata.snapshot_by_id(snapshot_id)
    for ancestor in iter_ancestor_snapshots(metadata, newest) if newest is not None else ():
        yield describe_snapshot(ancestor, offsets_at(metadata, ancestor, table_uuid))


def find_commit(metadata: TableMetadata, commit_uuid: str) -> Snapshot | None:
    """Return the snapshot of a commit in the chain of the current snapshot, or None."""
    head = metadata.current_snapshot()
    chain = iter_ancestor_snapshots(metadata, head) if head else iter(())
    return next((s for s in chain if s.summary and s.summary.get(COMMIT_PROPERTY) == commit_uuid), None)


def _snapshot_of_tag(metadata: SnapshotsLike[SnapshotLike]) -> SnapshotLike | None:
    ref = metadata.refs.get(COMMIT_USER)
    return metadata.snapshot_by_id(ref.snapshot_id) if ref is not None else None


def _sequence_number(snapshot: SnapshotLike) -> int:
    return snapshot.sequence_number or 0


def own_offsets(snapshot: SnapshotLike, table_uuid: str, location: str) -> LakeOffsets | None:
    """Return the offsets in the snapshot's own summary."""
    text = snapshot.summary.get(OFFSETS_PROPERTY) if snapshot.summary else None
    return None if text is None else parse_offsets(text, table_uuid, snapshot.snapshot_id, location)


def own_time_ms(snapshot: Snapshot) -> int:
    """Return the time by the clock of the snapshot's writer."""
    summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return writer_time_ms(snapshot.timestamp_ms, summary)


def log_time_ms(metadata: TableMetadata, entry: SnapshotLogEntry) -> int:
    """Return the time at which a snapshot became current; after a rollback to it, the time of the rollback."""
    snapshot = metadata.snapshot_by_id(entry.snapshot_id)
    if snapshot is None or snapshot.timestamp_ms != entry.timestamp_ms:
        return entry.timestamp_ms
    return own_time_ms(snapshot)


def describe_snapshot(snapshot: SnapshotLike, lake_offsets: LakeOffsets | None) -> LakeSnapshot:
    """Return the snapshot with its offsets."""
    return make_lake_snapshot(snapshot.snapshot_id, snapshot.timestamp_ms, lake_offsets)
