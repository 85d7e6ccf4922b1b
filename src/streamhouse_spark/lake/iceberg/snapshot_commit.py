"""Snapshot commits of the package: built from public parts of pyiceberg, validated in every attempt, and committed by
the catalog.

An attempt loads the latest metadata, validates the change against it, writes manifests, and commits with the
requirement that the branch has not changed. So no commit can be between validation and commit, in any attempt. The
snapshot contains the uuid of the commit: if the catalog does not report the outcome, the snapshot chain shows it. No
error path deletes a file, so the files of a failed attempt are orphans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any, Literal, cast

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)
from pyiceberg.typedef import Identifier

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError, CommitStateUnknownError, CorruptDataError, StreamhouseError
from streamhouse_spark.lake.iceberg.file_io import (
    StorageFileIO,
    prefetch_files,
    read_snapshot_manifests,
    translate_catalog_errors,
)
from streamhouse_spark.lake.iceberg.metadata_versions import round_cache
from streamhouse_spark.lake.iceberg.schema import PartitionPaths, partition_record
from streamhouse_spark.lake.iceberg.snapshots import describe_snapshot, find_commit, own_offsets
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.snapshot_properties import COMMIT_PROPERTY, USER_PROPERTY, next_snapshot_time_ms
from streamhouse_spark.lake.types import COMMIT_USER, LakeFile, LakeSnapshot
from streamhouse_spark.storage.prefetch import call_both

MANIFESTS_MIN_TO_MERGE = 10
MANIFEST_BYTES_TARGET = 8 << 20

NOT_BEFORE_PROPERTY = "streamhouse.files-not-before-ms"
"""Table property: a store time. Rounds planned earlier must not commit, because their files may be deleted."""
OWN_PLACES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.enabled",
    "write.location-provider.impl",
    NOT_BEFORE_PROPERTY,
)
"""Properties of a lake table with its own locations or its orphan removal.

Another table that starts with its files does not inherit them.
"""
ATTEMPTS_MAX = 20


@dataclass(frozen=True, slots=True)
class SnapshotUpdate:
    """A change of the snapshot that is current at the commit."""

    operation: Operation
    added: Sequence[LakeFile] = ()
    """Data files and delete files to add."""
    removed: Sequence[str] = ()
    """Locations of data files to remove, all of which must be live."""
    removed_deletes: Sequence[str] = ()
    """Locations of delete files to remove, all of which must be live."""
    removes_all: bool = False
    """Whether to remove all data and delete files of the table."""
    summary: Mapping[str, str] = field(default_factory=dict)
    merges_all_manifests: bool = False
    """Whether to merge all manifests as in `group_manifests`, instead of only runs of small ones."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties to set on the table."""

    @property
    def moves_tag(self) -> bool:
        """Whether the package's tag moves to the snapshot, because it has offsets."""
        return bool(self.summary)


class SnapshotBuilder:
    """Writes the manifests and the manifest list of one attempt."""

    def __init__(self, table: Table, change: SnapshotUpdate, commit_uuid: str, attempt: int, world: World) -> None:
        self._table = table
        self._metadata = table.metadata
        self._parent = table.metadata.current_snapshot()
        self._change = change
        self._name = f"{commit_uuid}-{attempt}"
        self._commit_uuid = commit_uuid
        self._world = world
        self._snapshot_id = int(world.ids.new_uuid()[:16], 16) >> 1
        self._num_manifests = 0
        self._written: dict[str, bytes] = {}
        """Location → bytes of files that are stored together, before any metadata references them."""

    def build(self) -> tuple[Snapshot, tuple[TableUpdate, ...]]:
        manifests, removed = self._manifests()
        list_location = self._location(f"snap-{self._snapshot_id}-{self._name}.avro")
        sequence_number = self._metadata.next_sequence_number()
        parent_id = self._parent.snapshot_id if self._parent else None
        time_ms, clock_properties = next_snapshot_time_ms(self._world.clock.now_ms(), self._metadata.last_updated_ms)
        with write_manifest_list(
            format_version=self._metadata.format_version,
            output_file=self._output(list_location),
            snapshot_id=self._snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=sequence_number,
            avro_compression="deflate",
        ) as writer:
            writer.add_manifests(manifests)
        if isinstance(self._table.io, StorageFileIO):
            self._table.io.store_all(self._written)
        snapshot = Snapshot.model_validate(
            {
                "snapshot-id": self._snapshot_id,
                "parent-snapshot-id": parent_id,
                "sequence-number": sequence_number,
                "timestamp-ms": time_ms,
                "manifest-list": list_location,
                "summary": self._summary(removed, clock_properties),
                "schema-id": self._metadata.current_schema_id,
            }
        )
        updates: list[TableUpdate] = [
            *([SetPropertiesUpdate(updates=dict(self._change.properties))] if self._change.properties else []),
            AddSnapshotUpdate(snapshot=snapshot),
            _set_ref(MAIN_BRANCH, SnapshotRefType.BRANCH, self._snapshot_id, self._metadata),
        ]
        if self._change.moves_tag:
            updates.append(_set_ref(COMMIT_USER, SnapshotRefType.TAG, self._snapshot_id, self._metadata))
        return snapshot, tuple(updates)

    def _manifests(self) -> tuple[list[ManifestFile], list[DataFile]]:
        """Return the new snapshot's manifests, and the removed files."""
        parents = read_snapshot_manifests(self._table.io, self._parent) if self._parent else []
        parents = [m for m in parents if m.has_added_files() or m.has_existing_files()]
        if self._change.removes_all:
            emptied, removed = self._delete_all(parents)
            return [
                *self._write_added(ManifestContent.DATA),
                *self._write_added(ManifestContent.DELETES),
                *emptied,
            ], removed
        data, removed_data = self._exclude_removed(ManifestContent.DATA, parents)
        deletes, removed_deletes = self._exclude_removed(ManifestContent.DELETES, parents)
        manifests = [
            *self._write_added(ManifestContent.DATA),
            *self._merge_manifests(data, ManifestContent.DATA),
            *self._write_added(ManifestContent.DELETES),
            *self._merge_manifests(deletes, ManifestContent.DELETES),
        ]
        return manifests, [*removed_data, *removed_deletes]

    def _write_added(self, content: ManifestContent) -> list[ManifestFile]:
        """Write a manifest of the added files for each partition spec."""
        by_spec: dict[int, list[ManifestEntry]] = {}
        for file in self._change.added:
            if (file.deletes is None) != (content == ManifestContent.DATA):
                continue
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=to_data_file(file, self._metadata),
            )
            by_spec.setdefault(file.spec_id, []).append(entry)
        return [self._write_manifest(content, spec_id, entries) for spec_id, entries in by_spec.items()]

    def _exclude_removed(
        self, content: ManifestContent, manifests: Iterable[ManifestFile]
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """Return the parent's manifests of one kind without the removed files, and those files.

        Delete manifests with removed files are merged into one, because a round replaces those of many earlier rounds.
        """
        is_data = content == ManifestContent.DATA
        manifests = [m for m in manifests if m.content == content]
        locations = set(self._change.removed if is_data else self._change.removed_deletes)
        if not locations:
            return manifests, []
        remaining: list[ManifestFile] = []
        removed: list[DataFile] = []
        rewritten: dict[int, list[ManifestEntry]] = {}
        self._expect(manifests)
        for manifest in manifests:
            entries = manifest.fetch_manifest_entry(self._table.io)
            removed_files = [e.data_file for e in entries if e.data_file.file_path in locations]
            removed += removed_files
            if not removed_files:
                remaining.append(manifest)
                continue
            carried = [self._carry_entry(e, locations) for e in entries]
            if is_data:
                remaining.append(self._write_manifest(content, manifest.partition_spec_id, carried))
            else:
                rewritten.setdefault(manifest.partition_spec_id, []).extend(carried)
        missing = locations - {f.file_path for f in removed}
        if missing:
            raise CommitConflictError(
                f"lake table {self._metadata.location}: {len(missing)} files that this commit replaces are no longer "
                f"live, for example {min(missing)}; retry"
            )
        merged = [self._write_manifest(content, spec_id, entries) for spec_id, entries in rewritten.items()]
        return [*merged, *remaining], removed

    def _carry_entry(self, entry: ManifestEntry, removed: set[str]) -> ManifestEntry:
        if entry.data_file.file_path in removed:
            return _manifest_entry(entry, ManifestEntryStatus.DELETED, self._snapshot_id)
        return _manifest_entry(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id)

    def _delete_all(self, manifests: list[ManifestFile]) -> tuple[list[ManifestFile], list[DataFile]]:
        """Return manifests that mark each data file as deleted, and the removed files. Delete files are omitted."""
        retained, removed = [], []
        self._expect(manifests)
        for manifest in manifests:
            entries = manifest.fetch_manifest_entry(self._table.io)
            removed += [e.data_file for e in entries]
            if manifest.content == ManifestContent.DATA:
                deleted = [_manifest_entry(e, ManifestEntryStatus.DELETED, self._snapshot_id) for e in entries]
                retained.append(self._write_manifest(ManifestContent.DATA, manifest.partition_spec_id, deleted))
        return retained, removed

    def _merge_manifests(self, manifests: list[ManifestFile], content: ManifestContent) -> list[ManifestFile]:
        """Merge small manifests, newest first, so that their number grows with the logarithm of the number of commits.

        Merges a run of at least `MANIFESTS_MIN_TO_MERGE`. The run ends before a manifest that is much larger than all
        newer ones together, because rewriting it is not worthwhile.
        """
        if self._change.merges_all_manifests:
            return [self._join_manifests(content, group) for group in group_manifests(manifests)]
        mergeable = [
            m
            for m in manifests
            if m.partition_spec_id == self._metadata.default_spec_id and m.added_snapshot_id != self._snapshot_id
        ]
        newest_first = sorted(mergeable, key=lambda m: m.sequence_number or 0, reverse=True)
        run: list[ManifestFile] = []
        run_bytes = 0
        for manifest in newest_first:
            is_much_larger = manifest.manifest_length > 4 * max(run_bytes, 1) and len(run) >= MANIFESTS_MIN_TO_MERGE
            if is_much_larger or run_bytes + manifest.manifest_length > MANIFEST_BYTES_TARGET:
                break
            run.append(manifest)
            run_bytes += manifest.manifest_length
        if len(run) < MANIFESTS_MIN_TO_MERGE:
            return manifests
        joined = {manifest.manifest_path for manifest in run}
        return [self._join_manifests(content, run), *(m for m in manifests if m.manifest_path not in joined)]

    def _join_manifests(self, content: ManifestContent, manifests: Sequence[ManifestFile]) -> ManifestFile:
        """Write one manifest with the live entries of several manifests of one partition spec."""
        if len(manifests) == 1:
            return manifests[0]
        self._expect(manifests)
        entries = [
            _manifest_entry(e, ManifestEntryStatus.EXISTING, e.snapshot_id)
            for manifest in manifests
            for e in manifest.fetch_manifest_entry(self._table.io)
        ]
        return self._write_manifest(content, manifests[0].partition_spec_id, entries)

    def _expect(self, manifests: Iterable[ManifestFile]) -> None:
        prefetch_files(self._table.io, ((m.manifest_path, m.manifest_length) for m in manifests))

    def _write_manifest(self, content: ManifestContent, spec_id: int, entries: Sequence[ManifestEntry]) -> ManifestFile:
        location = self._location(f"{self._name}-m{self._num_manifests}.avro")
        self._num_manifests += 1
        spec, schema = self._metadata.specs()[spec_id], self._metadata.schema()
        output = self._output(location)
        with self._writer(content, spec, schema, output) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _output(self, location: str) -> OutputFile:
        io = self._table.io
        return io.open_collected(self._written, location) if isinstance(io, StorageFileIO) else io.new_output(location)

    def _writer(
        self, content: ManifestContent, spec: PartitionSpec, schema: Schema, output: OutputFile
    ) -> ManifestWriter:
        if content == ManifestContent.DELETES:
            return _DeleteManifestWriter(spec, schema, output, self._snapshot_id, "deflate")
        version = self._metadata.format_version
        return write_manifest(version, spec, schema, output, self._snapshot_id, "deflate")

    def _summary(self, removed: Sequence[DataFile], clock_properties: Mapping[str, str]) -> Summary:
        collector = SnapshotSummaryCollector()
        schema, specs = self._metadata.schema(), self._metadata.specs()
        paths = {spec_id: cast("PartitionSpec", PartitionPaths(spec)) for spec_id, spec in specs.items()}
        for file in self._change.added:
            collector.add_file(to_data_file(file, self._metadata), schema, paths[file.spec_id])
        for data in removed:
            collector.remove_file(data, schema, paths[data.spec_id])
        properties = {
            **collector.build(),
            **self._change.summary,
            **clock_properties,
            USER_PROPERTY: COMMIT_USER,
            COMMIT_PROPERTY: self._commit_uuid,
        }
        # pyiceberg computes totals only for appends and overwrites. A replace is counted like an overwrite.
        adds_up_as = Operation.APPEND if self._change.operation == Operation.APPEND else Operation.OVERWRITE
        previous = self._parent.summary if self._parent else None
        totals = update_snapshot_summaries(Summary(adds_up_as, **properties), previous)
        return Summary(self._change.operation, **totals.additional_properties)

    def _location(self, name: str) -> str:
        return self._table.location_provider().new_metadata_location(name)


def group_manifests(manifests: Iterable[ManifestFile]) -> list[list[ManifestFile]]:
    """Group manifests of one kind and partition spec, up to `MANIFEST_BYTES_TARGET` per group of several."""
    groups: list[list[ManifestFile]] = []
    filling: dict[tuple[ManifestContent, int], list[ManifestFile]] = {}
    for manifest in manifests:
        kind = (manifest.content, manifest.partition_spec_id)
        group = filling.get(kind)
        num_bytes = sum(m.manifest_length for m in group or ()) + manifest.manifest_length
        if group is None or num_bytes > MANIFEST_BYTES_TARGET:
            group = filling[kind] = []
            groups.append(group)
        group.append(manifest)
    return groups


class _DeleteManifestWriter(ManifestWriterV2):
    """Writes a manifest of delete files, which its header and the manifest list mark as such."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _set_ref(name: str, kind: SnapshotRefType, snapshot_id: int, metadata: TableMetadata) -> SetSnapshotRefUpdate:
    """Return the update that points a reference to a snapshot and keeps its retention."""
    old = metadata.refs.get(name)
    return SetSnapshotRefUpdate.model_validate(
        {
            "ref-name": name,
            "type": kind,
            "snapshot-id": snapshot_id,
            "max-ref-age-ms": old.max_ref_age_ms if old else None,
            "max-snapshot-age-ms": old.max_snapshot_age_ms if old else None,
            "min-snapshots-to-keep": old.min_snapshots_to_keep if old else None,
        }
    )


def _manifest_entry(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def to_data_file(file: LakeFile, metadata: TableMetadata) -> DataFile:
    """Return Iceberg's description of a file that a task wrote."""
    spec = metadata.specs()[file.spec_id]
    fields: dict[str, Any] = {
        "content": DataFileContent.DATA if file.deletes is None else DataFileContent.POSITION_DELETES,
        "file_path": file.location,
        "file_format": FileFormat.PARQUET,
        "partition": partition_record(spec, metadata.schema(), file.partition),
        "record_count": file.num_rows,
        "file_size_in_bytes": file.size_bytes,
        "split_offsets": list(file.split_offsets),
        "sort_order_id": None,
        "equality_ids": None,
        "key_metadata": None,
    }
    fields.update((name, dict(values)) for name, values in file.columns.items())
    data = DataFile.from_args(**fields)
    data.spec_id = file.spec_id
    return data


Validation = Callable[[TableMetadata], SnapshotUpdate]
"""Validates a change against this metadata and returns the change, or raises an error."""


def commit_snapshot(binding: IcebergTableBinding, validate: Validation) -> LakeSnapshot:
    """Commit the change in one snapshot after the latest one.

    Raises the errors of ``validate``, `CommitConflictError` after too many conflicts, and `CommitStateUnknownError`.
    """
    commit_uuid, name = binding.world.ids.new_uuid(), ".".join(binding.identifier)
    for attempt in range(ATTEMPTS_MAX):
        binding.world.wait_to_retry(attempt)
        round_cache.forget()
        with round_cache.open():
            snapshot = _attempt_commit(binding, validate, commit_uuid, attempt)
        if snapshot is not None:
            return describe_snapshot(snapshot, own_offsets(snapshot, binding.spec.table_uuid, name))
    raise CommitConflictError(f"lake table {name}: {ATTEMPTS_MAX} attempts conflicted with other writers; retry later")


def _attempt_commit(
    binding: IcebergTableBinding, validate: Validation, commit_uuid: str, attempt: int
) -> Snapshot | None:
    """Attempt the commit on the loaded version. Return the snapshot, or None if another writer won."""
    catalog, identifier = binding.catalog, binding.identifier
    with translate_catalog_errors(f"{'.'.join(identifier)} was loaded"):
        table = catalog.load_table(identifier)
    committed = find_commit(table.metadata, commit_uuid)
    if committed is not None:
        return committed
    change = _validate_change(table, validate)
    try:
        snapshot, updates = SnapshotBuilder(table, change, commit_uuid, attempt, binding.world).build()
    except FileNotFoundError as error:
        round_cache.forget()
        _require_overtaken(catalog, table, error)
        return None
    try:
        catalog.commit_table(table, _requirements(table.metadata, catalog), updates)
    except CommitFailedException:
        return None
    except Exception as error:  # any error of a catalog's client; the table itself shows the outcome
        round_cache.forget()
        committed = _find_committed(catalog, identifier, commit_uuid, error)
        if committed is None:
            raise
        return committed
    return snapshot


def _validate_change(table: Table, validate: Validation) -> SnapshotUpdate:
    """Return the validated change. Prefetches the current snapshot's manifest list, which the new one extends."""
    head = table.metadata.current_snapshot()
    if head is None or not isinstance(table.io, StorageFileIO):
        return validate(table.metadata)
    fetch = partial(table.io.fetch, head.manifest_list)
    change, _ = call_both(table.io.files.storage, partial(validate, table.metadata), fetch)
    return change


def _require_overtaken(catalog: Catalog, table: Table, error: FileNotFoundError) -> None:
    """Raise ``error`` unless there is a newer snapshot. Only then may metadata of the parent be missing."""
    with translate_catalog_errors(f"{'.'.join(table.name())} was loaded"):
        current_id = catalog.load_table(table.name()).metadata.current_snapshot_id
    if current_id == table.metadata.current_snapshot_id:
        raise CorruptDataError(
            f"lake table {table.location()}: metadata of its current snapshot {current_id} is missing ({error}); "
            "restore it, or rebuild the lake from the log (streamhouse retier)"
        ) from error


def _find_committed(catalog: Catalog, identifier: Identifier, commit_uuid: str, error: Exception) -> Snapshot | None:
    """Return the snapshot if the commit succeeded despite the error, or None if the error is final."""
    try:
        metadata = catalog.load_table(identifier).metadata
    except Exception as second:  # noqa: BLE001 - whatever a catalog's client raises
        raise CommitStateUnknownError(
            f"lake table {'.'.join(identifier)}: the outcome of the commit is unknown ({error}), and reading the table "
            f"failed ({second}); retry the round, which does not repeat committed work"
        ) from error
    snapshot = find_commit(metadata, commit_uuid)
    if snapshot is None and isinstance(error, CommitStateUnknownException):
        raise CommitStateUnknownError(
            f"lake table {'.'.join(identifier)}: the commit may still be in flight ({error}); retry the round, which "
            "does not repeat committed work"
        ) from error
    if snapshot is None and not isinstance(error, StreamhouseError):
        raise CommitStateUnknownError(
            f"lake table {'.'.join(identifier)}: the catalog failed during the commit ({type(error).__name__}: "
            f"{error}) and does not show it; retry the round"
        ) from error
    return snapshot


def _requirements(metadata: TableMetadata, catalog: Catalog) -> tuple[TableRequirement, ...]:
    """Return the requirements that make the catalog commit only on the validated state."""
    head = metadata.refs.get(MAIN_BRANCH)
    # Only catalogs that check requirements in this process support ours. See `expiry` for others.
    own = (_AssertNotBefore(not_before_ms=not_before_ms(metadata)),) if isinstance(catalog, MetastoreCatalog) else ()
    requirements: tuple[Any, ...] = (
        *own,
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": head.snapshot_id if head else None}),
        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
    )
    return requirements


def not_before_ms(metadata: TableMetadata) -> int:
    return int(metadata.properties.get(NOT_BEFORE_PROPERTY, "0"))


class _AssertNotBefore(ValidatableTableRequirement):
    """The requirement that no orphan removal started after the commit was validated."""

    type: Literal["streamhouse-assert-not-before"] = "streamhouse-assert-not-before"
    not_before_ms: int

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or not_before_ms(base_metadata) != self.not_before_ms:
            raise CommitFailedException("orphan files were removed after this commit was validated")
