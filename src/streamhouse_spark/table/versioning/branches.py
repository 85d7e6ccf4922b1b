"""Branches: changes of a table that are invisible to its readers until they are published.

A branch is a separate log that starts as a copy of the table's hot log. It reads the table's lake at the snapshot of
its creation. A branch is never tiered, trimmed or cleaned. Its records since creation are the changes that
`table.versioning.publication` commits to the table.

**Commit points.** Creation: the record in the table's log that names the branch. Drop: the record that removes the
name. Before it the branch's log is ended, so that no write to it is acknowledged and then lost.

A branch or a clone copies a version in these steps. Only the creator knows the uuid of the new log. After a crash,
cleaning deletes the results of the finished steps:

1. Write the first record, and its state as a checkpoint (`write_first_record`).
2. Tag the version in the source table, so that it is retained.
3. Copy the rows of the source's hot log (`copy_log_files`).
4. Move inline rows to a segment, put a low watermark after the copied records, and delete them
   (`begin_branch_history`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from streamhouse_spark.config.table_properties import BRANCH, MERGE_ENGINE, VIEW, BranchMetadata
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import PUBLICATIONS, TablePath
from streamhouse_spark.core.warehouse_layout import commits_prefix, parse_branch, tag_key
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidOptionError,
    TableExistsError,
    TableNotFoundError,
)
from streamhouse_spark.log.actions import (
    NO_ARCHIVE,
    Action,
    Drop,
    DropTag,
    ForgetTransactions,
    Rename,
    SetProperties,
    Tag,
)
from streamhouse_spark.log.bootstrap import put_first_record
from streamhouse_spark.log.catalog.branches import (
    CLONE,
    Branch,
    branch_tag,
    find_branch,
    find_branches,
    list_publications,
    require_branch,
    require_no_branch,
)
from streamhouse_spark.log.checkpoint import write_checkpoint, write_tagged
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.log_copy import copy_version, without_log_location
from streamhouse_spark.log.low_watermark import write_low_watermark
from streamhouse_spark.log.object_existence import list_referenced_keys, manifest_keys
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.state import TableState, deletions_in_latest_lake, fold
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import delete_all, map_with_store_concurrency
from streamhouse_spark.table.versioning.tags import call_with_version, retain_version
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.auto_compaction import compact_inline_rows

logger = logging.getLogger(__name__)


def make_fork_state(base: TableState, name: str, uuid: str, now_ms: int, properties: Mapping[str, str]) -> TableState:
    """Return the state before the first record of the new log: ``base`` without tags, consumers and tombstones."""
    inline = {segment.commit for segment in base.kept_segments() if segment.uuid is None}
    return replace(
        base,
        table_uuid=uuid,
        name=name,
        created_ms=now_ms,
        time_ms=now_ms,
        properties=without_log_location(properties),
        lake_history=() if base.lake is None else (base.lake,),
        deletions=deletions_in_latest_lake(base),
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
    """Store the first record of a log, and the state after it as a checkpoint. Returns the state."""
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


def copy_log_files(source: TableHandle, state: TableState) -> None:
    """Copy the files of the hot log that ``state`` refers to. Raises `CorruptDataError` for a missing file."""
    copy_version(source.storage, source.uuid, state)


def begin_branch_history(source: TableHandle, state: TableState, path: TablePath) -> CommitLog:
    """Void the copied records, and return the new log.

    Raises `CommitConflictError` if the copy took longer than the grace period, so that cleaning deleted the log.
    """
    storage, world = source.storage, source.world
    log = CommitLog(storage, state.table_uuid, world)
    log.refresh()
    compact_inline_rows(TableHandle(storage, source.settings, path, log, world))
    log.commit(lambda current, _: (Rename(current.name),))
    if not write_low_watermark(storage, state.table_uuid, 1, state.version):
        raise CommitConflictError(
            f"the copy of {source.name} to {state.name} took longer than the grace period, so cleaning deleted it; the "
            "new name is still free, run it again"
        )
    write_checkpoint(storage, log.state, watermark_index=1, low_watermark=state.version)
    copies = [key for key in list_referenced_keys(state) if key.startswith(commits_prefix(state.table_uuid))]
    delete_all(storage, [*copies, *manifest_keys(state)])
    return log


@dataclass(frozen=True, slots=True)
class TableBranch:
    """A branch of a table."""

    name: str
    version: int
    """The commit of the table from which the branch was created."""
    created_ms: int
    lake_snapshot: int | None = None
    """The lake snapshot that the branch reads."""


def list_branches(table: TableHandle) -> list[TableBranch]:
    """Return the branches, ordered by name; see `Table.branches`."""
    return [_describe_branch(branch) for branch in find_branches(table.refresh())]


def create_branch(table: TableHandle, name: str) -> TableBranch:
    """Create a branch of the latest version; see `Table.create_branch`."""
    name = parse_branch(name)

    def create(current: TableState, base: TableState) -> TableBranch:
        _require_branchable(current)
        dropped = _find_dropped_branch(table, current, name)
        _require_free_name(current, name, dropped)
        return _create(table, base, name, dropped)

    return call_with_version(table, None, create)


def open_branch_log(table: TableHandle, name: str) -> tuple[Branch, CommitLog]:
    """Return a branch and its refreshed log. Raises `TableNotFoundError`."""
    branch = require_branch(table.refresh(), parse_branch(name))
    log = CommitLog(table.storage, branch.uuid, table.world)
    if log.refresh().dropped:
        raise TableNotFoundError(f"branch {branch.name!r} of {table.name} is being dropped; run drop_branch again")
    return branch, log


def drop_branch(table: TableHandle, name: str) -> None:
    """End a branch and remove its name; see `Table.drop_branch`."""
    branch = require_branch(table.refresh(), parse_branch(name))
    with suppress(TableNotFoundError):  # an earlier run ended the log, and cleaning deleted its files
        end_branch_log(CommitLog(table.storage, branch.uuid, table.world))
    table.log.commit(lambda state, _: (DropTag((branch.tag,)),) if branch.tag in state.tags else ())


def end_branch_log(log: CommitLog) -> None:
    """End the log of a branch, which can then be neither read nor written. **Commit point:** one record."""
    log.refresh()
    log.commit(lambda state, _: () if state.dropped else (Drop(),))


def _describe_branch(branch: Branch) -> TableBranch:
    return TableBranch(branch.name, branch.base.version, branch.base.time_ms, branch.base.lake_snapshot)


def _find_dropped_branch(table: TableHandle, state: TableState, name: str) -> Branch | None:
    """Return the branch of a name if its drop was interrupted before the name was removed, else None."""
    branch = find_branch(state, name)
    if branch is None:
        return None
    try:
        is_live = not CommitLog(table.storage, branch.uuid, table.world).refresh().dropped
    except TableNotFoundError:
        is_live = False
    return None if is_live else branch


def _require_free_name(state: TableState, name: str, dropped: Branch | None) -> None:
    branch = find_branch(state, name)
    if branch is not None and branch != dropped:
        raise TableExistsError(
            f"{state.name} already has a branch {name!r} of version {branch.base.version}; publish or drop it first, "
            "or choose another name"
        )
    if name in state.tags:
        raise InvalidOptionError(
            f"{state.name} has a tag {name!r}, and a branch cannot have the name of a tag; choose another name"
        )


def _require_branchable(state: TableState) -> None:
    """Raise `InvalidOptionError` for a table that does not support branches."""
    require_no_branch(state, "creating a branch")
    properties = state.parsed
    if VIEW in state.properties:
        why = "it is a materialized view"
    elif properties.identity is not None:
        why = "it has an identity column, of which branch and table would allocate the same values"
    elif state.properties.get(MERGE_ENGINE, "last_row").strip().lower() != "last_row":
        why = f"its merge engine ({MERGE_ENGINE}) would merge published rows again"
    else:
        return
    raise InvalidOptionError(
        f"table {state.name} cannot have branches: {why}; write the rows into a separate table, check them, and copy "
        "them (INSERT INTO … SELECT)"
    )


def _create(table: TableHandle, base: TableState, name: str, dropped: Branch | None) -> TableBranch:
    storage, world = table.storage, table.world
    path, uuid = table.path.of_branch(name), world.ids.new_uuid()
    before = make_fork_state(base, str(path), uuid, storage.now_ms(), base.properties)
    mark = BranchMetadata(base.table_uuid, name, base.version)
    state = write_first_record(storage, world, before, SetProperties({BRANCH: mark.to_text()}))
    retain_version(table, f"{CLONE}{uuid}", base, base.kept_segments())
    copy_log_files(table, state)
    log = begin_branch_history(table, state, path)
    branch = _commit_name(table, base, branch_tag(name, uuid), name, dropped)
    if log.refresh().dropped:  # by cleaning, because its creation took longer than the grace period
        table.log.commit(lambda state, _: (DropTag((branch.tag,)),) if branch.tag in state.tags else ())
        raise _late_error(table.name, name)
    return _describe_branch(branch)


def _late_error(table: str, name: str) -> CommitConflictError:
    return CommitConflictError(
        f"cannot create branch {name!r} of {table}: it took longer than the grace period; create it again"
    )


def _commit_name(table: TableHandle, base: TableState, tag: str, name: str, dropped: Branch | None) -> Branch:
    """Name the branch in the table's log. **Commit point** of its creation."""
    clone_tag, uuid = f"{CLONE}{tag.rpartition(':')[2]}", table.world.ids.new_uuid()
    lake_snapshot = base.lake.snapshot_id if base.lake is not None else None
    write_tagged(table.storage, base, uuid)

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        if tag in state.tags:
            return ()
        _require_free_name(state, name, dropped)
        if clone_tag not in state.tags or tag_key(state.table_uuid, uuid) in state.condemned:
            raise _late_error(state.name, name)
        dropped_tags = (clone_tag,) if dropped is None or dropped.tag not in state.tags else (clone_tag, dropped.tag)
        forgotten = list_publications(state, name)
        naming = (Tag(tag, base.version, uuid, lake_snapshot), DropTag(dropped_tags))
        return (*naming, ForgetTransactions(forgotten)) if forgotten else naming

    return require_branch(table.log.commit(plan).state, name)


@dataclass(frozen=True, slots=True)
class IncompleteBranch:
    """A branch whose publication or drop was interrupted."""

    name: str
    is_: Literal["sealed", "dropped", "published"]
    """``sealed``: it accepts no more rows, but is not published. ``dropped``: its log has ended, but the table still
    names it. ``published``: the table has its changes, but its log has not ended."""
    since_ms: int
    """Store time of the latest record in the branch's log; 0 if the log was deleted."""


def find_incomplete_branches(table: TableHandle) -> list[IncompleteBranch]:
    """Return the incomplete branches in the cached state of a table.

    Reads the logs of all branches, and of the last published branch of each name.
    """
    state = table.state
    named = {branch.uuid: branch.name for branch in find_branches(state)}
    published = dict(_iter_published_branches(state))
    uuids = [*named, *(uuid for uuid in published if uuid not in named)]

    def find_incomplete(uuid: str) -> IncompleteBranch | None:
        branch_state = _read_branch_state(table, uuid)
        if uuid not in named:
            if branch_state is None or branch_state.dropped:
                return None
            return IncompleteBranch(published[uuid], "published", branch_state.time_ms)
        if branch_state is None or branch_state.dropped:
            return IncompleteBranch(named[uuid], "dropped", branch_state.time_ms if branch_state is not None else 0)
        mark = BranchMetadata.of_properties(branch_state.properties)
        is_sealed = mark is not None and mark.is_sealed
        return IncompleteBranch(named[uuid], "sealed", branch_state.time_ms) if is_sealed else None

    branches = map_with_store_concurrency(table.storage, find_incomplete, uuids)
    return [branch for branch in branches if branch is not None]


def _iter_published_branches(state: TableState) -> Iterator[tuple[str, str]]:
    """Yield uuid and name of the last published branch of each name."""
    for app_id in state.transactions:
        if app_id.startswith(PUBLICATIONS):
            name, _, uuid = app_id.removeprefix(PUBLICATIONS).partition(".")
            yield uuid, name


def _read_branch_state(table: TableHandle, uuid: str) -> TableState | None:
    """Return the latest state of a branch; None if its log was deleted."""
    try:
        return CommitLog(table.storage, uuid, table.world).refresh()
    except TableNotFoundError:
        return None
