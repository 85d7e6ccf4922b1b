"""Removal of orphan files of a Paimon table, left by lost rounds, killed tasks and interrupted expiry.

A slow round could still commit files that look like orphans. So the cleaner first commits an empty snapshot with the
cutoff time, the grace period ago, and every later snapshot of the package repeats it. A commit whose round was planned
before the cutoff fails its own validation. A commit validated before loses the number to this snapshot. Only then are
unneeded files older than the cutoff deleted. **Commit point:** that snapshot; a crash after it leaves fewer orphans for
the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.errors import CommitConflictError, InvalidOptionError
from streamhouse_spark.lake.paimon.commit import NOT_BEFORE_PROPERTY, Change, commit_snapshot, files_not_before_ms
from streamhouse_spark.lake.paimon.file_io import MANIFEST_FOLDER
from streamhouse_spark.lake.paimon.reachable_files import (
    ReachableFiles,
    find_strays,
    list_history,
    list_tag_and_branch_snapshots,
)
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.paimon.tiering_commit import carry_offsets
from streamhouse_spark.storage.prefetch import delete_all, map_with_store_concurrency

GRACE_MS_MIN = 10 * 60 * 1000
_METADATA_FOLDERS = frozenset({"branch", "changelog", "consumer", "index", "schema", "snapshot", "statistics", "tag"})


def remove_orphans(place: PaimonTableBinding, *, grace_ms: int, dry_run: bool) -> list[str]:
    """Delete data files, manifests and manifest lists that are older than ``grace_ms`` and needed by nothing.

    Returns their keys. Keeps other files of other engines. Raises `InvalidOptionError` for a grace below ten minutes,
    `CommitConflictError` if the table changed concurrently.
    """
    if grace_ms < GRACE_MS_MIN:
        raise InvalidOptionError(
            f"grace of {grace_ms} ms: rounds under way need at least {GRACE_MS_MIN} ms; choose more"
        )
    table = place.find()
    if table is None:
        return []
    place.require_owner(table)
    not_before_ms = place.storage.now_ms() - grace_ms
    looks: list[Callable[[], Collection[str]]] = [
        lambda: _old_files(place, not_before_ms),
        partial(_referenced_paths, place, table),
    ]
    old, needed = map_with_store_concurrency(place.storage, lambda look: look(), looks)
    orphans = _exclude(old, needed)
    if dry_run or not orphans:
        return orphans
    _commit_not_before(place, not_before_ms)
    place.forget_cached_table()
    table = place.require()
    if files_not_before_ms(place, table.snapshot) < not_before_ms:
        raise CommitConflictError(
            f"lake table {table.location}: another engine replaced the snapshot that stops slow rounds; try again"
        )
    orphans = _exclude(old, _referenced_paths(place, table))  # again: a round may have committed before that snapshot
    delete_all(place.storage, orphans)
    return orphans


def _old_files(place: PaimonTableBinding, not_before_ms: int) -> list[str]:
    base = f"{place.spec.location}/"
    listed = (info for info in place.storage.list(base) if info.modified_ms < not_before_ms)
    return sorted(info.key for info in listed if _may_be_orphan(info.key.removeprefix(base)))


def _may_be_orphan(path: str) -> bool:
    folder, _, name = path.partition("/")
    if folder == MANIFEST_FOLDER:
        return name.startswith("manifest-")
    return folder not in _METADATA_FOLDERS and path.endswith(".parquet")


def _referenced_paths(place: PaimonTableBinding, table: PaimonTable) -> set[str]:
    reach = ReachableFiles(place, table)
    looks: list[Callable[[], list[Snapshot]]] = [
        lambda: list_tag_and_branch_snapshots(place),
        lambda: _list_history(place, table, stray),
    ]
    stray: list[Snapshot] = []
    retained = [
        snapshot
        for snapshots_of_look in map_with_store_concurrency(place.storage, lambda look: look(), looks)
        for snapshot in snapshots_of_look
    ]
    needed = reach.needed(retained) | reach.files_of_dropped(stray)
    return {place.files.key_of(location) for location in needed if place.files.holds(location)}


def _list_history(place: PaimonTableBinding, table: PaimonTable, stray: list[Snapshot]) -> list[Snapshot]:
    """Return the snapshots up to the latest one; those below a gap are added to ``stray``."""
    if table.snapshot is None:
        return []
    listed = place.snapshots.ids()
    snapshots = list_history(place, table.snapshot, listed)
    stray += find_strays(place, snapshots[0], listed)
    return snapshots


def _exclude(keys: Iterable[str], needed: Collection[str]) -> list[str]:
    return [key for key in keys if key not in needed]


def _commit_not_before(place: PaimonTableBinding, not_before_ms: int) -> None:
    def validated(table: PaimonTable) -> Change:
        place.require_owner(table)
        moment_ms = max(files_not_before_ms(place, table.snapshot), not_before_ms)
        properties = {**carry_offsets(place, table.snapshot), NOT_BEFORE_PROPERTY: str(moment_ms)}
        return Change(is_compaction=True, properties=properties)

    commit_snapshot(place, validated)
