"""Logs that start from a version of another table, for clones and branches. No other process knows the new log's uuid.

The steps run in this order. After a crash, cleaning removes what the finished steps left:

1. Write the first record, and its state as a checkpoint (`write_first_record`).
2. Tag the version in the source table, so that it is retained.
3. Copy the rows of the source's hot log (`copy_rows`).
4. Move inline rows to a segment, put a floor that voids the copied records, and delete these (`begin_history`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.paths import commits_prefix
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.actions import Action, Rename
from streamhouse_spark.log.commits.archive_metadata import NO_ARCHIVE
from streamhouse_spark.log.commits.checkpoint import write_checkpoint, write_floor
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.delete_vectors import of_snapshot
from streamhouse_spark.log.commits.object_existence import list_referenced_keys, manifest_keys
from streamhouse_spark.log.commits.record import Record
from streamhouse_spark.log.commits.state import TableState, fold
from streamhouse_spark.log.lifecycle.first_record import put_first_record
from streamhouse_spark.log.lifecycle.log_copy import copy_version, without_log_location
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import delete_all
from streamhouse_spark.write.auto_compaction import merge_inline


def make_fork_state(base: TableState, name: str, uuid: str, now_ms: int, properties: Mapping[str, str]) -> TableState:
    """Return the state of the log before its first record: that of the base, without its readers,
    cleaners and names.
    """
    inline = {segment.commit for segment in base.kept_segments() if segment.uuid is None}
    return replace(
        base,
        table_uuid=uuid,
        name=name,
        created_ms=now_ms,
        time_ms=now_ms,
        properties=without_log_location(properties),
        lake_history=() if base.lake is None else (base.lake,),
        deletions=of_snapshot(base.deletions, base.lake),
        former_uuids=(*base.former_uuids, base.table_uuid),
        manifests={number: manifest for number, manifest in base.manifests.items() if number in inline},
        condemned={},
        consumers={},
        archive=NO_ARCHIVE,
        tags={},
        expiring=frozenset(),
        former_lakes=(),
        schema_changes=(),
        dropped=False,
        successor=None,
    )


def write_first_record(storage: Storage, world: World, base: TableState, action: Action) -> TableState:
    """Store the log's first record, and the state after it as a checkpoint. Returns the state."""
    record = Record(
        base.version + 1,
        base.table_uuid,
        world.ids.new_uuid(),
        base.time_ms,
        (action,),
        author=world.author,
        after=base.attempt,
    )
    put_first_record(storage, record)
    state = fold(base, record)
    write_checkpoint(storage, state)
    return state


def copy_rows(source: TableHandle, state: TableState) -> None:
    """Copy the rows of the hot log that ``state`` names. Raises `CorruptDataError` for a missing file."""
    copy_version(source.storage, source.uuid, state)


def begin_history(source: TableHandle, state: TableState, path: TablePath) -> CommitLog:
    """Start the log after the copied records. Returns the log.

    Raises `CommitConflictError` if cleaning removed the log as abandoned, because the copy stalled for longer than the
    grace period.
    """
    storage, world = source.storage, source.world
    log = CommitLog(storage, state.table_uuid, world)
    log.refresh()
    merge_inline(TableHandle(storage, source.settings, path, log, world))
    log.commit(lambda current, _: (Rename(current.name),))
    if not write_floor(storage, state.table_uuid, 1, state.version):
        raise CommitConflictError(
            f"the copy of {source.name} to {state.name} took longer than the grace period, and cleaning deleted it "
            "as abandoned. Nothing has the new name; run it again"
        )
    write_checkpoint(storage, log.state, floor_index=1, floor=state.version)
    copies = [key for key in list_referenced_keys(state) if key.startswith(commits_prefix(state.table_uuid))]
    delete_all(storage, [*copies, *manifest_keys(state)])
    return log
