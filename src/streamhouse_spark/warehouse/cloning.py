"""Clones: an independent table that starts from a version of another one, without a copy of its lake files.

**Commit point:** the name's pointer. The steps before it run in this order; cleaning removes what each leaves:

1. The clone's log starts with a record after the version, and with the version's state as its checkpoint. It is an
   unnamed table, which cleaning drops and a grace period later buries, unless it gets a name.
2. The source table retains the version by a tag with the clone's uuid, until the clone is buried
   (`log.catalog.branches`).
3. Rows of the hot log are copied; they are few compared to those of the lake.
4. The clone's lake table starts from the version's snapshot and refers to the files in place.
5. Inline rows are moved to a segment, and a watermark voids the copied records, which are deleted: the clone's history
   starts here.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from streamhouse_spark.config.table_properties import ADOPTED, VIEW
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import lake_location
from streamhouse_spark.errors import InvalidOptionError, SnapshotExpiredError, TableExistsError
from streamhouse_spark.lake.base import LakeTable, RewritableFiles
from streamhouse_spark.log.actions import Rename
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.catalog.branches import CLONE, require_no_branch
from streamhouse_spark.log.catalog.renaming import free_name
from streamhouse_spark.log.history import state_at
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table.versioning.branches import begin_history, copy_rows, make_fork_state, write_first_record
from streamhouse_spark.table.versioning.tags import keep_version, resolve_version
from streamhouse_spark.table_handle import TableHandle

logger = logging.getLogger(__name__)

_TRIES: Final = 5


def clone_table(storage: Storage, world: World, cloned: TableHandle, to: TablePath, version: int | str | None) -> None:
    """Clone a version of a table, by default the latest.

    Raises as `Warehouse.clone_table`; then nothing was written but what cleaning removes.
    """
    for attempt in range(_TRIES):
        now = cloned.refresh()
        base = now if version is None else state_at(cloned.log, cloned.storage, resolve_version(now, version))
        _require_clonable(cloned, now, base)
        try:
            if not _create_clone(storage, world, cloned, to, base):
                raise TableExistsError(
                    f"table {now.name} cannot be cloned to {to}: that exists in {storage.url}; drop it first, or "
                    "choose another name"
                )
            return
        except SnapshotExpiredError:
            if version is not None or attempt == _TRIES - 1:
                raise  # else the version was compacted or trimmed concurrently: retry with the latest


def _create_clone(storage: Storage, world: World, source: TableHandle, target: TablePath, base: TableState) -> bool:
    """Create the clone. Returns False if its name is in use."""
    database, pointer = names.prepare_name(storage, world, target)
    if not free_name(storage, world, target, pointer):
        return False
    before = _make_clone_state(base, target, world.ids.new_uuid(), storage.now_ms())
    state = write_first_record(storage, world, before, Rename(before.name))
    keep_version(source, f"{CLONE}{state.table_uuid}", base, base.kept_segments())
    copy_rows(source, state)
    if state.lake is not None:
        _require_shareable(source.open_lake()).clone(state, state.lake.snapshot_id)
    begin_history(source, state, target)
    if not names.point(storage, target, pointer, state.table_uuid, world):
        return False
    with log_post_commit_errors(logger, "keeping the database", database.name):
        names.ensure_database(storage, world, database)
    logger.info("%s is a clone of commit %d of %s", target, base.version, base.name)
    return True


def _make_clone_state(base: TableState, target: TablePath, uuid: str, now_ms: int) -> TableState:
    """Return the state of a clone before its first record. A clone of a view is a plain table."""
    properties = {name: text for name, text in base.properties.items() if name != VIEW}
    location = lake_location(target, uuid, has_conflict=True, lake_format=base.parsed.datalake_format)
    return replace(make_fork_state(base, str(target), uuid, now_ms, properties), lake_location=location)


def _require_shareable(lake: LakeTable) -> RewritableFiles:
    """Raise `InvalidOptionError` for a lake whose files two tables cannot share."""
    files = lake.capabilities.rewritable
    if files is None:
        raise InvalidOptionError(
            f"table {lake.binding.spec.path} has a Paimon lake: Paimon looks for data files in their table's "
            "folder, so two tables cannot share them; copy the rows instead (CREATE TABLE … AS SELECT)"
        )
    return files


def _require_clonable(source: TableHandle, now: TableState, base: TableState) -> None:
    """Raise `InvalidOptionError` for a version that cannot be cloned, before anything is written.

    Raises `SnapshotExpiredError` if another engine expired its lake snapshot.
    """
    require_no_branch(now, "cloning")
    if ADOPTED in base.properties:
        raise InvalidOptionError(
            f"table {now.name} adopted a lake table, whose rows are not in its log; copy its rows instead (CREATE "
            "TABLE … AS SELECT)"
        )
    if base.lake is None:
        return
    if base.former_partitionings != now.former_partitionings:
        raise InvalidOptionError(
            f"the partitioning of {now.name} was changed after commit {base.version}, and its lake may already have "
            "the new one; clone a later version"
        )
    newer = (schema for schema_id, schema in now.schemas.items() if schema_id not in base.schemas)
    if any(schema.plain_columns != base.schema.plain_columns for schema in newer):
        raise InvalidOptionError(
            f"columns of {now.name} changed after commit {base.version}, and its lake may already have the new ones; "
            "clone a later version, and roll the clone back"
        )
    lake = source.open_lake()
    _require_shareable(lake).require_clonable()
    lake.snapshot(base.lake.snapshot_id)
