"""The files of a Paimon table that something still needs: snapshots, tags and branches.

Tags and branches can only be found by listing, by any engine. So can snapshots, but the newest ones are read one by
one downwards, so that no listing that lags hides one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.manifest.schema.manifest_file_meta import ManifestFileMeta
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.core.parallel import in_parallel
from streamhouse_spark.errors import CommitConflictError, CorruptDataError, LakeMismatchError, SnapshotExpiredError
from streamhouse_spark.lake.paimon.file_io import MANIFEST_FOLDER, PaimonFiles, paimon_metadata
from streamhouse_spark.lake.paimon.location import PaimonLocation, PaimonTable
from streamhouse_spark.lake.paimon.manifests import ADD, FileKey, MetadataReader, key_of
from streamhouse_spark.lake.paimon.snapshots import SnapshotFolder


def history(place: PaimonLocation, newest: Snapshot) -> list[Snapshot]:
    """Return the snapshots that follow each other without a gap up to the newest one, oldest first."""
    listed = [snapshot_id for snapshot_id in place.snapshots.ids() if snapshot_id < newest.id]
    read = {s.id: s for s in in_parallel(place.snapshots.find, listed) if s is not None}
    found = [newest]
    while (below := read.get(found[-1].id - 1) or place.snapshots.find(found[-1].id - 1)) is not None:
        found.append(below)
    return found[::-1]


def strays(place: PaimonLocation, oldest: Snapshot) -> list[Snapshot]:
    """Return snapshots below a gap: a writer that slept put them in place of expired ones. They do not count."""
    listed = [snapshot_id for snapshot_id in place.snapshots.ids() if snapshot_id < oldest.id]
    return [s for s in in_parallel(place.snapshots.find, listed) if s is not None]


def pinned(place: PaimonLocation) -> list[Snapshot]:
    """Return the snapshots of tags, and branches with their tags.

    Raises `LakeMismatchError` if another engine keeps changelogs beyond their snapshots, which are not read here.
    """
    location, storage = place.spec.location, place.storage
    if storage.list_names(f"{location}/changelog/"):
        raise LakeMismatchError(
            f"lake table {place.location} has changelogs that another engine keeps; expire its snapshots and remove "
            "orphans with that engine"
        )
    branches = [
        SnapshotFolder(storage, f"{location}/branch/{name}") for name in storage.list_names(f"{location}/branch/")
    ]
    of_branches = (branch.find(snapshot_id) for branch in branches for snapshot_id in branch.ids())
    of_tags = (folder.tagged(name) for folder in (place.snapshots, *branches) for name in folder.tags())
    return [snapshot for snapshot in (*of_tags, *of_branches) if snapshot is not None]


class Reach:
    """Finds the files that snapshots need, by location. Reads each manifest once."""

    def __init__(self, place: PaimonLocation, table: PaimonTable) -> None:
        self._place = place
        self._table = table
        self._reader = _RememberingReader(table, PaimonFiles(place.files))
        self._locations: dict[FileKey, list[str]] = {}

    def needed(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """Return the needed files. Raises `CommitConflictError` if a snapshot was expired meanwhile, `CorruptDataError`
        for damage.
        """
        found: set[str] = set()
        for snapshot in snapshots:
            try:
                found |= self._of(snapshot)
            except SnapshotExpiredError as error:
                raise self._missing(snapshot, error) from error
        return found

    def left_of(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """Return the files of snapshots that nothing needs, as far as their metadata still exists."""
        found: set[str] = set()
        for snapshot in snapshots:
            try:
                found |= self._of(snapshot)
            except SnapshotExpiredError:
                continue
        return found

    def _of(self, snapshot: Snapshot) -> set[str]:
        """Return the lists, manifests and live data files of a snapshot, and the files of its own changelog."""
        manifests, changelog = self._reader.manifests(snapshot), self._reader.changelog(snapshot)
        lists = (snapshot.base_manifest_list, snapshot.delta_manifest_list, snapshot.changelog_manifest_list)
        names = [*filter(None, lists)]
        for manifest in (*manifests, *changelog):
            names += [manifest.file_name, *(manifest.extra_files or ())]
        found = {f"{self._table.location}/{MANIFEST_FOLDER}/{name}" for name in names}
        for entry in (*self._reader.left(manifests), *self._reader.left(changelog)):
            if entry.kind == ADD:
                found.update(self._files(entry))
        return found

    def _files(self, entry: ManifestEntry) -> list[str]:
        key = key_of(entry)
        if key not in self._locations:  # most snapshots have most files
            location = self._reader.location(entry)
            folder = location.rpartition("/")[0]
            self._locations[key] = [location, *(f"{folder}/{name}" for name in entry.file.extra_files or ())]
        return self._locations[key]

    def _missing(self, snapshot: Snapshot, error: SnapshotExpiredError) -> CommitConflictError | CorruptDataError:
        where = f"lake table {self._table.location}"
        if self._place.snapshots.find(snapshot.id) is None:
            return CommitConflictError(f"{where} changed while its files were being looked for ({error}); try again")
        return CorruptDataError(
            f"{where}: metadata of snapshot {snapshot.id} is missing ({error}), so nothing is deleted; restore it, or "
            "expire that snapshot with another engine"
        )


class _RememberingReader(MetadataReader):
    """A reader that keeps manifests, because snapshots share most of them. Statistics of files are left out."""

    def __init__(self, table: PaimonTable, files: PaimonFiles) -> None:
        super().__init__(table, files)
        self._remembered: dict[str, list[ManifestEntry]] = {}
        self._lists: dict[str, list[ManifestFileMeta]] = {}

    def manifests(self, snapshot: Snapshot | None) -> list[ManifestFileMeta]:
        name = snapshot.delta_manifest_list if snapshot is not None else ""  # each commit makes one of its own
        if name not in self._lists:
            self._lists[name] = super().manifests(snapshot)
        return self._lists[name]

    def changelog(self, snapshot: Snapshot) -> Sequence[ManifestFileMeta]:
        if snapshot.changelog_manifest_list is None:
            return ()
        with paimon_metadata(self._table.location):
            found: list[ManifestFileMeta] = ManifestListManager(self._store).read(snapshot.changelog_manifest_list)
        return found

    def all_entries(self, manifests: Sequence[ManifestFileMeta]) -> list[list[ManifestEntry]]:
        missing = [manifest for manifest in manifests if manifest.file_name not in self._remembered]
        for manifest, entries in zip(missing, in_parallel(self.entries, missing), strict=True):
            self._remembered[manifest.file_name] = entries
        return [self._remembered[manifest.file_name] for manifest in manifests]

    def entries(self, manifest: ManifestFileMeta) -> list[ManifestEntry]:
        self._expect(manifest.file_name, manifest.file_size)
        with paimon_metadata(self._table.location):
            found: list[ManifestEntry] = ManifestFileManager(self._store).read(manifest.file_name, drop_stats=True)
        return found
