"""Snapshot commits of the package: built from public parts of pyiceberg, validated on every attempt, committed by the
catalog.

An attempt loads the latest metadata, validates the change against it, writes manifests, and commits with the
requirement that the branch is unchanged. So no commit can come between validation and commit, on any attempt. The
snapshot carries the uuid of the commit: if the catalog does not report the outcome, the snapshot chain shows it. No
error path deletes a file: files of a lost attempt are orphans.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    TableRequirement,
    ValidatableTableRequirement,
)
from pyiceberg.typedef import Identifier

from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import CommitConflictError, CommitStateUnknownError, CorruptDataError, StreamhouseError
from streamhouse_spark.lake.iceberg.errors import catalog_answers
from streamhouse_spark.lake.iceberg.file_io import StorageFileIO
from streamhouse_spark.lake.iceberg.metadata_versions import cache_metadata_for_round, forget_cached_version
from streamhouse_spark.lake.iceberg.offsets import find_commit
from streamhouse_spark.lake.iceberg.snapshot_builder import Change, SnapshotBuilder
from streamhouse_spark.storage.prefetch import map_with_store_concurrency

NOT_BEFORE_PROPERTY = "streamhouse.files-not-before-ms"
"""Table property: rounds planned before this store time must not commit, because orphan removal may have deleted their
files."""
OWN_PLACES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.enabled",
    "write.location-provider.impl",
    NOT_BEFORE_PROPERTY,
)
"""Properties of a lake table that name its own locations or orphan removal. A table that starts with its files does not
inherit them."""

ATTEMPTS_MAX = 20


Validation = Callable[[TableMetadata], Change]
"""Validates the change against this metadata and returns it. Raises the obstacle otherwise."""


def commit_snapshot(catalog: Catalog, identifier: Identifier, validate: Validation, world: World) -> Snapshot:
    """Commit the change in one snapshot on top of the latest one.

    Raises the errors of ``validate``, `CommitConflictError` if other writers win too often, `CommitStateUnknownError`.
    """
    commit_uuid = world.ids.new_uuid()
    for attempt in range(ATTEMPTS_MAX):
        world.wait_to_retry(attempt)
        forget_cached_version()
        with cache_metadata_for_round():
            snapshot = _attempt(catalog, identifier, validate, commit_uuid, attempt, world)
        if snapshot is not None:
            return snapshot
    raise CommitConflictError(
        f"lake table {'.'.join(identifier)}: other writers won {ATTEMPTS_MAX} times in a row; try again later"
    )


def _attempt(
    catalog: Catalog, identifier: Identifier, validate: Validation, commit_uuid: str, attempt: int, world: World
) -> Snapshot | None:
    """Try once and return the snapshot, or None if another writer won. The catalog commits on the loaded version or not
    at all.
    """
    with catalog_answers(f"{'.'.join(identifier)} was loaded"):
        table = catalog.load_table(identifier)
    landed = find_commit(table.metadata, commit_uuid)
    if landed is not None:
        return landed
    change = _validate_change(table, validate)
    try:
        snapshot, updates = SnapshotBuilder(table, change, commit_uuid, attempt, world).build()
    except FileNotFoundError as error:
        forget_cached_version()
        _require_overtaken(catalog, table, error)
        return None
    try:
        catalog.commit_table(table, _requirements(table.metadata, catalog), updates)
    except CommitFailedException:
        return None
    except Exception as error:  # any error of a catalog's client: the table itself shows the outcome
        forget_cached_version()
        metadata = _find_committed(catalog, identifier, commit_uuid, error)
        if metadata is None:
            raise
        return metadata
    return snapshot


def _validate_change(table: Table, validate: Validation) -> Change:
    """Return the validated change. Prefetches the snapshot's manifest list, which the new snapshot builds on."""
    head = table.metadata.current_snapshot()
    if head is None or not isinstance(table.io, StorageFileIO):
        return validate(table.metadata)
    changes: list[Change] = []
    steps: list[Callable[[], None]] = [
        lambda: changes.append(validate(table.metadata)),
        partial(table.io.fetch, head.manifest_list),
    ]
    for _ in map_with_store_concurrency(table.io.files.storage, lambda step: step(), steps):
        pass
    return changes[0]


def _require_overtaken(catalog: Catalog, table: Table, error: FileNotFoundError) -> None:
    """Raise ``error`` unless there is a newer snapshot: only then may metadata of the parent be missing."""
    with catalog_answers(f"{'.'.join(table.name())} was loaded"):
        now = catalog.load_table(table.name()).metadata.current_snapshot_id
    if now == table.metadata.current_snapshot_id:
        raise CorruptDataError(
            f"lake table {table.location()}: metadata of its current snapshot {now} is missing ({error}); restore it, "
            "or rebuild the lake from the log (streamhouse retier)"
        ) from error


def _find_committed(catalog: Catalog, identifier: Identifier, commit_uuid: str, error: Exception) -> Snapshot | None:
    """Return the snapshot if the commit succeeded despite the error, or None if the error is final."""
    try:
        metadata = catalog.load_table(identifier).metadata
    except Exception as second:  # noqa: BLE001 - whatever a catalog's client raises
        raise CommitStateUnknownError(
            f"lake table {'.'.join(identifier)}: the commit may or may not have happened ({error}), and looking it up "
            f"failed ({second}); run the same tiering again, it repeats nothing that happened"
        ) from error
    snapshot = find_commit(metadata, commit_uuid)
    if snapshot is None and isinstance(error, CommitStateUnknownException):
        raise CommitStateUnknownError(
            f"lake table {'.'.join(identifier)}: the commit may still happen ({error}); run the same tiering again, it "
            "repeats nothing that happened"
        ) from error
    if snapshot is None and not isinstance(error, StreamhouseError):
        raise CommitStateUnknownError(
            f"lake table {'.'.join(identifier)}: the catalog failed while committing ({type(error).__name__}: {error}) "
            "and does not show the commit; run the same tiering again"
        ) from error
    return snapshot


def _requirements(metadata: TableMetadata, catalog: Catalog) -> tuple[TableRequirement, ...]:
    """Return the requirements that let the catalog commit only on the validated state."""
    head = metadata.refs.get(MAIN_BRANCH)
    # Only catalogs that check requirements in this process know ours; for others see `maintenance.orphans`.
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
    """The requirement that no orphan removal has begun since the commit was validated."""

    type: Literal["streamhouse-assert-not-before"] = "streamhouse-assert-not-before"
    not_before_ms: int

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or not_before_ms(base_metadata) != self.not_before_ms:
            raise CommitFailedException("files were cleaned up since this commit was validated")
