"""Branches: changes of a table that are invisible to its readers until they are published.

A branch is a separate log that starts as a copy of its table's hot log, and reads the table's lake at the snapshot of
its creation. It is never tiered, trimmed or cleaned: its records since creation are its changes, which
`table.branching.publication` commits to the table.

**Commit point** of creation: the record in the table's log that names the branch. Before it there is a log without a
name and a tag like a clone's, both of which cleaning removes. Of dropping: the record that removes the name. Before it
the branch's own log is ended, so that writers get no acknowledgement for rows that will be dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from streamhouse_spark.config.branch_metadata import BRANCH, BranchMark
from streamhouse_spark.config.properties import MERGE_ENGINE
from streamhouse_spark.config.view_definition import VIEW
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.paths import parse_branch, tag_key
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidOptionError,
    SnapshotExpiredError,
    TableExistsError,
    TableNotFoundError,
)
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.actions import Action, Drop, DropTag, ForgetTransactions, SetProperties, Tag
from streamhouse_spark.log.commits.checkpoint import write_tagged
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.branches import (
    Branch,
    branch_tag,
    find_branch,
    find_branches,
    list_publications,
    require_branch,
    require_no_branch,
)
from streamhouse_spark.log.lifecycle.clones import CLONE
from streamhouse_spark.table.fork_log import begin_history, copy_rows, make_fork_state, write_first_record
from streamhouse_spark.table.tags import keep_version

logger = logging.getLogger(__name__)

_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class TableBranch:
    """A branch of a table."""

    name: str
    version: int
    """The commit of the table at which it was created."""
    created_ms: int
    lake_snapshot: int | None = None
    """The lake snapshot that it reads."""


def list_branches(table: TableHandle) -> list[TableBranch]:
    """Return the branches by name; see `Table.branches`."""
    return [_describe_branch(branch) for branch in find_branches(table.refresh())]


def create_branch(table: TableHandle, name: str) -> TableBranch:
    """Create a branch of the latest version; see `Table.create_branch`."""
    name = parse_branch(name)
    for attempt in range(_TRIES):
        now = table.refresh()
        _require_branchable(now)
        dropped = _find_dropped_branch(table, now, name)
        _require_free_name(now, name, dropped)
        try:
            return _create(table, now, name, dropped)
        except SnapshotExpiredError:
            if attempt == _TRIES - 1:
                raise  # else the version was compacted or trimmed concurrently: retry with the latest
    raise AssertionError


def open_log(table: TableHandle, name: str) -> tuple[Branch, CommitLog]:
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
        end_log(CommitLog(table.storage, branch.uuid, table.world))
    table.log.commit(lambda state, _: (DropTag((branch.tag,)),) if branch.tag in state.tags else ())


def end_log(log: CommitLog) -> None:
    """End the log of a branch: it can no longer be read or written. **Commit point:** the record."""
    log.refresh()
    log.commit(lambda state, _: () if state.dropped else (Drop(),))


def _describe_branch(branch: Branch) -> TableBranch:
    return TableBranch(branch.name, branch.base.version, branch.base.time_ms, branch.base.lake_snapshot)


def _find_dropped_branch(table: TableHandle, state: TableState, name: str) -> Branch | None:
    """Return the branch of a name if its drop was interrupted and only the name is left."""
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
            f"{state.name} has a branch {name!r} already, since commit {branch.base.version}; publish or drop it "
            "first, or choose another name"
        )
    if name in state.tags:
        raise InvalidOptionError(
            f"{state.name} has a tag {name!r}, and a branch cannot have the name of a tag; choose another"
        )


def _require_branchable(state: TableState) -> None:
    """Raise `InvalidOptionError` for a table whose branch could not be read or published."""
    require_no_branch(state, "making a branch")
    properties = state.parsed
    if VIEW in state.properties:
        why = "its rows are those of its query"
    elif properties.identity is not None:
        why = "it has an identity column, for which branch and table would allocate the same values"
    elif state.properties.get(MERGE_ENGINE, "last_row").strip().lower() != "last_row":
        why = f"its merge engine ({MERGE_ENGINE}) would merge published rows again"
    else:
        return
    raise InvalidOptionError(
        f"table {state.name} cannot have branches: {why}; write the rows into a table of their own, check them there, "
        "and copy them then (INSERT INTO … SELECT)"
    )


def _create(table: TableHandle, base: TableState, name: str, dropped: Branch | None) -> TableBranch:
    storage, world = table.storage, table.world
    path, uuid = table.path.of_branch(name), world.ids.new_uuid()
    before = make_fork_state(base, str(path), uuid, storage.now_ms(), base.properties)
    mark = BranchMark(base.table_uuid, name, base.version)
    state = write_first_record(storage, world, before, SetProperties({BRANCH: mark.to_text()}))
    keep_version(table, f"{CLONE}{uuid}", base, base.kept_segments())
    copy_rows(table, state)
    log = begin_history(table, state, path)
    branch = _commit_name(table, base, branch_tag(name, uuid), name, dropped)
    if log.refresh().dropped:  # its creator stalled for so long that cleaning treated it as abandoned
        table.log.commit(lambda state, _: (DropTag((branch.tag,)),) if branch.tag in state.tags else ())
        raise CommitConflictError(f"branch {name!r} of {table.name} took longer than the grace; make it again")
    return _describe_branch(branch)


def _commit_name(table: TableHandle, base: TableState, tag: str, name: str, dropped: Branch | None) -> Branch:
    """Name the branch in the table's log: **the commit point** of its creation."""
    clone_tag, uuid = f"{CLONE}{tag.rpartition(':')[2]}", table.world.ids.new_uuid()
    lake_snapshot = base.lake.snapshot_id if base.lake is not None else None
    write_tagged(table.storage, base, uuid)

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        if tag in state.tags:
            return ()
        _require_free_name(state, name, dropped)
        if clone_tag not in state.tags or tag_key(state.table_uuid, uuid) in state.condemned:
            raise CommitConflictError(f"branch {name!r} of {state.name} took longer than the grace; make it again")
        dropped_tags = (clone_tag,) if dropped is None or dropped.tag not in state.tags else (clone_tag, dropped.tag)
        forgotten = list_publications(state, name)
        naming = (Tag(tag, base.version, uuid, lake_snapshot), DropTag(dropped_tags))
        return (*naming, ForgetTransactions(forgotten)) if forgotten else naming

    return require_branch(table.log.commit(plan).state, name)
