"""Clones of an Iceberg table: tables that start with a snapshot of another table and share its files.

Nothing is copied. The clone's first metadata version has the snapshot, which references the existing manifests and data
files, and the log offsets of the clone. Rounds, compaction and relocation write below the clone's location.

Each table deletes only files below its own location. A clone stores the other locations in a property and sets
Iceberg's ``gc.enabled=false``, so that other engines delete none of its files. The files remain while their owner
retains the snapshot, which its log ensures (`log.catalog.branches`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry, Summary

from streamhouse_spark.core.warehouse_layout import canonical_location
from streamhouse_spark.errors import InvalidOptionError, LakeMismatchError
from streamhouse_spark.lake.column_mapping import COLUMNS_PROPERTY, ColumnMapping
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.file_io import translate_commit_errors
from streamhouse_spark.lake.iceberg.scan import plan_tasks, require_snapshot
from streamhouse_spark.lake.iceberg.snapshot_commit import OWN_PLACES
from streamhouse_spark.lake.iceberg.snapshots import offsets_at
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.types import COMMIT_USER

SHARED_PROPERTY: Final = "streamhouse.shares-files-of"
"""Property of a clone's lake table: comma-separated locations in the warehouse whose files belong to other tables."""
_PLACES = ("write.data.path", "write.metadata.path")


def require_file_catalog(binding: IcebergTableBinding) -> None:
    """Raise `InvalidOptionError` for a lake in an external catalog."""
    if not binding.uses_files:
        raise InvalidOptionError(
            f"the lake of {binding.spec.path} is in a catalog outside the warehouse, so other engines may delete files "
            "of a clone; copy its rows instead (CREATE TABLE … AS SELECT)"
        )


def clone(binding: IcebergTableBinding, target: IcebergTableBinding, snapshot_id: int) -> None:
    """Create the lake table of a clone from a snapshot. **Commit point:** the first version of its metadata.

    Raises `SnapshotExpiredError`, `LakeMismatchError` if its location is taken, `CommitStateUnknownError`.
    """
    require_file_catalog(binding)
    table, catalog = binding.require(), target.catalog
    binding.require_owner(table.metadata)
    assert isinstance(catalog, FileCatalog)
    try:
        with translate_commit_errors(f"making the lake table of {target.spec.path}"):
            catalog.create_from_metadata(
                target.identifier, _make_clone_metadata(table.metadata, binding, target, snapshot_id)
            )
    except TableAlreadyExistsError as error:
        raise LakeMismatchError(
            f"the location {target.spec.location} of the lake of clone {target.spec.path} already exists; retry"
        ) from error


def _make_clone_metadata(
    metadata: TableMetadata, binding: IcebergTableBinding, target: IcebergTableBinding, snapshot_id: int
) -> TableMetadata:
    snapshot = require_snapshot(metadata, snapshot_id)
    old, new = binding.spec.table_uuid, target.spec.table_uuid
    shared = sorted({*shared_locations(metadata.properties), binding.spec.location})
    properties = {name: text.replace(old, new) for name, text in metadata.properties.items() if name not in OWN_PLACES}
    own = {TABLE_UUID_PROPERTY: new, SHARED_PROPERTY: ",".join(shared), "gc.enabled": "false"}
    if COLUMNS_PROPERTY in properties:
        own[COLUMNS_PROPERTY] = _migrate_column_map(properties[COLUMNS_PROPERTY], binding, target)
    refs = {
        name: SnapshotRef.model_validate({"snapshot-id": snapshot_id, "type": kind})
        for name, kind in ((MAIN_BRANCH, "branch"), (COMMIT_USER, "tag"))
    }
    entry = SnapshotLogEntry.model_validate({"snapshot-id": snapshot_id, "timestamp-ms": snapshot.timestamp_ms})
    return metadata.model_copy(
        update={
            "location": StorageFiles(target.storage).location_of(target.spec.location),
            "table_uuid": uuid.UUID(target.world.ids.new_uuid()),
            "properties": {**properties, **own},
            "snapshots": [_make_own_snapshot(metadata, snapshot, old, new)],
            "current_snapshot_id": snapshot_id,
            "refs": refs,
            "snapshot_log": [entry],
            "metadata_log": [],
            "statistics": [],
            "partition_statistics": [],
            "last_updated_ms": max(binding.storage.now_ms(), metadata.last_updated_ms),
        }
    )


def _migrate_column_map(text: str, binding: IcebergTableBinding, target: IcebergTableBinding) -> str:
    """Return the column map for the clone's schema.

    If the lake was migrated to a later schema that differs only in comments or defaults, the map is that of the clone's
    schema. If it differs in columns, the map is unchanged, so that no round writes to the clone.
    """
    new = target.spec.table_uuid
    mapping = ColumnMapping.from_text(text, new, where=str(target.spec.path))
    if mapping is None or mapping.schema_id is None or mapping.schema_id <= target.spec.schema_id:
        return text
    schema = binding.spec.schemas.get(mapping.schema_id)
    if schema is None or schema.storage_columns != target.spec.schema.storage_columns:
        return text
    return replace(mapping, schema_id=target.spec.schema_id).to_text(new)


def _make_own_snapshot(metadata: TableMetadata, snapshot: Snapshot, old: str, new: str) -> Snapshot:
    """Return the snapshot without ancestors, with the offsets in its summary."""
    offsets = offsets_at(metadata, snapshot, old)
    if offsets is None or snapshot.summary is None:
        raise LakeMismatchError(
            f"snapshot {snapshot.snapshot_id} of {metadata.location} has no offsets of table {old}, as recorded in its "
            "log: the lake's metadata belongs to another table or is damaged; restore it"
        )
    properties = {name: text.replace(old, new) for name, text in snapshot.summary.additional_properties.items()}
    summary = Summary(snapshot.summary.operation, **{**properties, **offsets.to_properties(new)})
    return snapshot.model_copy(update={"parent_snapshot_id": None, "summary": summary})


def shared_locations(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the locations in the warehouse whose files belong to other tables."""
    return tuple(filter(None, properties.get(SHARED_PROPERTY, "").split(",")))


def select_own_files(locations: Iterable[str], files: StorageFiles, properties: Mapping[str, str]) -> list[str]:
    """Return the locations whose files the table may delete. A clone may not delete those it started with."""
    shared = tuple(f"{location}/" for location in shared_locations(properties))
    return [location for location in locations if not files.key_of(location).startswith(shared)]


def find_out_of_place_location(binding: IcebergTableBinding, *, with_files: bool) -> str | None:
    """Return a location in the latest snapshot that is outside the table's folder in the warehouse, or None.

    With ``with_files``, and for a clone, checks each file and reads the manifests. Otherwise checks only the locations
    for new files.
    """
    table = binding.find()
    if table is None:
        return None
    folder = canonical_location(StorageFiles(binding.storage).location_of(binding.spec.location)).rstrip("/")
    named = [table.location(), *(table.properties[name] for name in _PLACES if name in table.properties)]
    for location in named:
        if not _is_in(folder, location.rstrip("/")):
            return location
    files = _files(table) if with_files or shared_locations(table.properties) else ()
    return next((location for location in files if not _is_in(folder, location)), None)


def _is_in(folder: str, location: str) -> bool:
    plain = canonical_location(location)
    return (plain == folder or plain.startswith(f"{folder}/")) and ".." not in plain.split("/")


def _files(table: Table) -> Iterator[str]:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    yield snapshot.manifest_list
    yield from (manifest.manifest_path for manifest in snapshot.manifests(table.io))
    for task in plan_tasks(table, snapshot, None):
        yield task.file.file_path
        yield from (delete.file_path for delete in task.delete_files)
