"""Log offsets of a lake table: in the summaries of the package's snapshots, found along the parent chain.

The summary is authoritative. The tag `COMMIT_USER` moves in the same commit, so that no engine expires the latest
snapshot with offsets. It is used only if an expiry cut the chain before any offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from streamhouse_spark.errors import LakeRolledBackError
from streamhouse_spark.lake.iceberg.metadata.snapshots import AnySnapshot, AnySnapshots, SnapshotT
from streamhouse_spark.lake.model.values import COMMIT_USER, LakeSnapshot
from streamhouse_spark.lake.offsets import COMMIT_PROPERTY, OFFSETS_PROPERTY, USER_PROPERTY, LakeOffsets, parse_offsets
from streamhouse_spark.lake.timestamp_correction import own_ms

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry


def offsets_at(metadata: AnySnapshots[SnapshotT], snapshot: SnapshotT, table_uuid: str) -> LakeOffsets | None:
    """Return the offsets of a snapshot: its own, or those of the nearest ancestor with offsets."""
    for ancestor in iter_ancestor_snapshots(metadata, snapshot):
        offsets = own_offsets(ancestor, table_uuid, metadata.location)
        if offsets is not None:
            return offsets
    return None


def newest_offsets(metadata: AnySnapshots[AnySnapshot], table_uuid: str) -> LakeOffsets | None:
    """Return the offsets of the current snapshot, or None if the table never had any.

    Raises `LakeRolledBackError` if the tag has later offsets than the current snapshot.
    """
    head = metadata.current_snapshot()
    offsets = offsets_at(metadata, head, table_uuid) if head else None
    tagged = _snapshot_of_tag(metadata)
    if tagged is None or (offsets is not None and offsets.snapshot_id == tagged.snapshot_id):
        return offsets
    chain = list(iter_ancestor_snapshots(metadata, head)) if head else []
    if any(s.snapshot_id == tagged.snapshot_id for s in chain):
        return offsets  # newer offsets on top of it, by a commit that did not move the tag
    oldest = chain[-1] if chain else None
    was_cut = oldest is not None and _sequence_number(oldest) > max(_sequence_number(tagged), 1)
    if offsets is None and was_cut:
        return own_offsets(tagged, table_uuid, metadata.location)
    holder = metadata.snapshot_by_id(offsets.snapshot_id) if offsets else None
    if holder is not None and _sequence_number(holder) > _sequence_number(tagged):
        return offsets
    raise LakeRolledBackError(
        f"lake table {metadata.location} was rolled back: snapshot {tagged.snapshot_id} with the newest log offsets is "
        f"not an ancestor of the current snapshot {metadata.current_snapshot_id}; roll the lake forward to it (the tag "
        f"{COMMIT_USER} names it), or rebuild the lake from the log (streamhouse retier)"
    )


def iter_ancestor_snapshots(metadata: AnySnapshots[SnapshotT], snapshot: SnapshotT) -> Iterator[SnapshotT]:
    """Return the snapshot and its ancestors, as far as they are retained."""
    by_id = {s.snapshot_id: s for s in metadata.snapshots}
    current: SnapshotT | None = snapshot
    while current is not None:
        yield current
        parent = current.parent_snapshot_id
        current = by_id.get(parent) if parent is not None else None


def retains_external_files(metadata: AnySnapshots[AnySnapshot], older: int, newer: int) -> bool:
    """Return whether a snapshot provably retains each data file of other engines of an ancestor, unchanged: every
    commit since is the package's, and added files or rewrote only its own.
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
    """Return a snapshot and its ancestors with their offsets, as far as they are retained."""
    newest = metadata.snapshot_by_id(snapshot_id)
    for ancestor in iter_ancestor_snapshots(metadata, newest) if newest is not None else ():
        yield describe_snapshot(ancestor, offsets_at(metadata, ancestor, table_uuid))


def find_commit(metadata: TableMetadata, commit_uuid: str) -> Snapshot | None:
    """Return the snapshot in the current chain that a commit made."""
    head = metadata.current_snapshot()
    chain = iter_ancestor_snapshots(metadata, head) if head else iter(())
    return next((s for s in chain if s.summary and s.summary.get(COMMIT_PROPERTY) == commit_uuid), None)


def _snapshot_of_tag(metadata: AnySnapshots[AnySnapshot]) -> AnySnapshot | None:
    ref = metadata.refs.get(COMMIT_USER)
    return metadata.snapshot_by_id(ref.snapshot_id) if ref is not None else None


def _sequence_number(snapshot: AnySnapshot) -> int:
    return snapshot.sequence_number or 0


def own_offsets(snapshot: AnySnapshot, table_uuid: str, location: str) -> LakeOffsets | None:
    """Return the offsets in the snapshot's own summary."""
    text = snapshot.summary.get(OFFSETS_PROPERTY) if snapshot.summary else None
    return None if text is None else parse_offsets(text, table_uuid, snapshot.snapshot_id, location)


def own_time_ms(snapshot: Snapshot) -> int:
    """Return the snapshot's own time; see `streamhouse_spark.lake.timestamp_correction`."""
    summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return own_ms(snapshot.timestamp_ms, summary)


def log_time_ms(metadata: TableMetadata, entry: SnapshotLogEntry) -> int:
    """Return the time at which a snapshot became current; after a rollback to it, the time of the rollback."""
    snapshot = metadata.snapshot_by_id(entry.snapshot_id)
    if snapshot is None or snapshot.timestamp_ms != entry.timestamp_ms:
        return entry.timestamp_ms
    return own_time_ms(snapshot)


def describe_snapshot(snapshot: AnySnapshot, lake_offsets: LakeOffsets | None) -> LakeSnapshot:
    """Return the snapshot with its offsets."""
    if lake_offsets is None:
        return LakeSnapshot(snapshot.snapshot_id, {}, snapshot.timestamp_ms)
    offsets, starts = dict(lake_offsets.offsets), dict(lake_offsets.starts)
    counts = lake_offsets.dropped_rows, lake_offsets.history, lake_offsets.dropped_without_offsets
    return LakeSnapshot(snapshot.snapshot_id, offsets, snapshot.timestamp_ms, starts, *counts)
