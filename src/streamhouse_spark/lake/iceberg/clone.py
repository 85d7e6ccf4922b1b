"""Clones of an Iceberg table: tables that begin with a snapshot of another one, whose files both of them name.

Nothing is copied. The clone's first metadata version has the snapshot as it is, with its manifests and data files where
they lie, and the offsets of the log as the clone's own. What is written later, by rounds, compaction or relocation,
lies below the clone's own location.

Each table deletes files below its own location alone: a clone names the locations of the others in a property, and it
has Iceberg's ``gc.enabled=false``, so that other engines delete no files of it. The files stay as long as the table
that owns them keeps the snapshot, which is for its log to see to (`log.lifecycle.clones`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry, Summary

from streamhouse_spark.errors import InvalidOptionError, LakeMismatchError
from streamhouse_spark.lake.column_map import COLUMNS_PROPERTY, ColumnMap
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.commit import OWN_PLACES
from streamhouse_spark.lake.iceberg.errors import commit_answers
from streamhouse_spark.lake.iceberg.offsets import offsets_at
from streamhouse_spark.lake.iceberg.scan import require_snapshot
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.model.values import COMMIT_USER
from streamhouse_spark.lake.offsets import OFFSETS_PROPERTY, TABLE_UUID_PROPERTY, offsets_text
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles


def require_files(place: IcebergTableBinding) -> None:
    """Raise `InvalidOptionError` for a lake in a catalog outside the warehouse."""
    if not place.uses_files:
        raise InvalidOptionError(
            f"the lake of {place.spec.path} is in a catalog outside the warehouse, so other engines may delete what a "
            "clone reads; copy its rows instead (CREATE TABLE … AS SELECT)"
        )


def clone(place: IcebergTableBinding, target: IcebergTableBinding, snapshot_id: int) -> None:
    """Begin the lake table of a clone with a snapshot. **Commit point:** the first version of its metadata.

    Raises `SnapshotExpiredError`, `LakeMismatchError` where its location is taken or another's, and
    `CommitStateUnknownError`.
    """
    require_files(place)
    table, catalog = place.require(), target.catalog
    place.require_owner(table.metadata)
    assert isinstance(catalog, FileCatalog)
    try:
        with commit_answers(f"making the lake table of {target.spec.path}"):
            catalog.create_from_metadata(
                target.identifier, _make_clone_metadata(table.metadata, place, target, snapshot_id)
            )
    except TableAlreadyExistsError as error:
        raise LakeMismatchError(
            f"the place {target.spec.location} of the lake of {target.spec.path} is taken, though new; run it again"
        ) from error


def _make_clone_metadata(
    metadata: TableMetadata, place: IcebergTableBinding, target: IcebergTableBinding, snapshot_id: int
) -> TableMetadata:
    snapshot = require_snapshot(metadata, snapshot_id)
    old, new = place.spec.table_uuid, target.spec.table_uuid
    shared = sorted({*shared_locations(metadata.properties), place.spec.location})
    properties = {name: text.replace(old, new) for name, text in metadata.properties.items() if name not in OWN_PLACES}
    own = {TABLE_UUID_PROPERTY: new, SHARED_PROPERTY: ",".join(shared), "gc.enabled": "false"}
    if COLUMNS_PROPERTY in properties:
        own[COLUMNS_PROPERTY] = _migrate_column_map(properties[COLUMNS_PROPERTY], place, target)
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
            "last_updated_ms": max(place.storage.now_ms(), metadata.last_updated_ms),
        }
    )


def _migrate_column_map(text: str, place: IcebergTableBinding, target: IcebergTableBinding) -> str:
    """Return the map of columns as of the clone's schema, where the lake was brought up to a later one that differs
    from it in comments or defaults alone. With other columns it stays what it is, so no round writes to it.
    """
    new = target.spec.table_uuid
    mapping = ColumnMap.from_text(text, new, where=str(target.spec.path))
    if mapping is None or mapping.schema_id is None or mapping.schema_id <= target.spec.schema_id:
        return text
    schema = place.spec.schemas.get(mapping.schema_id)
    if schema is None or schema.plain_columns != target.spec.schema.plain_columns:
        return text
    return replace(mapping, schema_id=target.spec.schema_id).to_text(new)


def _make_own_snapshot(metadata: TableMetadata, snapshot: Snapshot, old: str, new: str) -> Snapshot:
    """Return the snapshot without ancestors, so with the offsets in its own summary."""
    offsets = offsets_at(metadata, snapshot, old)
    if offsets is None or snapshot.summary is None:
        raise LakeMismatchError(
            f"snapshot {snapshot.snapshot_id} of {metadata.location} has no offsets of table {old}, which its log says "
            "that it has: the lake's metadata is another's, or damaged; restore it"
        )
    absent, absent_without_offsets = offsets.dropped_rows, offsets.dropped_others
    text = offsets_text(
        new,
        offsets.offsets,
        offsets.starts,
        dropped_rows=absent,
        history=offsets.history,
        dropped_without_offsets=absent_without_offsets,
    )
    properties = {name: text.replace(old, new) for name, text in snapshot.summary.additional_properties.items()}
    summary = Summary(snapshot.summary.operation, **{**properties, OFFSETS_PROPERTY: text})
    return snapshot.model_copy(update={"parent_snapshot_id": None, "summary": summary})


SHARED_PROPERTY: Final = "streamhouse.shares-files-of"
"""Property of a clone's lake table: locations in the warehouse, joined by commas, whose files are not its own."""


def shared_locations(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the locations in the warehouse below which files are another table's."""
    return tuple(filter(None, properties.get(SHARED_PROPERTY, "").split(",")))


def select_own_files(locations: Iterable[str], files: StorageFiles, properties: Mapping[str, str]) -> list[str]:
    """Return those of the locations in the warehouse whose files the table may delete: of a clone not those that it
    began with.
    """
    shared = tuple(f"{location}/" for location in shared_locations(properties))
    return [location for location in locations if not files.key_of(location).startswith(shared)]
