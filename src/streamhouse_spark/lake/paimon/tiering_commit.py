"""One tiering round in a Paimon lake: the context of its tasks, and the commit fenced by offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pypaimon.common.json_util import JSON
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.errors import CommitConflictError, LakeMismatchError, LakeRolledBackError
from streamhouse_spark.lake.commit_validation import LogRange, require_dense, require_offsets, require_present
from streamhouse_spark.lake.model.values import LakeFile, LakeSnapshot, WriteContext, same_offsets
from streamhouse_spark.lake.offsets import OFFSETS_PROPERTY, LakeOffsets, offsets_text, parse_offsets
from streamhouse_spark.lake.paimon.commit import Change, commit_snapshot, files_not_before_ms
from streamhouse_spark.lake.paimon.evolution import require_brought_up
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec
from streamhouse_spark.lake.paimon.manifests import live_entries
from streamhouse_spark.lake.paimon.merge_changes import require_newest, sequence_shifts
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding

FOREIGN_KEPT_PROPERTY: Final = "streamhouse-keeps-others-files"
"""In a snapshot of the package that removes files: all of them had offsets."""


def write_context(place: PaimonTableBinding) -> WriteContext:
    table = place.require()
    place.require_owner(table)
    require_brought_up(table.schema, place.spec)
    spec = place.spec
    began_ms = place.storage.now_ms()
    file_spec = PaimonFileSpec(
        table.schema, table.location, began_ms, snapshot_name(table.snapshot), _sequence_shifts(place, table)
    )
    file_spec.directory((None,) * len(file_spec.partition_fields), 0)  # raises here for options that no task could read
    return WriteContext(spec.table_uuid, spec.schema, spec.target_file_bytes, file_spec.to_json(), spec.primary_key)


def _sequence_shifts(place: PaimonTableBinding, table: PaimonTable) -> Mapping[int, int]:
    if table.snapshot is None or not place.spec.primary_key:
        return {}
    offsets = offsets_at(place, table.snapshot)
    return sequence_shifts(live_entries(place, table), offsets.offsets if offsets else {})


def snapshot_name(snapshot: Snapshot | None) -> str | None:
    """Return a name unique among the snapshots of all tables, or None without a snapshot."""
    return None if snapshot is None else str(snapshot.delta_manifest_list)


def commit_round(
    place: PaimonTableBinding, files: Sequence[LakeFile], expected: LogRange, new: LogRange, context: WriteContext
) -> LakeSnapshot | None:
    """Commit a round as `LakeTable.commit` does."""
    is_truncated = not same_offsets(expected.starts, new.starts)
    if not files and not is_truncated and same_offsets(expected.ends, new.ends):
        return None
    if not place.spec.primary_key:
        require_dense(files, new.starts if is_truncated else expected.ends, new.ends, new.absent)
    file_spec = PaimonFileSpec.from_json(context.lake)
    added = [file for file in files if file.deletes is None]
    row_deletes = [file.deletes for file in files if file.deletes is not None]
    has_foreign = any(not file.has_offsets for file in row_deletes)
    retention = {FOREIGN_KEPT_PROPERTY: "true"} if row_deletes and not has_foreign else {}
    num_deleted = sum(new.absent.values()) + sum(file.num_dropped for file in row_deletes)

    def validated(table: PaimonTable) -> Change:
        place.require_owner(table)
        require_shape(place, table, file_spec)
        offsets = offsets_at(place, table.snapshot) if table.snapshot else None
        require_offsets(table.location, offsets, expected)
        if not is_truncated and snapshot_name(table.snapshot) != file_spec.planned_on:
            if has_foreign:
                raise CommitConflictError(
                    f"lake table {table.location}: another commit came while rows of other engines' files were "
                    "searched; try again"
                )
            require_newest(table.location, live_entries(place, table) if place.spec.primary_key else (), files)
        require_present(place.files_at, added)
        rows, without_offsets = (
            (offsets.dropped_rows, offsets.dropped_without_offsets) if offsets and not is_truncated else (0, 0)
        )
        owner, absent = place.spec.table_uuid, num_deleted + rows
        history = place.spec.history
        text = offsets_text(
            owner, new.ends, new.starts, dropped_rows=absent, history=history, dropped_without_offsets=without_offsets
        )
        return Change(
            added,
            removes_all=is_truncated and table.snapshot is not None,
            removed_at=[file.location for file in row_deletes],
            is_overwrite=bool(row_deletes),
            properties={OFFSETS_PROPERTY: text, **retention},
        )

    return describe_snapshot(place, commit_snapshot(place, validated))


def offsets_at(place: PaimonTableBinding, snapshot: Snapshot) -> LakeOffsets | None:
    """Return the offsets of a snapshot: its own, or those of the nearest one below with offsets.

    Raises `LakeRolledBackError` if that one has expired.
    """
    below: Snapshot | None = snapshot
    while below is not None:
        text = (below.properties or {}).get(OFFSETS_PROPERTY)
        if text is not None:
            return parse_offsets(text, place.spec.table_uuid, below.id, place.location)
        if below.id == 1:
            return None
        oldest, below = below, place.snapshots.find(below.id - 1)
    raise LakeRolledBackError(
        f"lake table {place.location}: no snapshot from {oldest.id} to {snapshot.id} says which log offsets it holds, "
        f"and those below {oldest.id} were expired by another engine; roll the table back to its newest tag with "
        "offsets, or rebuild the lake from the log (streamhouse retier)"
    )


def carry_offsets(
    place: PaimonTableBinding, snapshot: Snapshot | None, *, dropped_rows: int = 0, dropped_without_offsets: int = 0
) -> dict[str, str]:
    """Return the properties of a snapshot with the rows of this one, which may be another engine's.

    ``dropped_rows`` counts newly missing rows, ``dropped_without_offsets`` those of them without offsets. Raises as
    `offsets_at` does.
    """
    offsets = offsets_at(place, snapshot) if snapshot is not None else None
    ranges = (offsets.offsets, offsets.starts) if offsets else ({}, {})
    dropped_rows += offsets.dropped_rows if offsets else 0
    without_offsets = dropped_without_offsets + (offsets.dropped_without_offsets if offsets else 0)
    history, owner = offsets.history if offsets else None, place.spec.table_uuid
    text = offsets_text(
        owner, *ranges, dropped_rows=dropped_rows, history=history, dropped_without_offsets=without_offsets
    )
    return {OFFSETS_PROPERTY: text}


def describe_snapshot(place: PaimonTableBinding, snapshot: Snapshot) -> LakeSnapshot:
    snapshot_offsets = offsets_at(place, snapshot)
    if snapshot_offsets is None:
        return LakeSnapshot(snapshot.id, {}, snapshot.time_millis)
    offsets, starts = dict(snapshot_offsets.offsets), dict(snapshot_offsets.starts)
    counts = snapshot_offsets.dropped_rows, snapshot_offsets.history, snapshot_offsets.dropped_without_offsets
    return LakeSnapshot(snapshot.id, offsets, snapshot.time_millis, starts, *counts)


def iter_ancestors(place: PaimonTableBinding, snapshot_id: int) -> Iterator[LakeSnapshot]:
    """Return a snapshot and those below it with their offsets, as far as they are retained. Raises as `offsets_at`
    does.
    """
    snapshot = place.snapshots.find(snapshot_id)
    while snapshot is not None:
        yield describe_snapshot(place, snapshot)
        snapshot = place.snapshots.find(snapshot.id - 1)


def describe_past_snapshot(place: PaimonTableBinding, snapshot: Snapshot) -> LakeSnapshot:
    """Describe a snapshot for time travel, as `describe_snapshot` does, but without offsets if those below have expired
    or belong to a former owner of the lake.

    The former happens for another engine's snapshot that only a tag retains.
    """
    try:
        return describe_snapshot(place, snapshot)
    except (LakeRolledBackError, LakeMismatchError):
        return LakeSnapshot(snapshot.id, {}, snapshot.time_millis)


def require_shape(place: PaimonTableBinding, table: PaimonTable, file_spec: PaimonFileSpec) -> None:
    """Require that files written for the shape may be committed: the schema is the same, and orphan removal cannot have
    deleted them.

    Raises `CommitConflictError`.
    """
    if JSON.to_json(table.schema) != JSON.to_json(file_spec.schema):
        raise CommitConflictError(
            f"lake table {table.location}: its schema is {table.schema.id} now, the files were written for "
            f"{file_spec.schema.id}; tier again"
        )
    not_before_ms = files_not_before_ms(place, table.snapshot)
    if file_spec.planned_ms < not_before_ms:
        raise CommitConflictError(
            f"lake table {table.location}: this round began at {file_spec.planned_ms} ms, and files from before "
            f"{not_before_ms} ms that nothing needed were cleaned up; tier again"
        )
