"""Races of Paimon's own writers against the package's snapshots, and the guarantees in spite of them.

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

from collections.abc import Mapping

from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.lake.model.values import LakeSnapshot, same_offsets
from streamhouse_spark.lake.paimon.commit import Change, commit_snapshot
from streamhouse_spark.lake.paimon.file_io import PaimonFiles
from streamhouse_spark.lake.paimon.manifests import ADD, MetadataReader
from streamhouse_spark.lake.paimon.snapshots import commit_of
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.paimon.tiering_commit import carry_offsets, describe_snapshot, offsets_at
from streamhouse_spark.lake.parquet.file_writer import parse_file_end
from streamhouse_spark.lake.parquet.reader import owner_of


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
