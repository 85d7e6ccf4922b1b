"""Files of a Paimon table that a snapshot, tag or branch still needs.

Tags and branches can only be found by listing, by any engine. Snapshots too, but the latest ones are read one by one
downwards, so that a stale listing hides none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.manifest.schema.manifest_file_meta import ManifestFileMeta
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.errors import CommitConflictError, CorruptDataError, LakeMismatchError, SnapshotExpiredError
from streamhouse_spark.lake.paimon.file_io import MANIFEST_FOLDER, PaimonFiles, paimon_metadata
from streamhouse_spark.lake.paimon.manifests import ADD, FileKey, MetadataReader, key_of, manifest_lists
from streamhouse_spark.lake.paimon.snapshots import SnapshotManager
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.storage.prefetch import ReadsMany, map_with_store_concurrency


def list_history(place: PaimonTableBinding, newest: Snapshot, listed: Sequence[int] | None = None) -> list[Snapshot]:
    """Return the contiguous snapshots up to the latest one, oldest first. ``listed`` has the numbers of a listing."""
    older = [number for number in (place.snapshots.ids() if listed is None else listed) if number < newest.id]
    read = {s.id: s for s in map_with_store_concurrency(place.storage, place.snapshots.find, older) if s is not None}
    snapshots = [newest]
    while snapshots[-1].id > 1 and (
        below := read.get(snapshots[-1].id - 1) or place.snapshots.find(snapshots[-1].id - 1)
    ):
        snapshots.append(below)
    return snapshots[::-1]


def find_strays(place: PaimonTableBinding, oldest: Snapshot, listed: Sequence[int] | None = None) -> list[Snapshot]:
    """Return snapshots below a gap, which a delayed writer put after their numbers had expired. They do not count."""
    below = [number for number in (place.snapshots.ids() if listed is None else listed) if number < oldest.id]
    return [s for s in map_with_store_concurrency(place.storage, place.snapshots.find, below) if s is not None]


def list_tag_and_branch_snapshots(place: PaimonTableBinding) -> list[Snapshot]:
    """Return the snapshots of tags, and of branches with their tags.

    Raises `LakeMismatchError` if another engine keeps changelogs beyond their snapshots, which is not supported.
    """
    location, storage = place.spec.location, place.storage
    looks: list[Callable[[], list[str]]] = [
        lambda: storage.list_names(f"{location}/changelog/"),
        lambda: storage.list_names(f"{location}/branch/"),
        place.snapshots.tags,
    ]
    changelogs, branch_names, tags = map_with_store_concurrency(storage, lambda look: look(), looks)
    if changelogs:
        raise LakeMismatchError(
            f"lake table {place.location} has changelogs retained by another engine; expire its snapshots and remove "
            "orphans with that engine"
        )
    branches = [SnapshotManager(storage, f"{location}/branch/{name}") for name in branch_names]
    of_branches = (branch.find(snapshot_id) for branch in branches for snapshot_id in branch.ids())
    of_their_tags = (branch.snapshot_of_tag(name) for branch in branches for name in branch.tags())
    of_tags = map_with_store_concurrency(storage, place.snapshots.snapshot_of_tag, tags)
    return [snapshot for snapshot in (*of_tags, *of_their_tags, *of_branches) if snapshot is not None]


class ReachableFiles:
    """Finds the files that snapshots need, by location. Reads each manifest once."""

    def __init__(self, place: PaimonTableBinding, table: PaimonTable) -> None:
        self._place = place
        self._table = table
        self._reader = _CachingReader(table, PaimonFiles(place.files))
        self._locations: dict[FileKey, list[str]] = {}

    def needed(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """Return the needed files. Raises `CommitConflictError` if a snapshot expired concurrently, `CorruptDataError`
        for damage.
        """
        names: set[str] = set()
        for snapshot in self._prefetch(snapshots):
            try:
                names |= self._files_of_snapshot(snapshot)
            except SnapshotExpiredError as error:
                raise self._missing_file_error(snapshot, error) from error
        return names

    def files_of_dropped(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """Return the files of snapshots that nothing needs, as far as their metadata still exists."""
        names: set[str] = set()
        for snapshot in self._prefetch(snapshots):
            try:
                names |= self._files_of_snapshot(snapshot)
            except SnapshotExpiredError:
                continue
        return names

    def _prefetch(self, snapshots: Iterable[Snapshot]) -> list[Snapshot]:
        """Return the snapshots, with their metadata prefetched concurrently if the store is remote."""
        expected = list(snapshots)
        if isinstance(self._place.storage, ReadsMany):
            self._reader.expect_all(expected)
        return expected

    def _files_of_snapshot(self, snapshot: Snapshot) -> set[str]:
        """Return the lists, manifests and live data files of a snapshot, and the files of its own changelog."""
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
        if self._place.snapshots.find(snapshot.id) is None:
            return CommitConflictError(f"{where} changed while its files were listed ({error}); try again")
        return CorruptDataError(
            f"{where}: metadata of snapshot {snapshot.id} is missing ({error}), so nothing is deleted; restore it, or "
            "expire that snapshot with another engine"
        )


class _CachingReader(MetadataReader):
    """A reader that caches manifests, because snapshots share most of them. Omits file statistics."""

    def __init__(self, table: PaimonTable, files: PaimonFiles) -> None:
        super().__init__(table, files)
        self._remembered: dict[str, list[ManifestEntry]] = {}
        self._lists: dict[str, list[ManifestFileMeta]] = {}

    def manifests(self, snapshot: Snapshot | None) -> list[ManifestFileMeta]:
        name = snapshot.delta_manifest_list if snapshot is not None else ""  # each commit writes its own
        if name not in self._lists:
            self._lists[name] = super().manifests(snapshot)
        return self._lists[name]

    def expect_all(self, snapshots: Sequence[Snapshot]) -> None:
        """Prefetch the manifest lists of these snapshots, then their manifests. A missing file raises later."""
        new = [snapshot for snapshot in snapshots if snapshot.delta_manifest_list not in self._lists]
        lists = [named for snapshot in new for named in manifest_lists(snapshot)]
        self._files.expect((f"{self._folder}/{name}", size_bytes or 0) for name, size_bytes in lists)
        sizes: dict[str, int] = {}
        for snapshot in new:
            with suppress(SnapshotExpiredError):
                sizes.update((manifest.file_name, manifest.file_size or 0) for manifest in self.manifests(snapshot))
        missing = ((name, size_bytes) for name, size_bytes in sizes.items() if name not in self._remembered)
        self._files.expect((f"{self._folder}/{name}", size_bytes) for name, size_bytes in missing)

    def changelog(self, snapshot: Snapshot) -> Sequence[ManifestFileMeta]:
        if snapshot.changelog_manifest_list is None:
            return ()
        with paimon_metadata(self._table.location):
            manifests: list[ManifestFileMeta] = ManifestListManager(self._store).read(snapshot.changelog_manifest_list)
        return manifests

    def all_entries(self, manifests: Sequence[ManifestFileMeta]) -> list[list[ManifestEntry]]:
        missing = [manifest for manifest in manifests if manifest.file_name not in self._remembered]
        for manifest, entries in zip(missing, parallel_map(self.entries, missing), strict=True):
            self._remembered[manifest.file_name] = entries
        return [self._remembered[manifest.file_name] for manifest in manifests]

    def entries(self, manifest: ManifestFileMeta) -> list[ManifestEntry]:
        self._expect(manifest.file_name, manifest.file_size)
        with paimon_metadata(self._table.location):
            entries: list[ManifestEntry] = ManifestFileManager(self._store).read(manifest.file_name, drop_stats=True)
        return entries
