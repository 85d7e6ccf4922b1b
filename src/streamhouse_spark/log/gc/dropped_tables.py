"""Deletes the files of tables that can no longer be opened.

These are dropped tables, tables that never got a name because their creator died, and branches that their table no
longer names. Deletion takes these steps, each of which may be interrupted and repeated:

1. The drop record, the commit point of dropping. `renaming.undrop` reverts it.
2. A grace period later, a record that prevents undropping. Then a tombstone: a low watermark above every record number.
   A writer that was suspended is therefore never acknowledged at the number of a deleted record.
3. Another grace period later, the lake table and the files are deleted, the commit records last. The tombstone stays.

A table with clones is buried after the last of them, because they read files of its lake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from streamhouse_spark.config.table_properties import BRANCH, BranchMetadata
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import (
    TABLES_PREFIX,
    commit_key,
    commits_prefix,
    manifest_key,
    parse_numbers,
    table_prefix,
    watermarks_prefix,
)
from streamhouse_spark.errors import (
    CorruptDataError,
    FormatVersionError,
    ObjectNotFoundError,
    StreamhouseError,
    TableNotFoundError,
)
from streamhouse_spark.log.actions import Action, Drop, Rename, SetProperties, Tombstone
from streamhouse_spark.log.catalog.branches import branch_tag, list_clones, list_live_clones
from streamhouse_spark.log.catalog.name_changes import follow_replacements, update_replaced_name
from streamhouse_spark.log.catalog.names import resolve
from streamhouse_spark.log.checkpoint import read_latest_checkpoint
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.gc.garbage_collection import CleanReport, check_grace
from streamhouse_spark.log.low_watermark import DROPPED_WATERMARK, find_latest_watermark, write_low_watermark
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.state import TableState, fold
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import delete_all

logger = logging.getLogger(__name__)

DropLake = Callable[[TableState], None]


def clean_dropped(
    storage: Storage, world: World, drop_lake: DropLake, *, grace_ms: int, dry_run: bool = False
) -> CleanReport:
    """Run the next step for every table that is dropped, or was never named. Return the deleted files.

    Unreadable tables are skipped; `CleanReport.skipped` has the reasons.
    """
    check_grace(grace_ms)
    report = CleanReport(dry_run)
    for uuid in storage.list_names(TABLES_PREFIX):
        try:
            index, tombstone_ms = _read_drop_watermark(storage, uuid)
            if tombstone_ms is None:
                _put_tombstone(storage, world, uuid, index, grace_ms, report)
            elif tombstone_ms + grace_ms <= storage.now_ms():
                _delete_files(storage, uuid, drop_lake, report)
        except StreamhouseError as error:
            logger.warning("dropped table %s is skipped: %s", uuid, error)
            report.skipped[uuid] = str(error)
    return report


def _read_drop_watermark(storage: Storage, uuid: str) -> tuple[int, int | None]:
    """Return the index of the latest low watermark, and its time if it is a tombstone."""
    index, watermark = find_latest_watermark(storage, uuid)
    return index, watermark.time_ms if watermark is not None and watermark.number >= DROPPED_WATERMARK else None


def _put_tombstone(
    storage: Storage, world: World, uuid: str, watermark_index: int, grace_ms: int, report: CleanReport
) -> None:
    log = CommitLog(storage, uuid, world)
    try:
        state = log.refresh()
    except TableNotFoundError:  # the first record is in flight, or was never put
        if not report.dry_run and is_unfinished(storage, uuid, storage.now_ms() - grace_ms):
            write_low_watermark(storage, uuid, watermark_index + 1, DROPPED_WATERMARK)
        return
    if state.dropped and not report.dry_run:
        update_replaced_name(storage, world, log)
    old = state.time_ms + grace_ms <= storage.now_ms()
    if state.dropped and old and (live := list_live_clones(storage, state)):
        report.skipped[uuid] = f"{state.name} has {len(live)} clones, which read files of its lake; drop the clones"
        return
    if report.dry_run or not (old or state.buried):
        return
    clones = list_clones(state)

    def plan(current: TableState, time_ms: int) -> Sequence[Action]:
        # Checked by each attempt: the table may have been undropped, or a suspended creator may have named it.
        if current.buried or current.time_ms + grace_ms > time_ms:
            return ()
        if current.dropped:
            return (Tombstone(),) if set(list_clones(current)) <= set(clones) else ()
        return () if _is_named(storage, world, current) else (Drop(),)

    log.commit(plan)
    if log.state.buried:
        write_low_watermark(storage, uuid, watermark_index + 1, DROPPED_WATERMARK)


def _is_named(storage: Storage, world: World, state: TableState) -> bool:
    if (mark := BranchMetadata.of_properties(state.properties)) is not None:
        with suppress(TableNotFoundError):  # the table's files were deleted
            owner = CommitLog(storage, mark.of, world).refresh()
            return not owner.buried and branch_tag(mark.name, state.table_uuid) in owner.tags
        return False
    database, _, table = state.name.partition(".")
    uuid = resolve(storage, TablePath(database, table)).uuid
    if uuid is None or uuid == state.table_uuid:
        return uuid is not None
    with suppress(TableNotFoundError):  # raised if the name points to a table whose files were deleted
        return follow_replacements(storage, world, CommitLog(storage, uuid, world)).table_uuid == state.table_uuid
    return False


def _delete_files(storage: Storage, uuid: str, drop_lake: DropLake, report: CleanReport) -> None:
    keys = [i.key for i in storage.list(table_prefix(uuid)) if not i.key.startswith(watermarks_prefix(uuid))]
    records = [key for key in keys if key.startswith(commits_prefix(uuid))]
    keys = [key for key in keys if not key.startswith(commits_prefix(uuid))] + records
    report.deleted.extend(keys)
    if report.dry_run or not keys:
        return
    state = _last_state(storage, uuid)
    if state is not None:
        drop_lake(state)
    delete_all(storage, keys[: len(keys) - len(records)])
    delete_all(storage, records)


def _last_state(storage: Storage, uuid: str) -> TableState | None:
    """Return the last state of the remaining records, ignoring the tombstone; None if no record remains."""
    state = read_latest_checkpoint(storage, uuid)
    if state is not None:
        return state
    with suppress(ObjectNotFoundError):
        return fold(None, read_record(storage, uuid, 1)[0])
    return None


def is_unfinished(storage: Storage, uuid: str, before_ms: int) -> bool:
    """Return whether a log was never completed, because its creator died before it put the checkpoint.

    The log of a clone or a branch starts after a version of a table. Its first record does not create a table; a
    checkpoint after it completes the log. A creator that dies between the two, or after it put the manifest of a first
    record, leaves one small object, which readers ignore. Returns False if the log has other files, because a damaged
    table may be restored, or if a file was written after ``before_ms``.
    """
    infos = [info for info in storage.list(table_prefix(uuid)) if not info.key.rpartition("/")[2].startswith(".")]
    if not infos or any(info.modified_ms > before_ms for info in infos):
        return False
    prefix = commits_prefix(uuid)
    numbers = parse_numbers([info.key.removeprefix(prefix) for info in infos if info.key.startswith(prefix)])
    if len(numbers) > 1:
        return False
    keys = {manifest_key(uuid, uuid), *(commit_key(uuid, number) for number in numbers)}
    return {info.key for info in infos} <= keys and all(_is_first_record(storage, uuid, number) for number in numbers)


def _is_first_record(storage: Storage, uuid: str, number: int) -> bool:
    """Return whether a record is the first record of a clone or a branch, and has no rows."""
    try:
        record, _ = read_record(storage, uuid, number)
    except (ObjectNotFoundError, CorruptDataError, FormatVersionError):  # deleted concurrently, or unreadable
        return False
    if number == 1 or len(record.actions) != 1:
        return False
    (action,) = record.actions
    return isinstance(action, Rename) or (isinstance(action, SetProperties) and set(action.changed) == {BRANCH})
