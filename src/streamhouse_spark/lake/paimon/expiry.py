"""Expiry of Paimon snapshots with the files that only they needed, and removal of orphan files.

Tags and branches, which need files too, can only be found by listing, by any engine. The latest snapshots are read one
by one backwards, so that a stale listing hides none of them.

**Commit point** of expiry, for each snapshot: the deletion of its file, oldest first. So a crash leaves contiguous
snapshots, as every reader of Paimon expects, and orphan files. The files of expired snapshots are deleted after the
snapshots, data files first, so that no visible snapshot has a missing file.

Lost rounds, killed tasks and interrupted expiry leave orphan files. A slow round could still commit files that look
like orphans. So orphan removal first commits an empty snapshot with the cutoff time, which is the grace period ago, and
every later snapshot of the package repeats it. A commit whose round was planned before the cutoff fails its own
validation. A commit that was validated earlier conflicts with this snapshot. Only then are unneeded files older than
the cutoff deleted. **Commit point:** that snapshot. A crash after it leaves orphans for the next run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby

from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.manifest.schema.manifest_file_meta import ManifestFileMeta
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.errors import (
    CommitConflictError,
    CorruptDataError,
    LakeMismatchError,
    ObjectNotFoundError,
    SnapshotExpiredError,
)
from streamhouse_spark.lake.paimon.file_io import MANIFEST_FOLDER, StorageFileIO, translate_metadata_errors
from streamhouse_spark.lake.paimon.manifests import ADD, FileKey, MetadataReader, key_of, manifest_lists
from streamhouse_spark.lake.paimon.snapshot_commit import (
    NOT_BEFORE_PROPERTY,
    SnapshotUpdate,
    commit_snapshot,
    files_not_before_ms,
)
from streamhouse_spark.lake.paimon.snapshots import SnapshotManager, own_time_ms
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding, round_cache
from streamhouse_spark.lake.paimon.tiering_commit import carry_offsets
from streamhouse_spark.lake.snapshot_properties import OFFSETS_PROPERTY, effective_times_ms
from streamhouse_spark.lake.types import Claim, ExpireReport, ExpiryRules
from streamhouse_spark.storage.prefetch import SupportsBatchReads, call_both, delete_all, map_with_store_concurrency

_METADATA_FOLDERS = frozenset({"branch", "changelog", "consumer", "index", "schema", "snapshot", "statistics", "tag"})


def list_history(binding: PaimonTableBinding, newest: Snapshot, listed: Sequence[int] | None = None) -> list[Snapshot]:
    """Return the contiguous snapshots up to the latest one, oldest first. ``listed`` has the numbers in a listing."""
    older = [number for number in (binding.snapshots.ids() if listed is None else listed) if number < newest.id]
    read = {
        s.id: s for s in map_with_store_concurrency(binding.storage, binding.snapshots.find, older) if s is not None
    }
    snapshots = [newest]
    while snapshots[-1].id > 1 and (
        below := read.get(snapshots[-1].id - 1) or binding.snapshots.find(snapshots[-1].id - 1)
    ):
        snapshots.append(below)
    return snapshots[::-1]


def find_snapshots_before_gap(
    binding: PaimonTableBinding, oldest: Snapshot, listed: Sequence[int] | None = None
) -> list[Snapshot]:
    """Return snapshots before a gap, which a delayed writer stored after their numbers expired. They do not count."""
    below = [number for number in (binding.snapshots.ids() if listed is None else listed) if number < oldest.id]
    return [s for s in map_with_store_concurrency(binding.storage, binding.snapshots.find, below) if s is not None]


def list_tag_and_branch_snapshots(binding: PaimonTableBinding) -> list[Snapshot]:
    """Return the snapshots of tags, and of branches with their tags.

    Raises `LakeMismatchError` if another engine retains changelogs longer than their snapshots, which is not supported.
    """
    location, storage = binding.spec.location, binding.storage
    listings: list[Callable[[], list[str]]] = [
        lambda: storage.list_names(f"{location}/changelog/"),
        lambda: storage.list_names(f"{location}/branch/"),
        binding.snapshots.tags,
    ]
    changelogs, branch_names, tags = map_with_store_concurrency(storage, lambda listing: listing(), listings)
    if changelogs:
        raise LakeMismatchError(
            f"lake table {binding.location} has changelogs retained by another engine; expire its snapshots and remove "
            "orphans with that engine"
        )
    branches = [SnapshotManager(storage, f"{location}/branch/{name}") for name in branch_names]
    of_branches = (branch.find(snapshot_id) for branch in branches for snapshot_id in branch.ids())
    of_their_tags = (branch.snapshot_of_tag(name) for branch in branches for name in branch.tags())
    of_tags = map_with_store_concurrency(storage, binding.snapshots.snapshot_of_tag, tags)
    return [snapshot for snapshot in (*of_tags, *of_their_tags, *of_branches) if snapshot is not None]


class ReachableFiles:
    """Finds the files that snapshots need, by location. Reads each manifest once."""

    def __init__(self, binding: PaimonTableBinding, table: PaimonTable) -> None:
        self._binding = binding
        self._table = table
        self._reader = _CachingReader(table, StorageFileIO(binding.files))
        self._locations: dict[FileKey, list[str]] = {}

    def needed_files(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """Return the needed files. Raises `CorruptDataError`, or `CommitConflictError` for a snapshot expired since."""
        names: set[str] = set()
        for snapshot in self._prefetch(snapshots):
            try:
                names |= self._files_of_snapshot(snapshot)
            except SnapshotExpiredError as error:
                raise self._missing_file_error(snapshot, error) from error
        return names

    def files_of_dropped(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """Return the files of snapshots that nothing needs, from the metadata that still exists."""
        names: set[str] = set()
        for snapshot in self._prefetch(snapshots):
            try:
                names |= self._files_of_snapshot(snapshot)
            except SnapshotExpiredError:
                continue
        return names

    def _prefetch(self, snapshots: Iterable[Snapshot]) -> list[Snapshot]:
        """Return the snapshots after prefetching their metadata if the store is remote."""
        expected = list(snapshots)
        if isinstance(self._binding.storage, SupportsBatchReads):
            self._reader.expect_all(expected)
        return expected

    def _files_of_snapshot(self, snapshot: Snapshot) -> set[str]:
        """Return the manifest lists, manifests and live data files of a snapshot, and the files of its changelog."""
        manifests, changelog = self._reader.manifests(snapshot), self._reader.changelog(snapshot)
        lists = (snapshot.base_manifest_list, snapshot.delta_manifest_list, snapshot.changelog_manifest_list)
        names = [*filter(None, lists)]
        for manifest in (*manifests, *changelog):
            names += [manifest.file_name, *(manifest.extra_files or ())]
        locations = {f"{self._table.location}/{MANIFEST_FOLDER}/{name}" for name in names}
        for entry in (*self._reader.remaining_entries(manifests), *self._reader.remaining_entries(changelog)):
            if entry.kind == ADD:
                locations.update(self._files(entry))
        return locations

    def _files(self, entry: ManifestEntry) -> list[str]:
        key = key_of(entry)
        if key not in self._locations:  # most snapshots share most files
            location = self._reader.location(entry)
            folder = location.rpartition("/")[0]
            self._locations[key] = [location, *(f"{folder}/{name}" for name in entry.file.extra_files or ())]
        return self._locations[key]

    def _missing_file_error(
        self, snapshot: Snapshot, error: SnapshotExpiredError
    ) -> CommitConflictError | CorruptDataError:
        where = f"lake table {self._table.location}"
        if self._binding.snapshots.find(snapshot.id) is None:
            return CommitConflictError(f"{where} changed while its files were listed ({error}); retry")
        return CorruptDataError(
            f"{where}: metadata of snapshot {snapshot.id} is missing ({error}), so nothing is deleted; restore it, or "
            "expire that snapshot with another engine"
        )


class _CachingReader(MetadataReader):
    """A reader that caches manifests, because snapshots share most of them. Omits file statistics."""

    def __init__(self, table: PaimonTable, files: StorageFileIO) -> None:
        super().__init__(table, files)
        self._cached: dict[str, list[ManifestEntry]] = {}
        self._lists: dict[str, list[ManifestFileMeta]] = {}

    def manifests(self, snapshot: Snapshot | None) -> list[ManifestFileMeta]:
        name = snapshot.delta_manifest_list if snapshot is not None else ""  # each commit writes a new one
        if name not in self._lists:
            self._lists[name] = super().manifests(snapshot)
        return self._lists[name]

    def expect_all(self, snapshots: Sequence[Snapshot]) -> None:
        """Prefetch the manifest lists of these snapshots, then their manifests. Ignores missing files."""
        new = [snapshot for snapshot in snapshots if snapshot.delta_manifest_list not in self._lists]
        lists = [named for snapshot in new for named in manifest_lists(snapshot)]
        self._files.expect((f"{self._folder}/{name}", size_bytes or 0) for name, size_bytes in lists)
        sizes: dict[str, int] = {}
        for snapshot in new:
            with suppress(SnapshotExpiredError):
                sizes.update((manifest.file_name, manifest.file_size or 0) for manifest in self.manifests(snapshot))
        missing = ((name, size_bytes) for name, size_bytes in sizes.items() if name not in self._cached)
        self._files.expect((f"{self._folder}/{name}", size_bytes) for name, size_bytes in missing)

    def changelog(self, snapshot: Snapshot) -> Sequence[ManifestFileMeta]:
        if snapshot.changelog_manifest_list is None:
            return ()
        with translate_metadata_errors(self._table.location):
            manifests: list[ManifestFileMeta] = ManifestListManager(self._store).read(snapshot.changelog_manifest_list)
        return manifests

    def all_entries(self, manifests: Sequence[ManifestFileMeta]) -> list[list[ManifestEntry]]:
        missing = [manifest for manifest in manifests if manifest.file_name not in self._cached]
        for manifest, entries in zip(missing, parallel_map(self.entries, missing), strict=True):
            self._cached[manifest.file_name] = entries
        return [self._cached[manifest.file_name] for manifest in manifests]

    def entries(self, manifest: ManifestFileMeta) -> list[ManifestEntry]:
        self._expect(manifest.file_name, manifest.file_size)
        with translate_metadata_errors(self._table.location):
            entries: list[ManifestEntry] = ManifestFileManager(self._store).read(manifest.file_name, drop_stats=True)
        return entries


def expire(
    binding: PaimonTableBinding,
    rules: Sequence[ExpiryRules],
    *,
    dry_run: bool,
    tagged: Collection[int] = (),
    claim: Claim | None = None,
) -> ExpireReport:
    """Expire snapshots. See `LakeTable.expire`. Retains those that tags, branches and consumers of any engine need.

    Snapshots expire in order, so those after a ``tagged`` one remain too. Raises `CommitConflictError` if another
    process expired the snapshots concurrently.
    """
    table = binding.find()
    if table is None or table.snapshot is None:
        return ExpireReport()
    binding.require_owner(table)
    newest = table.snapshot
    listed, consumers = call_both(binding.storage, binding.snapshots.ids, partial(next_consumer_snapshots, binding))
    snapshots = list_history(binding, newest, listed)
    cut = max(_first_retained(binding, snapshots, rule, [*consumers, *tagged]) for rule in rules)
    expired = [
        *find_snapshots_before_gap(binding, snapshots[0], listed),
        *(snapshot for snapshot in snapshots if snapshot.id < cut),
    ]
    if not expired:
        return ExpireReport()
    retained = [snapshot for snapshot in snapshots if snapshot.id >= cut]
    reach = ReachableFiles(binding, table)
    candidates = reach.files_of_dropped(expired)
    if not dry_run:
        reach.needed_files([*retained, *list_tag_and_branch_snapshots(binding)])  # detects damage before any deletion
        if claim is not None:
            claim([snapshot.id for snapshot in expired], [snapshot.id for snapshot in (*expired, *retained)])
        binding.snapshots.expire([snapshot.id for snapshot in expired], cut)
    # Tags that were created from these snapshots until now count. No reader can find the snapshots any more.
    unneeded = candidates - reach.needed_files([*retained, *list_tag_and_branch_snapshots(binding)])
    inside = filter(binding.files.holds, unneeded)  # files outside the warehouse belong to other engines
    files = sorted(inside, key=lambda file: (*_deletion_rank(binding, file), file))
    if not dry_run:
        for _, files_of_depth in groupby(files, key=partial(_deletion_rank, binding)):
            delete_all(binding.storage, [binding.files.key_of(location) for location in files_of_depth])
    return ExpireReport(tuple(snapshot.id for snapshot in expired), tuple(files))


def _first_retained(
    binding: PaimonTableBinding, snapshots: Sequence[Snapshot], rule: ExpiryRules, waited_for: Collection[int]
) -> int:
    """Return the number of the oldest snapshot to retain. Consumers and tags need those in ``waited_for``.

    Snapshots expire oldest first without gaps. The snapshot with the offsets of the oldest retained one remains too. If
    none has offsets, all remain, because only the first snapshot proves that there never were any.
    """
    newest = snapshots[-1].id
    limits = [newest - max(rule.last, 1) + 1, newest, *waited_for]
    now_ms = binding.storage.now_ms()
    times_ms = effective_times_ms([own_time_ms(snapshot) for snapshot in snapshots], now_ms)
    limits += [s.id for s, time_ms in zip(snapshots, times_ms, strict=True) if now_ms - time_ms < rule.ms][:1]
    cut = min(limits)
    carriers = [s.id for s in snapshots if s.id <= cut and OFFSETS_PROPERTY in (s.properties or {})]
    return int(carriers[-1] if carriers else snapshots[0].id)


def next_consumer_snapshots(binding: PaimonTableBinding) -> list[int]:
    """Return the snapshots that consumers read next."""
    folder = f"{binding.spec.location}/consumer/"

    def next_of(name: str) -> int | None:
        try:
            return int(json.loads(binding.storage.read(folder + name))["nextSnapshot"])
        except ObjectNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptDataError(
                f"lake file {folder}{name} does not contain the next snapshot of its consumer ({error}); restore it, "
                "or delete it if the consumer is no longer needed"
            ) from error

    next_numbers = map_with_store_concurrency(binding.storage, next_of, binding.storage.list_names(folder))
    return [number for number in next_numbers if number is not None]


def _deletion_rank(binding: PaimonTableBinding, file: str) -> tuple[bool, bool]:
    """Rank data files before manifests before their lists. Files of the next kind reference each kind."""
    return file.startswith(f"{binding.location}/{MANIFEST_FOLDER}/"), "/manifest-list-" in file


def remove_orphans(binding: PaimonTableBinding, *, grace_ms: int, dry_run: bool) -> list[str]:
    """Delete unneeded data files, manifests and manifest lists older than ``grace_ms``. Returns their keys.

    Retains other files of other engines. Raises `CommitConflictError` if the table changed concurrently.
    """
    table = binding.find()
    if table is None:
        return []
    binding.require_owner(table)
    not_before_ms = binding.storage.now_ms() - grace_ms
    old, needed = call_both(
        binding.storage, partial(_list_old_files, binding, not_before_ms), partial(_referenced_paths, binding, table)
    )
    orphans = _exclude(old, needed)
    if dry_run or not orphans:
        return orphans
    _commit_not_before(binding, not_before_ms)
    round_cache.forget()
    table = binding.require()
    if files_not_before_ms(binding, table.snapshot) < not_before_ms:
        raise CommitConflictError(
            f"lake table {table.location}: another engine replaced the snapshot that stops slow rounds; retry"
        )
    orphans = _exclude(old, _referenced_paths(binding, table))  # a round may have committed before that snapshot
    delete_all(binding.storage, orphans)
    return orphans


def _list_old_files(binding: PaimonTableBinding, not_before_ms: int) -> list[str]:
    base = f"{binding.spec.location}/"
    listed = (info for info in binding.storage.list(base) if info.modified_ms < not_before_ms)
    return sorted(info.key for info in listed if _may_be_orphan(info.key.removeprefix(base)))


def _may_be_orphan(path: str) -> bool:
    folder, _, name = path.partition("/")
    if folder == MANIFEST_FOLDER:
        return name.startswith("manifest-")
    return folder not in _METADATA_FOLDERS and path.endswith(".parquet")


def _referenced_paths(binding: PaimonTableBinding, table: PaimonTable) -> set[str]:
    reach = ReachableFiles(binding, table)
    named, (history, strays) = call_both(
        binding.storage, partial(list_tag_and_branch_snapshots, binding), partial(_list_history, binding, table)
    )
    needed = reach.needed_files([*named, *history]) | reach.files_of_dropped(strays)
    return {binding.files.key_of(location) for location in needed if binding.files.holds(location)}


def _list_history(binding: PaimonTableBinding, table: PaimonTable) -> tuple[list[Snapshot], list[Snapshot]]:
    """Return the snapshots up to the latest one, and those before a gap."""
    if table.snapshot is None:
        return [], []
    listed = binding.snapshots.ids()
    snapshots = list_history(binding, table.snapshot, listed)
    return snapshots, find_snapshots_before_gap(binding, snapshots[0], listed)


def _exclude(keys: Iterable[str], needed: Collection[str]) -> list[str]:
    return [key for key in keys if key not in needed]


def _commit_not_before(binding: PaimonTableBinding, not_before_ms: int) -> None:
    def validated(table: PaimonTable) -> SnapshotUpdate:
        binding.require_owner(table)
        moment_ms = max(files_not_before_ms(binding, table.snapshot), not_before_ms)
        properties = {**carry_offsets(binding, table.snapshot), NOT_BEFORE_PROPERTY: str(moment_ms)}
        return SnapshotUpdate(is_compaction=True, properties=properties)

    commit_snapshot(binding, validated)
