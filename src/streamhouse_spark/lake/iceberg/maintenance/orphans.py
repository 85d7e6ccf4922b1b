"""Removal of orphan files of lost rounds, killed tasks and interrupted expiry.

A slow round could still commit files that look like orphans. So the cleaner first stores the cutoff time, the grace
period ago, as a property of the lake table. A commit whose round was planned before the cutoff fails its own
validation. A commit validated before the property was stored fails by the requirement that it did not change
(`iceberg.commit`). If the catalog does not support that requirement, it fails by the current snapshot, because the
property is committed with a new snapshot of the same files. Only then are unneeded files older than the cutoff deleted.
**Commit point:** the property's metadata version; a crash after it leaves fewer orphans for the next run.
"""

from __future__ import annotations

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate

from streamhouse_spark.errors import CommitConflictError, InvalidOptionError
from streamhouse_spark.lake.iceberg.commit import NOT_BEFORE_PROPERTY, commit_snapshot
from streamhouse_spark.lake.iceberg.commit import not_before_ms as known_not_before_ms
from streamhouse_spark.lake.iceberg.errors import commit_answers
from streamhouse_spark.lake.iceberg.maintenance.compaction import carry_offsets
from streamhouse_spark.lake.iceberg.maintenance.expiry import list_files
from streamhouse_spark.lake.iceberg.metadata_versions import forget_cached_version
from streamhouse_spark.lake.iceberg.snapshot_builder import Change
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import delete_all, map_with_store_concurrency

GRACE_MS_MIN = 10 * 60 * 1000


def remove_orphans(place: IcebergTableBinding, *, grace_ms: int, dry_run: bool) -> list[str]:
    """Delete files of the table that are older than ``grace_ms`` and needed by no snapshot; returns their keys.

    Keeps statistics files of other engines while the metadata names them. Covers only data and metadata folders inside
    the warehouse. Raises `InvalidOptionError` for a grace below ten minutes, `LakeMismatchError` for another table's
    lake, `CommitConflictError` if the table changed concurrently.
    """
    if grace_ms < GRACE_MS_MIN:
        raise InvalidOptionError(
            f"grace of {grace_ms} ms: rounds under way need at least {GRACE_MS_MIN} ms; choose more",
        )
    table = place.find()
    if table is None:
        return []
    place.require_owner(table.metadata)
    storage, files = place.storage, StorageFiles(place.storage)
    if not files.holds(table.location()):
        return []
    not_before_ms = storage.now_ms() - grace_ms
    old = _old_files(storage, files, table, not_before_ms)
    if not old:
        return []
    needed = _referenced_paths(table, files)
    if dry_run or not any(key not in needed for key in old):
        return [key for key in old if key not in needed]
    _store_not_before(place, table, not_before_ms)
    forget_cached_version()
    needed = _referenced_paths(place.load(), files)  # read again: a round may have committed before the property
    orphans = [key for key in old if key not in needed]
    delete_all(storage, orphans)
    return orphans


def _old_files(storage: Storage, files: StorageFiles, table: Table, not_before_ms: int) -> list[str]:
    """Return data files, manifests and manifest lists from before ``not_before_ms``. The catalog deletes metadata
    versions itself.
    """
    base = files.key_of(table.location())
    folders = (f"{base}/data/", f"{base}/metadata/")
    listed = [info for listing in map_with_store_concurrency(storage, storage.list, folders) for info in listing]
    return sorted(i.key for i in listed if i.key.endswith((".parquet", ".avro")) and i.modified_ms < not_before_ms)


def _referenced_paths(table: Table, files: StorageFiles) -> set[str]:
    metadata = table.metadata
    statistics = [file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)]
    locations = (*list_files(table, metadata.snapshots), *statistics)
    return {files.key_of(location) for location in locations if files.holds(location)}


def _store_not_before(place: IcebergTableBinding, table: Table, not_before_ms: int) -> None:
    moment_ms = max(known_not_before_ms(table.metadata), not_before_ms)
    if not isinstance(place.catalog, MetastoreCatalog):
        _commit_not_before(place, moment_ms)
        return
    update = SetPropertiesUpdate(updates={NOT_BEFORE_PROPERTY: str(moment_ms)})
    try:
        with commit_answers(f"removing orphans of {table.metadata.location}"):
            place.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (update,))
    except CommitFailedException as error:
        raise CommitConflictError(
            f"lake table {table.metadata.location} changed during orphan removal; try again",
        ) from error


def _commit_not_before(place: IcebergTableBinding, moment_ms: int) -> None:
    """Commit the cutoff with a snapshot of the same files, for catalogs that do not support our requirement."""

    def validated(metadata: TableMetadata) -> Change:
        place.require_owner(metadata)
        summary = carry_offsets(metadata)
        properties = {NOT_BEFORE_PROPERTY: str(max(known_not_before_ms(metadata), moment_ms))}
        operation = Operation.REPLACE if metadata.current_snapshot() else Operation.APPEND
        return Change(operation, summary=summary, properties=properties, moves_tag=bool(summary))

    commit_snapshot(place.catalog, place.identifier, validated, place.world)
