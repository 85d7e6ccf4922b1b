"""Branches whose publication or drop was interrupted because its process died.

The rows of the branch and its table are correct. But a sealed branch accepts no rows, and an ended or published log
retains files until the operation is finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from streamhouse_spark.config.branch_metadata import BranchMark
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import PUBLICATIONS
from streamhouse_spark.errors import TableNotFoundError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.branches import find_branches
from streamhouse_spark.storage.prefetch import map_with_store_concurrency


@dataclass(frozen=True, slots=True)
class IncompleteBranch:
    """A branch whose own log and table log disagree."""

    name: str
    is_: Literal["sealed", "dropped", "published"]
    """``sealed``: it accepts no rows, and the table does not have them. ``dropped``: its log has ended, and the table
    still names it. ``published``: the table has its rows, and its log has not ended."""
    since_ms: int
    """Store time of the latest record of the branch's log; 0 if the log was deleted."""


def find_incomplete_branches(table: TableHandle) -> list[IncompleteBranch]:
    """Return the incomplete branches of a table in its cached state.

    Reads the log of each branch, and of the last published branch of each name.
    """
    state = table.state
    named = {branch.uuid: branch.name for branch in find_branches(state)}
    published = dict(_iter_published_branches(state))
    uuids = [*named, *(uuid for uuid in published if uuid not in named)]

    def look(uuid: str) -> IncompleteBranch | None:
        branch_state = _read_branch_state(table, uuid)
        if uuid not in named:
            is_open = branch_state is not None and not branch_state.dropped
            return (
                IncompleteBranch(published[uuid], "published", branch_state.time_ms)
                if is_open and branch_state
                else None
            )
        if branch_state is None or branch_state.dropped:
            return IncompleteBranch(named[uuid], "dropped", branch_state.time_ms if branch_state is not None else 0)
        mark = BranchMark.of_properties(branch_state.properties)
        is_sealed = mark is not None and mark.is_sealed
        return IncompleteBranch(named[uuid], "sealed", branch_state.time_ms) if is_sealed else None

    return [unsettled for unsettled in map_with_store_concurrency(table.storage, look, uuids) if unsettled is not None]


def _iter_published_branches(state: TableState) -> Iterator[tuple[str, str]]:
    """Yield uuid and name of the last published branch of each name."""
    for app_id in state.transactions:
        if app_id.startswith(PUBLICATIONS):
            name, _, uuid = app_id.removeprefix(PUBLICATIONS).partition(".")
            yield uuid, name


def _read_branch_state(table: TableHandle, uuid: str) -> TableState | None:
    """Return the latest state of a branch's log; None if the log was deleted."""
    try:
        return CommitLog(table.storage, uuid, table.world).refresh()
    except TableNotFoundError:
        return None
