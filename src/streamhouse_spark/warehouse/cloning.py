"""Clones: independent tables that start from a version of another table, without a copy of its lake files.

**Commit point:** the name's pointer. These steps precede it. After a crash, cleaning deletes their results:

1. The clone's log starts with a record after the version, and with the state of the version as a checkpoint. It is an
   unnamed table, which cleaning drops and after another grace period buries, unless it gets a name.
2. A tag of the source table with the clone's uuid retains the version, until the clone is buried
   (`log.catalog.branches`).
3. The rows of the hot log are copied.
4. The clone's lake table starts from the snapshot of the version and refers to its files.
5. Inline rows are moved to a segment. A low watermark voids the copied records, and they are deleted.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from streamhouse_spark.config.table_properties import ADOPTED, VIEW
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import lake_location
from streamhouse_spark.errors import InvalidOptionError, TableExistsError
from streamhouse_spark.lake.base import LakeTable, SupportsFileRewrite
from streamhouse_spark.log.actions import Rename
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.catalog.branches import CLONE, require_no_branch
from streamhouse_spark.log.catalog.name_changes import free_name
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table.versioning.branches import (
    begin_branch_history,
    copy_log_files,
    make_fork_state,
    write_first_record,
)
from streamhouse_spark.table.versioning.tags import call_with_version, retain_version
from streamhouse_spark.table_handle import TableHandle

logger = logging.getLogger(__name__)


def clone_table(storage: Storage, world: World, cloned: TableHandle, to: TablePath, version: int | str | None) -> None:
    """Clone a version of a table; see `Warehouse.clone_table`. After an error, cleaning deletes what was written."""

    def clone(current: TableState, base: TableState) -> None:
        _require_clonable(cloned, current, base)
        if not _create_clone(storage, world, cloned, to, base):
            raise TableExistsError(
                f"table {current.name} cannot be cloned to {to}: it exists in {storage.url}; drop it first, or choose "
                "another name"
            )

    call_with_version(cloned, version, clone)


def _create_clone(storage: Storage, world: World, source: TableHandle, target: TablePath, base: TableState) -> bool:
    """Create the clone. Returns False if its name is in use."""
    database, pointer = names.prepare_name(storage, world, target)
    if not free_name(storage, world, target, pointer):
        return False
    before = _make_clone_state(base, target, world.ids.new_uuid(), storage.now_ms())
    state = write_first_record(storage, world, before, Rename(before.name))
    retain_version(source, f"{CLONE}{state.table_uuid}", base, base.kept_segments())
    copy_log_files(source, state)
    if state.lake is not None:
        _require_shareable(source.open_lake()).clone(state, state.lake.snapshot_id)
    begin_branch_history(source, state, target)
    if not names.put_name_pointer(storage, target, pointer, state.table_uuid, world):
        return False
    with log_post_commit_errors(logger, "keeping the database", database.name):
        names.ensure_database(storage, world, database)
    logger.info("created %s as a clone of commit %d of %s", target, base.version, base.name)
    return True


def _make_clone_state(base: TableState, target: TablePath, uuid: str, now_ms: int) -> TableState:
    """Return the state of a clone before its first record. The clone of a view is not a view."""
    properties = {name: text for name, text in base.properties.items() if name != VIEW}
    location = lake_location(target, uuid, has_conflict=True, lake_format=base.parsed.datalake_format)
    return replace(make_fork_state(base, str(target), uuid, now_ms, properties), lake_location=location)


def _require_shareable(lake: LakeTable) -> SupportsFileRewrite:
    """Raise `InvalidOptionError` for a lake whose files two tables cannot share."""
    files = lake.capabilities.file_rewrite
    if files is None:
        raise InvalidOptionError(
            f"cannot clone table {lake.binding.spec.path}: it has a Paimon lake, whose files two tables cannot share; "
            "copy the rows instead (CREATE TABLE … AS SELECT)"
        )
    return files


def _require_clonable(source: TableHandle, current: TableState, base: TableState) -> None:
    """Raise `InvalidOptionError` for a version that cannot be cloned.

    Raises `SnapshotExpiredError` if another engine expired the lake snapshot of the version.
    """
    require_no_branch(current, "cloning")
    if ADOPTED in base.properties:
        raise InvalidOptionError(
            f"cannot clone table {current.name}: it was adopted, and the adopted rows are not in its log; copy its "
            "rows instead (CREATE TABLE … AS SELECT)"
        )
    if base.lake is None:
        return
    if base.former_partitionings != current.former_partitionings:
        raise InvalidOptionError(
            f"the partitioning of {current.name} was changed after commit {base.version}, and the lake may already "
            "have the new partitioning; clone a later version"
        )
    newer = (schema for schema_id, schema in current.schemas.items() if schema_id not in base.schemas)
    if any(schema.storage_columns != base.schema.storage_columns for schema in newer):
        raise InvalidOptionError(
            f"columns of {current.name} changed after commit {base.version}, and the lake may already have the new "
            "columns; clone a later version, and roll the clone back"
        )
    lake = source.open_lake()
    _require_shareable(lake).require_clonable()
    lake.snapshot(base.lake.snapshot_id)
