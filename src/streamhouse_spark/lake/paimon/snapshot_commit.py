"""Snapshot commits of the package: manifests written by Paimon's classes, validated in every attempt, and committed by
put-if-absent.

An attempt loads the latest state, validates the change against it, writes manifests, and puts the snapshot with the
next number. So no commit can be between validation and commit, in any attempt. The snapshot contains the uuid of the
commit: if the storage does not report the outcome, the snapshot shows it. No error path deletes a file, so the files of
a failed attempt are orphans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from pypaimon.data.timestamp import Timestamp
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.manifest.schema.manifest_file_meta import ManifestFileMeta
from pypaimon.manifest.schema.simple_stats import SimpleStats
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.row.generic_row import GenericRow

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError, CorruptDataError, SnapshotExpiredError
from streamhouse_spark.lake.metadata_cache import cache_metadata
from streamhouse_spark.lake.paimon.file_io import StorageFileIO, translate_metadata_errors
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec, decode_field
from streamhouse_spark.lake.paimon.manifests import ADD, DELETE, MetadataReader, key_of
from streamhouse_spark.lake.paimon.merge_tree import describe_keyed_file
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding, round_cache
from streamhouse_spark.lake.snapshot_properties import COMMIT_PROPERTY, next_snapshot_time_ms
from streamhouse_spark.lake.types import COMMIT_USER, LakeFile
from streamhouse_spark.storage.prefetch import call_both, map_with_store_concurrency

ATTEMPTS_MAX = 20
MANIFESTS_MIN_TO_MERGE = 30
MANIFEST_BYTES_TARGET = 8 << 20
REMOVED_SHARE_MIN = 0.1
"""Minimum share of removed files in large manifests for rewriting them without these files."""
NOT_BEFORE_PROPERTY = "streamhouse-files-not-before-ms"
"""Rounds planned before this store time must not commit, because orphan removal may have deleted their files."""
SNAPSHOT_VERSION = 3


@dataclass(frozen=True, slots=True)
class SnapshotUpdate:
    """A change of the snapshot that is the latest at the commit."""

    added: Sequence[LakeFile] = ()
    removes_all: bool = False
    """Whether to remove all data files of the table."""
    removed: Sequence[ManifestEntry] = ()
    """Data files to remove, all of which must be live."""
    removed_at: Collection[str] = ()
    """Locations of more data files to remove, all of which must be live."""
    is_overwrite: bool = False
    """Whether rows of removed files are removed."""
    is_compaction: bool = False
    """Whether other files have the same rows, so that change readers skip the snapshot."""
    properties: Mapping[str, str] = field(default_factory=dict)


Validation = Callable[[PaimonTable], SnapshotUpdate]
"""Validates a change against this state and returns the change, or raises an error."""


def files_not_before_ms(binding: PaimonTableBinding, snapshot: Snapshot | None) -> int:
    """Return the orphan cutoff in the package's latest snapshot, which repeats it. 0 without orphan removal."""
    own = binding.snapshots.newest_own(snapshot)
    return int((own.properties or {}).get(NOT_BEFORE_PROPERTY, "0")) if own is not None else 0


def commit_snapshot(binding: PaimonTableBinding, validate: Validation) -> Snapshot:
    """Commit the change in one snapshot after the latest one.

    Raises the errors of ``validate``, `CommitConflictError` after too many conflicts or if a writer replaced the
    snapshot by a rename, `CommitStateUnknownError`, or `StorageError` if nothing was committed.
    """
    commit_uuid = binding.world.ids.new_uuid()
    for attempt in range(ATTEMPTS_MAX):
        binding.world.wait_to_retry(attempt)
        round_cache.forget()
        table = binding.require()
        change = _validate_change(binding, table, validate)
        try:
            snapshot, written = _SnapshotBuilder(binding, table, change, commit_uuid).build()
        except SnapshotExpiredError as error:
            _require_overtaken(binding, table, error)
            continue
        _write_metadata(binding, written)
        if binding.snapshots.put(snapshot):
            round_cache.forget()
            _publish(binding, snapshot)
            return snapshot
    raise CommitConflictError(
        f"lake table {binding.location}: {ATTEMPTS_MAX} attempts conflicted with other writers; retry later"
    )


def _validate_change(binding: PaimonTableBinding, table: PaimonTable, validate: Validation) -> SnapshotUpdate:
    """Return the validated change. Prefetches the manifest lists of the latest snapshot, which the new one extends."""
    reader = MetadataReader(table, StorageFileIO(binding.files))
    change, _ = call_both(binding.storage, partial(validate, table), partial(reader.expect_lists, table.snapshot))
    return change


def _publish(binding: PaimonTableBinding, snapshot: Snapshot) -> None:
    """Write the hints for a snapshot that was just stored, and require that no other writer has replaced it."""
    snapshots = binding.snapshots
    call_both(
        binding.storage, partial(snapshots.write_hints, snapshot), partial(snapshots.require_not_replaced, snapshot)
    )


def _write_metadata(binding: PaimonTableBinding, written: Mapping[str, bytes]) -> None:
    """Write new files by location, concurrently on a remote store."""

    def write(file: tuple[str, bytes]) -> None:
        location, data = file
        with binding.storage.create(binding.files.key_of(location)) as sink:
            sink.write(data)

    for _ in map_with_store_concurrency(binding.storage, write, list(written.items())):
        pass
    cache_metadata(binding.storage, {binding.files.key_of(location): data for location, data in written.items()})


def _require_overtaken(binding: PaimonTableBinding, table: PaimonTable, error: SnapshotExpiredError) -> None:
    """Raise ``error`` unless there is a newer snapshot. Only then may metadata of the parent be missing."""
    newest = binding.snapshots.newest()
    if newest is not None and table.snapshot is not None and newest.id == table.snapshot.id:
        raise CorruptDataError(
            f"lake table {table.location}: metadata of its latest snapshot {newest.id} is missing ({error}); restore "
            "it, or rebuild the lake from the log (streamhouse retier)"
        ) from error


class _SnapshotBuilder:
    """Builds the manifests and manifest lists of one attempt in memory."""

    def __init__(
        self, binding: PaimonTableBinding, table: PaimonTable, change: SnapshotUpdate, commit_uuid: str
    ) -> None:
        self._table = table
        self._change = change
        self._commit_uuid = commit_uuid
        self._binding = binding
        self._world = binding.world
        self._now_ms = binding.world.clock.now_ms()
        self._files = StorageFileIO(binding.files)
        self._reader = MetadataReader(table, self._files)
        store = table.store(self._files)
        self._manifests = ManifestFileManager(store)
        self._lists = ManifestListManager(store)

    def build(self) -> tuple[Snapshot, dict[str, bytes]]:
        """Return the snapshot, and location → bytes of the files to store before it."""
        parent = self._table.snapshot
        with translate_metadata_errors(self._table.location):
            changes = [*self._removed_entries(), *(self._entry(file) for file in self._change.added)]
            name = f"manifest-list-{self._world.ids.new_uuid()}"
            base_size = self._lists.write(f"{name}-0", self._merge_manifests(self._reader.manifests(parent)))
            delta_size = self._lists.write(f"{name}-1", self._manifest(changes))
        time_ms, clock_properties = next_snapshot_time_ms(self._now_ms, parent.time_millis if parent else 0)
        num_added = sum((1 if e.kind == ADD else -1) * e.file.row_count for e in changes)
        not_before_ms = files_not_before_ms(self._binding, parent)
        snapshot = Snapshot(
            version=SNAPSHOT_VERSION,
            id=parent.id + 1 if parent else 1,
            schema_id=self._table.schema.id,
            base_manifest_list=f"{name}-0",
            base_manifest_list_size=base_size,
            delta_manifest_list=f"{name}-1",
            delta_manifest_list_size=delta_size,
            total_record_count=(parent.total_record_count or 0 if parent else 0) + num_added,
            delta_record_count=num_added,
            commit_user=COMMIT_USER,
            commit_identifier=parent.id + 1 if parent else 1,
            commit_kind=self._kind,
            time_millis=time_ms,
            watermark=parent.watermark if parent else None,
            index_manifest=parent.index_manifest if parent else None,
            next_row_id=parent.next_row_id if parent else None,
            properties={
                **({NOT_BEFORE_PROPERTY: str(not_before_ms)} if not_before_ms else {}),
                **clock_properties,
                **self._change.properties,
                COMMIT_PROPERTY: self._commit_uuid,
            },
            uuid=self._commit_uuid,
        )
        return snapshot, self._files.written

    @property
    def _kind(self) -> str:
        if self._change.is_compaction:
            return "COMPACT"
        return "OVERWRITE" if self._change.removes_all or self._change.is_overwrite else "APPEND"

    def _removed_entries(self) -> list[ManifestEntry]:
        change = self._change
        if not change.removes_all and not change.removed and not change.removed_at:
            return []
        live = self._reader.live_entries(self._table.snapshot)
        removed = live if change.removes_all else [*self._live_entries_to_remove(live)]
        return [ManifestEntry(DELETE, e.partition, e.bucket, e.total_buckets, e.file) for e in removed]

    def _live_entries_to_remove(self, live: Sequence[ManifestEntry]) -> Iterator[ManifestEntry]:
        """Yield the files that the change removes. Raises `CommitConflictError` if another commit removed one."""
        present = {key_of(entry) for entry in live}
        missing = [entry.file.file_name for entry in self._change.removed if key_of(entry) not in present]
        by_location = {self._reader.location(entry): entry for entry in live} if self._change.removed_at else {}
        missing += [location for location in self._change.removed_at if location not in by_location]
        if missing:
            raise CommitConflictError(
                f"lake table {self._table.location}: another commit removed the file {missing[0]}; retry"
            )
        yield from self._change.removed
        yield from (by_location[location] for location in self._change.removed_at)

    def _entry(self, file: LakeFile) -> ManifestEntry:
        spec = PaimonFileSpec(self._table.schemas[file.schema_id], self._table.location)
        partition = [row.values[0] for row in spec.partition(file.partition)]
        return ManifestEntry(
            ADD,
            GenericRow(partition, spec.partition_fields),
            spec.bucket_of(file.bucket),
            spec.num_buckets,
            _to_data_file(file, spec, self._now_ms, _COMPACTED if self._change.is_compaction else _APPENDED),
        )

    def _merge_manifests(self, manifests: list[ManifestFileMeta]) -> list[ManifestFileMeta]:
        """Merge small manifests if there are many, without files that were both added and removed.

        So the cost of a commit does not grow with the number of rounds. It is bounded by the small manifests, and
        sometimes by their files.
        """
        small = [m for m in manifests if m.file_size < MANIFEST_BYTES_TARGET]
        if len(small) < MANIFESTS_MIN_TO_MERGE:
            return manifests
        joined = {m.file_name for m in small}
        large = [m for m in manifests if m.file_name not in joined]
        remaining = self._reader.remaining_entries(small)
        num_removed = sum(entry.kind == DELETE for entry in remaining) + sum(m.num_deleted_files for m in large)
        if num_removed and num_removed >= REMOVED_SHARE_MIN * sum(m.num_added_files for m in large):
            return self._manifest(self._reader.remaining_entries(manifests))
        return [*large, *self._manifest(remaining)]

    def _manifest(self, entries: list[ManifestEntry]) -> list[ManifestFileMeta]:
        name = f"manifest-{self._world.ids.new_uuid()}"
        written: list[ManifestFileMeta] = self._manifests.rolling_write(entries, MANIFEST_BYTES_TARGET, name)
        return written


_APPENDED, _COMPACTED = 0, 1
"""Paimon's codes for the source of a file."""


def _to_data_file(file: LakeFile, spec: PaimonFileSpec, now_ms: int, source: int) -> DataFileMeta:
    """Return Paimon's description of a file that a task wrote. Its sequence numbers are the log's offsets."""
    name = file.location.rpartition("/")[2]
    is_canonical = file.location == spec.canonical_location(file.partition, file.bucket, name)
    low, high, nulls = (file.columns[group] for group in ("lower_bounds", "upper_bounds", "null_counts"))
    fields = [field for field in spec.schema.fields if field.id in nulls]
    empty = GenericRow([], [])

    def row(bounds: Mapping[int, Any]) -> GenericRow:
        return GenericRow([decode_field(bounds[field.id], field) for field in fields], fields)

    meta = DataFileMeta(
        file_name=name,
        file_size=file.size_bytes,
        row_count=file.num_rows,
        min_key=empty,
        max_key=empty,
        key_stats=SimpleStats.empty_stats(),
        value_stats=SimpleStats(row(low), row(high), [nulls[field.id] for field in fields]),
        min_sequence_number=file.offsets.start,
        max_sequence_number=file.offsets.end - 1,
        schema_id=file.schema_id,
        level=0,
        extra_files=[],
        creation_time=Timestamp.from_epoch_millis(now_ms),
        delete_row_count=0,
        file_source=source,
        value_stats_cols=[field.name for field in fields],
        external_path=None if is_canonical else file.location,
    )
    return meta if file.keys is None else describe_keyed_file(meta, file.keys, spec.schema)
