"""Deleting lake files that no snapshot needs: what lost rounds, killed tasks and interrupted expiry left behind.

A slow round could still commit files that look like orphans. So the cleaner first stores, as a property of the lake
table, a moment that lies the grace back: a commit whose round was planned before that moment is refused by its own
validation, and one that was validated before the property was stored fails by the requirement that it did not change
(`iceberg_commit`). Only then are files older than that moment deleted, if no snapshot needs them. **Commit point:** the
property's metadata version; a crash after it leaves fewer orphans for the next run.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate

from streamhouse_spark.errors import CommitConflictError, InvalidOptionError
from streamhouse_spark.lake.files import StorageFiles
from streamhouse_spark.lake.iceberg_commit import NOT_BEFORE_PROPERTY
from streamhouse_spark.lake.iceberg_commit import not_before_ms as known_not_before_ms
from streamhouse_spark.lake.iceberg_maintain import files_of
from streamhouse_spark.storage import Storage

GRACE_MS = 24 * 3600 * 1000
GRACE_MS_MIN = 10 * 60 * 1000


def remove_orphans(
    storage: Storage, catalog: Catalog, load: Callable[[], Table], *, grace_ms: int = GRACE_MS, dry_run: bool = False
) -> list[str]:
    """Delete files of the table that are older than ``grace_ms`` and needed by no snapshot; returns their keys.

    Looks only where the table's data and metadata lie inside the warehouse; elsewhere nothing is touched.

    Raises `InvalidOptionError` for a grace below ten minutes, `CommitConflictError` when the table changed meanwhile.
    """
    if grace_ms < GRACE_MS_MIN:
        raise InvalidOptionError(
            f"grace of {grace_ms} ms: rounds under way need at least {GRACE_MS_MIN} ms; choose more",
        )
    try:
        table = load()
    except NoSuchTableError:
        return []
    files = StorageFiles(storage)
    if not files.holds(table.location()):
        return []
    not_before_ms = storage.now_ms() - grace_ms
    old = _old_files(storage, files, table, not_before_ms)
    if not old:
        return []
    needed = _needed(table, files)
    if dry_run or not any(key not in needed for key in old):
        return [key for key in old if key not in needed]
    _store_not_before(catalog, table, not_before_ms)
    needed = _needed(load(), files)  # again: a round may have landed between the first look and the property
    orphans = [key for key in old if key not in needed]
    for key in orphans:
        storage.delete(key)
    return orphans


def _old_files(storage: Storage, files: StorageFiles, table: Table, not_before_ms: int) -> list[str]:
    """Data files, manifests and manifest lists from before a time. Metadata versions are the catalog's own affair."""
    base = files.key_of(table.location())
    listed = [*storage.list(f"{base}/data/"), *storage.list(f"{base}/metadata/")]
    return sorted(i.key for i in listed if i.key.endswith((".parquet", ".avro")) and i.modified_ms < not_before_ms)


def _needed(table: Table, files: StorageFiles) -> set[str]:
    return {files.key_of(location) for location in files_of(table, table.metadata.snapshots) if files.holds(location)}


def _store_not_before(catalog: Catalog, table: Table, not_before_ms: int) -> None:
    moment_ms = max(known_not_before_ms(table.metadata), not_before_ms)
    update = SetPropertiesUpdate(updates={NOT_BEFORE_PROPERTY: str(moment_ms)})
    try:
        catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (update,))
    except CommitFailedException as error:
        raise CommitConflictError(
            f"lake table {table.metadata.location} changed while orphans were looked for; try again",
        ) from error
