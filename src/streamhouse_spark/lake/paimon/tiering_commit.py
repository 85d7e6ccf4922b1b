"""One tiering round in a Paimon lake: the context of its tasks, and the commit fenced by offsets.

Races of Paimon's own writers against the package's snapshots, and the guarantees in spite of them.

Paimon commits by an existence check followed by a rename to the snapshot's number. A writer that sleeps between the two
replaces a snapshot that the package has put meanwhile, and its own does not have these rows. The package never
replaces a snapshot: put-if-absent does not overwrite. So the file of a number changes at most once, from the package's
to the writer's, and:

* **A snapshot of ours with a successor cannot lose its rows.** Every later commit is planned on it, and none takes its
  number or a lower one. `find_durable` returns such a snapshot, and the log is trimmed no further: rows that a renaming
  writer may still remove from the lake stay in the log.
* **The log forgets individually deleted rows** only after such a snapshot has dropped them (`wait_until_durable`).
* **A replaced latest snapshot of ours is noticed**, because the lake then holds less than the log has recorded. If no
  file of the lake has the missing rows, they are tiered again (`is_replaced`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pypaimon.common.json_util import JSON
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.errors import CommitConflictError, LakeMismatchError, LakeRolledBackError
from streamhouse_spark.lake.paimon.commit import Change, commit_snapshot, files_not_before_ms
from streamhouse_spark.lake.paimon.evolution import require_brought_up
from streamhouse_spark.lake.paimon.file_io import PaimonFiles
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec
from streamhouse_spark.lake.paimon.manifests import ADD, MetadataReader, live_entries
from streamhouse_spark.lake.paimon.merge_tree import require_newest, sequence_shifts
from streamhouse_spark.lake.paimon.snapshots import commit_of
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.parquet.file_writer import parse_file_end
from streamhouse_spark.lake.parquet.reader import owner_of
from streamhouse_spark.lake.snapshot_properties import OFFSETS_PROPERTY, LakeOffsets, offsets_text, parse_offsets
from streamhouse_spark.lake.types import LakeFile, LakeSnapshot, WriteContext, same_offsets
from streamhouse_spark.lake.validation import LogRange, require_dense, require_offsets, require_present

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


def find_durable(place: PaimonTableBinding) -> LakeSnapshot | None:
    """Return a durable snapshot as `LakeTable.find_durable` does. Commits an empty snapshot if the latest one holds
    rows that are not durable yet.
    """
    table = _find_own_table(place)
    if table is None or table.snapshot is None:
        return None
    newest, below = describe_snapshot(place, table.snapshot), _find_predecessor(place, table.snapshot)
    if below is not None and _covers_predecessor(newest, below):
        return below

    def seal(table: PaimonTable) -> Change:
        place.require_owner(table)
        return Change(is_compaction=True, properties=carry_offsets(place, table.snapshot))

    return _find_predecessor(place, commit_snapshot(place, seal))


def seal_snapshot(place: PaimonTableBinding, snapshot: Snapshot) -> Snapshot:
    """Commit an empty snapshot above ``snapshot``, or return ``snapshot`` if it already has a successor.

    A slow Paimon writer could still rename its own snapshot over the latest one, and undo it without a trace in the
    offsets. A snapshot with a successor is safe, because the successor builds on it. Raises `CommitConflictError` if
    ``snapshot`` is lost; retry.
    """

    def is_latest() -> bool:
        stored = place.snapshots.find(snapshot.id)
        return stored is not None and commit_of(stored) == commit_of(snapshot)

    def seal(newest: PaimonTable) -> Change:
        place.require_owner(newest)
        if not is_latest():
            raise CommitConflictError(
                f"lake table {newest.location}: another engine put its own snapshot in the place of {snapshot.id}; "
                "try again"
            )
        return Change(is_compaction=True, properties=carry_offsets(place, newest.snapshot))

    try:
        return commit_snapshot(place, seal)
    except CommitConflictError:
        if place.snapshots.find(snapshot.id + 1) is None or not is_latest():
            raise
        return snapshot


def wait_until_durable(place: PaimonTableBinding, snapshot: LakeSnapshot) -> LakeSnapshot:
    """Wait as `LakeTable.wait_until_durable` does. Commits an empty snapshot unless there is one, or another
    successor.
    """
    # Read the successor first: if the snapshot is still ours afterwards, the successor was built on it.
    above = place.snapshots.find(snapshot.id + 1)
    stored = place.snapshots.find(snapshot.id)
    if stored is None or describe_snapshot(place, stored) != snapshot:
        raise CommitConflictError(
            f"lake table {place.location}: another engine put its own snapshot in the place of {snapshot.id}; try again"
        )
    below = _find_predecessor(place, stored) if above is None else None
    if above is not None or (below is not None and _covers_predecessor(snapshot, below)):
        return snapshot
    return describe_snapshot(place, seal_snapshot(place, stored))


def was_replaced(place: PaimonTableBinding, snapshot_id: int) -> bool:
    """Decide as `LakeTable.is_replaced` does."""
    table = _find_own_table(place)
    if table is None or table.snapshot is None:
        return False
    stored = place.snapshots.find(snapshot_id)
    if stored is None or commit_of(stored) is not None:
        return False
    lake_offsets = offsets_at(place, table.snapshot)
    offsets = lake_offsets.offsets if lake_offsets else {}
    reader = MetadataReader(table, PaimonFiles(place.files))
    live = (
        reader.location(entry)
        for entry in reader.remaining_entries(reader.manifests(table.snapshot))
        if entry.kind == ADD
    )
    beyond = (location for location in live if _is_beyond(location, offsets))
    # A former owner of this lake has other offsets.
    return all(owner_of(place.files_at(location), location) not in place.spec.writers for location in beyond)


def _is_beyond(location: str, offsets: Mapping[int, int]) -> bool:
    """Return whether a file, by its name, is the package's and has offsets above the held ones."""
    file_end = parse_file_end(location)
    return file_end is not None and file_end[1] > offsets.get(file_end[0], 0)


def _covers_predecessor(newest: LakeSnapshot, below: LakeSnapshot) -> bool:
    """Return whether the latest snapshot has the same rows and deletions as the one below, which has a successor."""
    return (
        same_offsets(below.offsets, newest.offsets)
        and same_offsets(below.starts, newest.starts)
        and below.dropped_rows == newest.dropped_rows
    )


def _find_predecessor(place: PaimonTableBinding, newest: Snapshot) -> LakeSnapshot | None:
    """Return the nearest snapshot of the package that has a successor."""
    own = place.snapshots.newest_own(place.snapshots.find(newest.id - 1))
    return describe_snapshot(place, own) if own is not None else None


def _find_own_table(place: PaimonTableBinding) -> PaimonTable | None:
    table = place.find()
    if table is not None:
        place.require_owner(table)
    return table
