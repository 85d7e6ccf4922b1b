"""The log offsets that a lake table holds: in the summaries of our snapshots, found through the parent chain.

The summary is the truth. The tag `COMMIT_USER` moves in the same commit, so that no engine's expiry drops the newest
snapshot with offsets; it counts only where an expiry cut the chain before any offsets were found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from streamhouse_spark.errors import CorruptDataError, FormatVersionError, LakeMismatchError, LakeRolledBackError
from streamhouse_spark.lake.base import COMMIT_USER, NEVER_TRUNCATED

OFFSETS_PROPERTY = "streamhouse-offsets"
USER_PROPERTY = "commit-user"
COMMIT_PROPERTY = "streamhouse-commit"
OFFSETS_VERSION = 1
TABLE_UUID_PROPERTY = "streamhouse.table-uuid"
"""Property of the lake table: whose it is."""


@dataclass(frozen=True, slots=True)
class FoundOffsets:
    offsets: Mapping[int, int]
    snapshot_id: int
    starts: Mapping[int, int] = field(default_factory=dict)
    """Where the table began, by its last truncation."""


def offsets_text(table_uuid: str, offsets: Mapping[int, int], starts: Mapping[int, int] = NEVER_TRUNCATED) -> str:
    value: dict[str, object] = {
        "version": OFFSETS_VERSION,
        "table_uuid": table_uuid,
        "offsets": {str(bucket): offset for bucket, offset in sorted(offsets.items())},
    }
    if starts:
        value["starts"] = {str(bucket): offset for bucket, offset in sorted(starts.items())}
    return json.dumps(value, separators=(",", ":"))


def offsets_at(metadata: TableMetadata, snapshot: Snapshot, table_uuid: str) -> FoundOffsets | None:
    """The offsets that a snapshot holds: its own, or those of the nearest ancestor that has some."""
    for ancestor in ancestors(metadata, snapshot):
        found = _own_offsets(ancestor, table_uuid, metadata.location)
        if found is not None:
            return found
    return None


def newest_offsets(metadata: TableMetadata, table_uuid: str) -> FoundOffsets | None:
    """The offsets of the current snapshot; None when the table never had any.

    Raises `LakeRolledBackError` when the tag says that there were later ones which the current snapshot lacks.
    """
    head = metadata.current_snapshot()
    found = offsets_at(metadata, head, table_uuid) if head else None
    tagged = _tagged_snapshot(metadata)
    if tagged is None or (found is not None and found.snapshot_id == tagged.snapshot_id):
        return found
    chain = list(ancestors(metadata, head)) if head else []
    if any(s.snapshot_id == tagged.snapshot_id for s in chain):
        return found  # newer offsets on top of it, by a commit that did not move the tag
    oldest = chain[-1] if chain else None
    was_cut = oldest is not None and _sequence(oldest) > max(_sequence(tagged), 1)
    if found is None and was_cut:
        return _own_offsets(tagged, table_uuid, metadata.location)
    holder = metadata.snapshot_by_id(found.snapshot_id) if found else None
    if holder is not None and _sequence(holder) > _sequence(tagged):
        return found
    raise LakeRolledBackError(
        f"lake table {metadata.location} was rolled back: snapshot {tagged.snapshot_id} with the newest log offsets is "
        f"not an ancestor of the current snapshot {metadata.current_snapshot_id}; roll the lake forward to it (the tag "
        f"{COMMIT_USER} names it), or drop the lake table and tier again"
    )


def ancestors(metadata: TableMetadata, snapshot: Snapshot) -> Iterator[Snapshot]:
    """The snapshot and its ancestors, as far as they are kept."""
    by_id = {s.snapshot_id: s for s in metadata.snapshots}
    current: Snapshot | None = snapshot
    while current is not None:
        yield current
        parent = current.parent_snapshot_id
        current = by_id.get(parent) if parent is not None else None


def find_commit(metadata: TableMetadata, commit_uuid: str) -> Snapshot | None:
    """The snapshot in the current chain that a commit made."""
    head = metadata.current_snapshot()
    chain = ancestors(metadata, head) if head else iter(())
    return next((s for s in chain if s.summary and s.summary.get(COMMIT_PROPERTY) == commit_uuid), None)


def _tagged_snapshot(metadata: TableMetadata) -> Snapshot | None:
    ref = metadata.refs.get(COMMIT_USER)
    return metadata.snapshot_by_id(ref.snapshot_id) if ref is not None else None


def _sequence(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _own_offsets(snapshot: Snapshot, table_uuid: str, location: str) -> FoundOffsets | None:
    text = snapshot.summary.get(OFFSETS_PROPERTY) if snapshot.summary else None
    if text is None:
        return None
    where = f"snapshot {snapshot.snapshot_id} of lake table {location}"
    try:
        value = json.loads(text)
        version, owner = value["version"], value["table_uuid"]
        offsets = {int(bucket): int(offset) for bucket, offset in value["offsets"].items()}
        starts = {int(bucket): int(offset) for bucket, offset in value.get("starts", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"the offsets of {where} cannot be read: {text[:200]!r}") from error
    if version != OFFSETS_VERSION:
        raise FormatVersionError(
            f"the offsets of {where} have format version {version}, this version reads {OFFSETS_VERSION}; "
            "upgrade streamhouse-spark"
        )
    if owner != table_uuid:
        raise LakeMismatchError(
            f"{where} holds rows of table {owner}, expected {table_uuid}: the lake table belongs to another table; "
            "give this one another lake location"
        )
    return FoundOffsets(offsets, snapshot.snapshot_id, starts)
