"""A tiering round in a Paimon lake: the context of its tasks, its commit fenced by offsets, and its durability.

Paimon commits by an existence check followed by a rename to the snapshot's number. A writer that is suspended between
the two replaces a snapshot that the package stored in between, and its own snapshot does not have these rows. The
package never replaces a snapshot, because put-if-absent does not overwrite. So a snapshot of the package is in one of
three states::

    put ──► LATEST ──► DURABLE     a successor was put, which was planned on this snapshot, as were all later ones
                └────► REPLACED    a Paimon writer renamed its own snapshot over this one

* **The log is trimmed** up to a durable snapshot (`find_durable`): rows that a renaming writer may still remove from
the lake stay in the log.
* **The log forgets individually deleted rows** only after a durable snapshot has dropped them (`wait_until_durable`).
* **A replaced snapshot is detected**, because the lake then has fewer rows than the log has recorded. If no file of the
  lake has the missing rows, they are tiered again (`was_replaced`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Final

from pypaimon.common.json_util import JSON
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.errors import CommitConflictError, LakeMismatchError, LakeRolledBackError
from streamhouse_spark.lake.paimon.evolution import require_lake_migrated
from streamhouse_spark.lake.paimon.file_io import StorageFileIO
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec
from streamhouse_spark.lake.paimon.manifests import ADD, MetadataReader, live_entries
from streamhouse_spark.lake.paimon.merge_tree import require_newest, sequence_offset_gaps
from streamhouse_spark.lake.paimon.snapshot_commit import SnapshotUpdate, commit_snapshot, files_not_before_ms
from streamhouse_spark.lake.paimon.snapshots import commit_of
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.parquet.file_writer import parse_file_end
from streamhouse_spark.lake.parquet.reader import owner_of
from streamhouse_spark.lake.snapshot_properties import OFFSETS_PROPERTY, LakeOffsets, make_lake_snapshot, parse_offsets
from streamhouse_spark.lake.types import LakeFile, LakeSnapshot, WriteContext, has_same_offsets
from streamhouse_spark.lake.validation import LogRange, next_offsets, require_dense, require_offsets, require_present

FOREIGN_KEPT_PROPERTY: Final = "streamhouse-keeps-others-files"
"""Property of a snapshot of the package that removed only files with offsets."""


def write_context(binding: PaimonTableBinding) -> WriteContext:
    table = binding.require()
    binding.require_owner(table)
    require_lake_migrated(table.schema, binding.spec)
    spec = binding.spec
    began_ms = binding.storage.now_ms()
    file_spec = PaimonFileSpec(
        table.schema, table.location, began_ms, snapshot_name(table.snapshot), _sequence_offset_gaps(binding, table)
    )
    file_spec.directory((None,) * len(file_spec.partition_fields), 0)  # raises for options that no task could parse
    return WriteContext(spec.table_uuid, spec.schema, spec.target_file_bytes, file_spec.to_json(), spec.primary_key)


def _sequence_offset_gaps(binding: PaimonTableBinding, table: PaimonTable) -> Mapping[int, int]:
    if table.snapshot is None or not binding.spec.primary_key:
        return {}
    offsets = offsets_at(binding, table.snapshot)
    return sequence_offset_gaps(live_entries(binding, table), offsets.offsets if offsets else {})


def snapshot_name(snapshot: Snapshot | None) -> str | None:
    """Return a unique name of a snapshot, among those of all tables, or None without a snapshot."""
    return None if snapshot is None else str(snapshot.delta_manifest_list)


def commit_round(
    binding: PaimonTableBinding, files: Sequence[LakeFile], expected: LogRange, new: LogRange, context: WriteContext
) -> LakeSnapshot | None:
    """Commit a round. See `LakeTable.commit`."""
    is_truncated = not has_same_offsets(expected.starts, new.starts)
    if not files and not is_truncated and has_same_offsets(expected.ends, new.ends):
        return None
    if not binding.spec.primary_key:
        require_dense(files, new.starts if is_truncated else expected.ends, new.ends, new.absent)
    file_spec = PaimonFileSpec.from_json(context.lake)
    added = [file for file in files if file.deletes is None]
    row_deletes = [file.deletes for file in files if file.deletes is not None]
    has_foreign = any(not file.has_offsets for file in row_deletes)
    retention = {FOREIGN_KEPT_PROPERTY: "true"} if row_deletes and not has_foreign else {}
    num_deleted = sum(new.absent.values()) + sum(file.num_dropped for file in row_deletes)

    def validated(table: PaimonTable) -> SnapshotUpdate:
        binding.require_owner(table)
        require_committable(binding, table, file_spec)
        offsets = offsets_at(binding, table.snapshot) if table.snapshot else None
        require_offsets(table.location, offsets, expected)
        if not is_truncated and snapshot_name(table.snapshot) != file_spec.planned_on:
            if has_foreign:
                raise CommitConflictError(
                    f"lake table {table.location}: another engine committed while rows of its files were searched; "
                    "retry"
                )
            require_newest(table.location, live_entries(binding, table) if binding.spec.primary_key else (), files)
        require_present(binding.files_at, added)
        moved = next_offsets(offsets, expected, new, num_deleted, binding.spec.history)
        return SnapshotUpdate(
            added,
            removes_all=is_truncated and table.snapshot is not None,
            removed_at=[file.location for file in row_deletes],
            is_overwrite=bool(row_deletes),
            properties={**moved.to_properties(binding.spec.table_uuid), **retention},
        )

    return describe_snapshot(binding, commit_snapshot(binding, validated))


def offsets_at(binding: PaimonTableBinding, snapshot: Snapshot) -> LakeOffsets | None:
    """Return the offsets of a snapshot: its own, or those of the nearest earlier snapshot with offsets.

    Raises `LakeRolledBackError` if that snapshot has expired.
    """
    below: Snapshot | None = snapshot
    while below is not None:
        text = (below.properties or {}).get(OFFSETS_PROPERTY)
        if text is not None:
            return parse_offsets(text, binding.spec.table_uuid, below.id, binding.location)
        if below.id == 1:
            return None
        oldest, below = below, binding.snapshots.find(below.id - 1)
    raise LakeRolledBackError(
        f"lake table {binding.location}: no snapshot from {oldest.id} to {snapshot.id} contains log offsets, and "
        f"another engine expired the snapshots before {oldest.id}; roll the table back to its latest tag with offsets, "
        "or rebuild the lake from the log (streamhouse retier)"
    )


def carry_offsets(binding: PaimonTableBinding, snapshot: Snapshot | None) -> dict[str, str]:
    """Return the offset properties of a new snapshot that has the rows of ``snapshot``."""
    offsets = offsets_at(binding, snapshot) if snapshot is not None else None
    return (offsets or LakeOffsets({})).to_properties(binding.spec.table_uuid)


def describe_snapshot(binding: PaimonTableBinding, snapshot: Snapshot) -> LakeSnapshot:
    return make_lake_snapshot(snapshot.id, snapshot.time_millis, offsets_at(binding, snapshot))


def iter_ancestors(binding: PaimonTableBinding, snapshot_id: int) -> Iterator[LakeSnapshot]:
    """Yield a snapshot and its retained predecessors with their offsets, latest first."""
    snapshot = binding.snapshots.find(snapshot_id)
    while snapshot is not None:
        yield describe_snapshot(binding, snapshot)
        snapshot = binding.snapshots.find(snapshot.id - 1)


def describe_past_snapshot(binding: PaimonTableBinding, snapshot: Snapshot) -> LakeSnapshot:
    """Describe a snapshot for time travel.

    Without offsets if the snapshots with offsets have expired, which happens for another engine's snapshot that only a
    tag retains, or if they belong to a former owner of the lake.
    """
    try:
        return describe_snapshot(binding, snapshot)
    except (LakeRolledBackError, LakeMismatchError):
        return make_lake_snapshot(snapshot.id, snapshot.time_millis, None)


def require_committable(binding: PaimonTableBinding, table: PaimonTable, file_spec: PaimonFileSpec) -> None:
    """Require that the table still has the schema of the files, and that orphan removal cannot have deleted the files.

    Raises `CommitConflictError`.
    """
    if JSON.to_json(table.schema) != JSON.to_json(file_spec.schema):
        raise CommitConflictError(
            f"lake table {table.location}: its schema is {table.schema.id}, expected {file_spec.schema.id}, for which "
            "the files were written; retry the round"
        )
    not_before_ms = files_not_before_ms(binding, table.snapshot)
    if file_spec.planned_ms < not_before_ms:
        raise CommitConflictError(
            f"lake table {table.location}: this round was planned at {file_spec.planned_ms} ms, but orphan files from "
            f"before {not_before_ms} ms were removed; retry the round"
        )


class SnapshotState(Enum):
    """The state of a snapshot of the package. See the module."""

    LATEST = auto()
    DURABLE = auto()
    REPLACED = auto()


def state_of(binding: PaimonTableBinding, snapshot: Snapshot) -> SnapshotState:
    # Read the successor first: if the snapshot is not replaced afterwards, the successor was planned on it.
    successor = binding.snapshots.find(snapshot.id + 1)
    if not _is_stored(binding, snapshot):
        return SnapshotState.REPLACED
    return SnapshotState.LATEST if successor is None else SnapshotState.DURABLE


def _is_stored(binding: PaimonTableBinding, snapshot: Snapshot) -> bool:
    stored = binding.snapshots.find(snapshot.id)
    return stored is not None and commit_of(stored) == commit_of(snapshot)


def make_snapshot_durable(binding: PaimonTableBinding, snapshot: Snapshot) -> Snapshot:
    """Make a snapshot durable by committing an empty one after it. Returns it, or ``snapshot`` if it is durable.

    Raises `CommitConflictError` if ``snapshot`` was replaced.
    """

    def require_stored(newest: PaimonTable) -> None:
        if not _is_stored(binding, snapshot):
            raise _replaced_error(newest.location, snapshot.id)

    try:
        return _commit_empty(binding, require_stored)
    except CommitConflictError:
        if state_of(binding, snapshot) is not SnapshotState.DURABLE:
            raise
        return snapshot


def _commit_empty(binding: PaimonTableBinding, validate: Callable[[PaimonTable], None] = lambda _: None) -> Snapshot:
    """Commit a snapshot with the rows of the previous one, which is durable afterwards."""

    def validated(newest: PaimonTable) -> SnapshotUpdate:
        binding.require_owner(newest)
        validate(newest)
        return SnapshotUpdate(is_compaction=True, properties=carry_offsets(binding, newest.snapshot))

    return commit_snapshot(binding, validated)


def find_durable(binding: PaimonTableBinding) -> LakeSnapshot | None:
    """Return the latest durable snapshot. See `SupportsSnapshotReplacement.find_durable`.

    Commits an empty snapshot if the latest one has rows that are not durable yet.
    """
    table = _find_own_table(binding)
    if table is None or table.snapshot is None:
        return None
    durable = _find_durable_with_rows_of(binding, table.snapshot, describe_snapshot(binding, table.snapshot))
    return durable or _find_predecessor(binding, _commit_empty(binding))


def wait_until_durable(binding: PaimonTableBinding, snapshot: LakeSnapshot) -> LakeSnapshot:
    """Make a snapshot durable. See `SupportsSnapshotReplacement.wait_until_durable`.

    Commits an empty snapshot, unless the snapshot is durable or the previous one has the same rows.
    """
    successor = binding.snapshots.find(snapshot.id + 1)  # read first, as in `state_of`
    stored = binding.snapshots.find(snapshot.id)
    if stored is None or describe_snapshot(binding, stored) != snapshot:
        raise _replaced_error(binding.location, snapshot.id)
    if successor is not None or _find_durable_with_rows_of(binding, stored, snapshot) is not None:
        return snapshot
    return describe_snapshot(binding, make_snapshot_durable(binding, stored))


def was_replaced(binding: PaimonTableBinding, snapshot_id: int) -> bool:
    """Return whether a snapshot was replaced. See `SupportsSnapshotReplacement.is_replaced`."""
    table = _find_own_table(binding)
    if table is None or table.snapshot is None:
        return False
    stored = binding.snapshots.find(snapshot_id)
    if stored is None or commit_of(stored) is not None:
        return False
    lake_offsets = offsets_at(binding, table.snapshot)
    offsets = lake_offsets.offsets if lake_offsets else {}
    reader = MetadataReader(table, StorageFileIO(binding.files))
    entries = reader.remaining_entries(reader.manifests(table.snapshot))
    live = (reader.location(entry) for entry in entries if entry.kind == ADD)
    beyond = (location for location in live if _is_beyond(location, offsets))
    # A former owner of this lake has other offsets.
    return all(owner_of(binding.files_at(location), location) not in binding.spec.writers for location in beyond)


def _is_beyond(location: str, offsets: Mapping[int, int]) -> bool:
    """Return whether a file, by its name, is the package's and has offsets above those of the lake."""
    file_end = parse_file_end(location)
    return file_end is not None and file_end[1] > offsets.get(file_end[0], 0)


def _find_durable_with_rows_of(
    binding: PaimonTableBinding, stored: Snapshot, snapshot: LakeSnapshot
) -> LakeSnapshot | None:
    """Return the durable snapshot before ``stored`` with the rows and deletes of ``snapshot``, or None."""
    below = _find_predecessor(binding, stored)
    if below is None or not has_same_offsets(below.offsets, snapshot.offsets):
        return None
    is_same = has_same_offsets(below.starts, snapshot.starts) and below.dropped_rows == snapshot.dropped_rows
    return below if is_same else None


def _find_predecessor(binding: PaimonTableBinding, newest: Snapshot) -> LakeSnapshot | None:
    """Return the latest snapshot of the package before ``newest``, which is durable, or None."""
    own = binding.snapshots.newest_own(binding.snapshots.find(newest.id - 1))
    return describe_snapshot(binding, own) if own is not None else None


def _find_own_table(binding: PaimonTableBinding) -> PaimonTable | None:
    table = binding.find()
    if table is not None:
        binding.require_owner(table)
    return table


def _replaced_error(location: str, snapshot_id: int) -> CommitConflictError:
    return CommitConflictError(f"lake table {location}: another engine replaced lake snapshot {snapshot_id}; retry")
