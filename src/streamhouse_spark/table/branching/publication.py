"""Publishing a branch: its changes become the table's, all of them or none, and it ends.

**Commit point:** the one record of the table that has the changes and takes the branch's name away. It is a
transaction of the branch's, so whoever publishes again, after a crash or at the same time, adds nothing. Before it the
branch is sealed by a record of its own log: no writer is told of rows that are not published. A crash between the two
leaves a sealed branch, which can be read, published and dropped.

The table takes the changes where it has not changed since the branch began. Where it has, it takes them only if they
are right behind what others committed:

* of a table without a primary key if the branch only added rows;
* of a table with one if nobody changed a key that the branch changed, and no statement read what the other changed
  (`kv.conflict_detection`). The changes are then the net change of each key.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from streamhouse_spark.config.properties import ADOPTED
from streamhouse_spark.core.paths import parse_branch
from streamhouse_spark.core.post_commit import after_commit
from streamhouse_spark.errors import InvalidOptionError, TableNotFoundError, quote
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.kv.read_version import ReadVersion
from streamhouse_spark.log.commits.actions import Action
from streamhouse_spark.log.commits.checkpoint import read_tagged
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.delete_vectors import have_same_files, num_rows_of
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.branches import find_branch, find_publication
from streamhouse_spark.log.staging import ends_after, make_append_action, make_truncate_actions
from streamhouse_spark.table.branching.branch_diff import (
    BranchChanges,
    Publication,
    describe_divergence,
    report_publication,
    require_same_branch,
    seal_branch,
)
from streamhouse_spark.table.branching.branches import end_log, open_log
from streamhouse_spark.table.branching.publish_rows import stage_branch_rows
from streamhouse_spark.table.row_deletion import commit_with_conflict_check, make_delete_actions

logger = logging.getLogger(__name__)

MAIN: Final = "main"


def fast_forward(table: TableHandle, name: str, *, to: str = MAIN) -> Publication:
    """Publish a branch; see `Table.fast_forward`."""
    if to.strip().lower() != MAIN:
        raise InvalidOptionError(
            f"fast_forward(to={quote(to)}): a branch is published to its table, which is called 'main'; leave it out"
        )
    name = parse_branch(name)
    try:
        return _commit_publication(table, name)
    except TableNotFoundError:  # perhaps because others were faster
        state = table.refresh()
        if find_branch(state, name) is not None or (entry := find_publication(state, name)) is None:
            raise
        return Publication(table.name, name, entry.commit)


def _commit_publication(table: TableHandle, name: str) -> Publication:
    branch, log = open_log(table, name)
    base = read_tagged(table.storage, table.uuid, branch.base.version, branch.base.uuid)
    if base.primary_key:
        from streamhouse_spark.table.branching.keyed_publication import publish_keyed as publish
    else:
        publish = _publish
    done = publish(table, BranchChanges(branch, base, log.state), log)
    with after_commit(logger, "ending the log of branch", name):
        end_log(log)
    return done


def _publish(table: TableHandle, changes: BranchChanges, log: CommitLog) -> Publication:
    """Publish a branch of a table without a primary key."""
    _require_publishable(table.state, changes)
    changes = seal_branch(changes, log)
    deleted, files, is_emptied = changes.deleted, changes.files, changes.is_emptied
    staged = stage_branch_rows(table, changes.branch_state, changes.added, rewrites=bool(deleted or files))

    def plan(state: TableState, time_ms: int, read: ReadVersion) -> Sequence[Action]:
        _require_publishable(state, changes)
        emptying = make_truncate_actions(state) if is_emptied else ()
        deletions = make_delete_actions(state, deleted, read, files) if (deleted or files) and not is_emptied else ()
        added = (make_append_action(state, staged, time_ms, ends_after(state, emptying)),) if staged.segments else ()
        return (*emptying, *deletions, *added, *changes.make_end_actions(state))

    read, transaction = ReadVersion.of(changes.base), changes.transaction
    committed = commit_with_conflict_check(
        table, deleted, read, plan, transaction=transaction, staged_ms=staged.staged_ms
    )
    num_deleted: int | None = num_rows_of(deleted) + num_rows_of(files)
    if is_emptied:
        num_deleted = None if ADOPTED in changes.base.properties else changes.base.num_rows
    return report_publication(table, changes, committed, staged.num_rows, num_deleted)


def _require_publishable(state: TableState, changes: BranchChanges) -> None:
    """Raise `CommitConflictError` where the changes are not right behind the state of the table."""
    require_same_branch(state, changes.branch)
    if changes.is_additive:
        return
    if (why := describe_divergence(state, changes.base)) is not None:
        raise changes.conflict_error(f"{why}, and the branch did not only add rows,")
    before, now = (
        table_state.lake.snapshot_id if table_state.lake is not None else None for table_state in (changes.base, state)
    )
    if changes.files and not have_same_files(state.lake_history, before, now):
        raise changes.conflict_error("files of the lake of which it deleted rows may have been written again")
