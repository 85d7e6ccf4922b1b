"""Snapshots of our own: built from public parts of pyiceberg, validated on every attempt, committed by the catalog.

An attempt loads the newest metadata, validates against exactly that, writes manifests on top of it, and asks the
catalog to commit with the requirement that the branch still points where it did. So nothing can come between the
validation and the commit: not on the first attempt, and not on a retry. The snapshot carries the uuid of the commit, so
that an outcome which the catalog cannot tell is looked up in the chain. No error path deletes a file: what was written
for a lost attempt is named by nobody, and orphan cleaning removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
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
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)
from pyiceberg.typedef import Identifier

from streamhouse_spark.clock import World
from streamhouse_spark.errors import CommitConflictError, CommitStateUnknownError, StreamhouseError
from streamhouse_spark.lake.base import COMMIT_USER, LakeFile
from streamhouse_spark.lake.iceberg_io import manifests_of
from streamhouse_spark.lake.iceberg_offsets import COMMIT_PROPERTY, USER_PROPERTY, find_commit
from streamhouse_spark.lake.iceberg_schema import partition_record

NOT_BEFORE_PROPERTY = "streamhouse.files-not-before-ms"
"""Table property: rounds planned before this store time may not commit, cleaning may have taken their files."""

ATTEMPTS_MAX = 20
RETRY_WAIT_MS = 25
RETRY_WAIT_MS_MAX = 2_000
MANIFESTS_MIN_TO_MERGE = 10
MANIFEST_BYTES_TARGET = 8 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit does to the current snapshot, whatever that is by then."""

    operation: Operation
    added: Sequence[LakeFile] = ()
    removed: Sequence[str] = ()
    """Locations of data files, each of which must be live."""
    removes_all: bool = False
    """All data and delete files go that the table has when the change is made."""
    summary: Mapping[str, str] = field(default_factory=dict)
    moves_tag: bool = True


Validation = Callable[[TableMetadata], Change]
"""Checks that the change may be made on this metadata, and says what it is. Raises what keeps it from being made."""


def commit_snapshot(catalog: Catalog, identifier: Identifier, validate: Validation, world: World) -> Snapshot:
    """Make the change in one snapshot, on whatever is newest by then.

    Raises what ``validate`` raises, `CommitConflictError` when others win too often, `CommitStateUnknownError`.
    """
    commit_uuid = world.ids.new_uuid()
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            wait_ms = min(RETRY_WAIT_MS * 2**attempt, RETRY_WAIT_MS_MAX)
            world.clock.sleep_ms(wait_ms * (0.5 + world.ids.jitter()))
        table = catalog.load_table(identifier)
        landed = find_commit(table.metadata, commit_uuid)
        if landed is not None:
            return landed
        change = validate(table.metadata)
        snapshot, updates = _SnapshotBuilder(table, change, commit_uuid, attempt, world).build()
        try:
            catalog.commit_table(table, _requirements(table.metadata, catalog), updates)
        except CommitFailedException:
            continue
        except Exception as error:  # whatever a catalog's client raises: the table itself is asked what happened
            found = _look_up(catalog, identifier, commit_uuid, error)
            if found is None:
                raise
            return found
        return snapshot
    raise CommitConflictError(
        f"lake table {'.'.join(identifier)}: other writers won {ATTEMPTS_MAX} times in a row; try again later"
    )


def _look_up(catalog: Catalog, identifier: Identifier, commit_uuid: str, error: Exception) -> Snapshot | None:
    """The snapshot, when the commit happened in spite of the error; None when the error is final."""
    try:
        metadata = catalog.load_table(identifier).metadata
    except Exception as second:  # noqa: BLE001 - whatever a catalog's client raises
        raise CommitStateUnknownError(
            f"lake table {'.'.join(identifier)}: the commit may or may not have happened ({error}), and looking it up "
            f"failed ({second}); run the same tiering again, it repeats nothing that happened"
        ) from error
    found = find_commit(metadata, commit_uuid)
    if found is None and isinstance(error, CommitStateUnknownException):
        raise CommitStateUnknownError(
            f"lake table {'.'.join(identifier)}: the commit may still happen ({error}); run the same tiering again, it "
            "repeats nothing that happened"
        ) from error
    if found is None and not isinstance(error, StreamhouseError):
        raise CommitStateUnknownError(
            f"lake table {'.'.join(identifier)}: the catalog failed while committing ({type(error).__name__}: {error}) "
            "and does not show the commit; run the same tiering again"
        ) from error
    return found


def _requirements(metadata: TableMetadata, catalog: Catalog) -> tuple[TableRequirement, ...]:
    """The catalog commits on exactly the state that was validated, or fails."""
    head = metadata.refs.get(MAIN_BRANCH)
    # Only catalogs that check requirements in this process know ours; in others no orphans are removed.
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
    """Cleaning has not begun since the commit was validated."""

    type: Literal["streamhouse-assert-not-before"] = "streamhouse-assert-not-before"
    not_before_ms: int

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or not_before_ms(base_metadata) != self.not_before_ms:
            raise CommitFailedException("files were cleaned up since this commit was validated")


class _SnapshotBuilder:
    """Writes the manifests and the manifest list of one attempt."""

    def __init__(self, table: Table, change: Change, commit_uuid: str, attempt: int, world: World) -> None:
        self._table = table
        self._metadata = table.metadata
        self._parent = table.metadata.current_snapshot()
        self._change = change
        self._name = f"{commit_uuid}-{attempt}"
        self._commit_uuid = commit_uuid
        self._world = world
        self._snapshot_id = int(world.ids.new_uuid()[:16], 16) >> 1
        self._num_manifests = 0

    def build(self) -> tuple[Snapshot, tuple[TableUpdate, ...]]:
        kept, removed = self._kept_manifests()
        manifests = [*self._added_manifest(), *self._merged(kept)]
        list_location = self._location(f"snap-{self._snapshot_id}-{self._name}.avro")
        sequence_number = self._metadata.next_sequence_number()
        parent_id = self._parent.snapshot_id if self._parent else None
        with write_manifest_list(
            format_version=self._metadata.format_version,
            output_file=self._table.io.new_output(list_location),
            snapshot_id=self._snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=sequence_number,
            avro_compression="deflate",
        ) as writer:
            writer.add_manifests(manifests)
        snapshot = Snapshot.model_validate(
            {
                "snapshot-id": self._snapshot_id,
                "parent-snapshot-id": parent_id,
                "sequence-number": sequence_number,
                "timestamp-ms": max(self._world.clock.now_ms(), self._metadata.last_updated_ms),
                "manifest-list": list_location,
                "summary": self._summary(removed),
                "schema-id": self._metadata.current_schema_id,
            }
        )
        updates: list[TableUpdate] = [
            AddSnapshotUpdate(snapshot=snapshot),
            _set_ref(MAIN_BRANCH, SnapshotRefType.BRANCH, self._snapshot_id, self._metadata),
        ]
        if self._change.moves_tag:
            updates.append(_set_ref(COMMIT_USER, SnapshotRefType.TAG, self._snapshot_id, self._metadata))
        return snapshot, tuple(updates)

    def _added_manifest(self) -> list[ManifestFile]:
        if not self._change.added:
            return []
        entries = [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=data_file(file, self._metadata),
            )
            for file in self._change.added
        ]
        return [self._write_manifest(self._metadata.default_spec_id, entries)]

    def _kept_manifests(self) -> tuple[list[ManifestFile], list[DataFile]]:
        """The parent's manifests without the removed files, and those files."""
        if self._parent is None:
            return [], []
        manifests = [
            m for m in manifests_of(self._table.io, self._parent) if m.has_added_files() or m.has_existing_files()
        ]
        if self._change.removes_all:
            return self._emptied(manifests)
        wanted = set(self._change.removed)
        if not wanted:
            return manifests, []
        kept, removed = [], []
        for manifest in manifests:
            entries = manifest.fetch_manifest_entry(self._table.io) if manifest.content == ManifestContent.DATA else []
            gone = [e for e in entries if e.data_file.file_path in wanted]
            if not gone:
                kept.append(manifest)
                continue
            removed += [e.data_file for e in gone]
            rewritten = [
                _entry(e, ManifestEntryStatus.DELETED, self._snapshot_id)
                if e.data_file.file_path in wanted
                else _entry(e, ManifestEntryStatus.EXISTING, e.snapshot_id)
                for e in entries
            ]
            kept.append(self._write_manifest(manifest.partition_spec_id, rewritten))
        missing = wanted - {f.file_path for f in removed}
        if missing:
            raise CommitConflictError(
                f"lake table {self._metadata.location}: {len(missing)} files that this commit replaces are no longer "
                f"live, for example {min(missing)}; plan again"
            )
        return kept, removed

    def _emptied(self, manifests: list[ManifestFile]) -> tuple[list[ManifestFile], list[DataFile]]:
        """Manifests that say of each data file that it is gone. Delete files have nothing left to delete."""
        kept, removed = [], []
        for manifest in manifests:
            entries = manifest.fetch_manifest_entry(self._table.io)
            removed += [e.data_file for e in entries]
            if manifest.content == ManifestContent.DATA:
                gone = [_entry(e, ManifestEntryStatus.DELETED, self._snapshot_id) for e in entries]
                kept.append(self._write_manifest(manifest.partition_spec_id, gone))
        return kept, removed

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Join small manifests, newest first, so that their number grows with the logarithm of the commits.

        A run of at least `MANIFESTS_MIN_TO_MERGE` is joined; it stops at a manifest that is much larger than all the
        newer ones together, which would be rewritten for little.
        """
        mergeable = [
            m
            for m in manifests
            if m.content == ManifestContent.DATA
            and m.partition_spec_id == self._metadata.default_spec_id
            and m.added_snapshot_id != self._snapshot_id
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
        entries = [
            _entry(e, ManifestEntryStatus.EXISTING, e.snapshot_id)
            for manifest in run
            for e in manifest.fetch_manifest_entry(self._table.io)
        ]
        joined = {manifest.manifest_path for manifest in run}
        merged = self._write_manifest(self._metadata.default_spec_id, entries)
        return [merged, *(m for m in manifests if m.manifest_path not in joined)]

    def _write_manifest(self, spec_id: int, entries: Sequence[ManifestEntry]) -> ManifestFile:
        location = self._location(f"{self._name}-m{self._num_manifests}.avro")
        self._num_manifests += 1
        with write_manifest(
            format_version=self._metadata.format_version,
            spec=self._metadata.specs()[spec_id],
            schema=self._metadata.schema(),
            output_file=self._table.io.new_output(location),
            snapshot_id=self._snapshot_id,
            avro_compression="deflate",
        ) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _summary(self, removed: Sequence[DataFile]) -> Summary:
        collector = SnapshotSummaryCollector()
        schema, specs = self._metadata.schema(), self._metadata.specs()
        for file in self._change.added:
            collector.add_file(data_file(file, self._metadata), schema, self._metadata.spec())
        for data in removed:
            collector.remove_file(data, schema, specs[data.spec_id])
        properties = {
            **collector.build(),
            **self._change.summary,
            USER_PROPERTY: COMMIT_USER,
            COMMIT_PROPERTY: self._commit_uuid,
        }
        # pyiceberg adds up totals for appends and overwrites only; a replace adds up like an overwrite.
        adds_up_as = Operation.APPEND if self._change.operation == Operation.APPEND else Operation.OVERWRITE
        previous = self._parent.summary if self._parent else None
        totals = update_snapshot_summaries(Summary(adds_up_as, **properties), previous)
        return Summary(self._change.operation, **totals.additional_properties)

    def _location(self, name: str) -> str:
        return self._table.location_provider().new_metadata_location(name)


def _set_ref(name: str, kind: SnapshotRefType, snapshot_id: int, metadata: TableMetadata) -> SetSnapshotRefUpdate:
    """Point a reference at a snapshot; how long it is kept stays as it was."""
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


def _entry(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def data_file(file: LakeFile, metadata: TableMetadata) -> DataFile:
    """Iceberg's description of a file that a task wrote."""
    spec = metadata.specs()[file.spec_id]
    fields: dict[str, Any] = {
        "content": DataFileContent.DATA,
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
