"""Merging of a table's segments: optional work of writers, and a step of maintenance. **Commit point:** one record."""

from __future__ import annotations

import logging
import threading
import weakref
from functools import partial
from typing import Final

from streamhouse_spark.core.fork_safety import new_lock, try_lock
from streamhouse_spark.core.paths import commits_prefix
from streamhouse_spark.core.post_commit import after_commit
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.compaction import (
    has_much_inline,
    inline_merge_due,
    merge,
    plan_inline_merge,
    plan_small_merge,
)
from streamhouse_spark.storage.local_commit_lock import only_process

logger = logging.getLogger(__name__)

MERGE_LOCK_NAME: Final = ".tmp-merging"
"""The file that a process locks while it merges: a temporary one, which nobody lists, and cleaning removes."""
OVERDUE: Final = 2
"""Times the rows that make a merge due, which are merged although another process does so."""
_merge_locks: weakref.WeakValueDictionary[tuple[str, str], threading.RLock] = weakref.WeakValueDictionary()
_merge_locks_guard = new_lock()
"""Guards the turns; a child may find one more or less of them, which is as right."""


def merge_inline(table: TableHandle, state: TableState | None = None) -> int:
    """Move inline rows of commit records into one segment a bucket; those of a known state, of the newest by default.
    Returns the number of replaced segments.
    """
    runs = plan_inline_merge(state or table.refresh())
    return merge(table.log, table.storage, table.world, runs, table.segment_options())


def merge_small(table: TableHandle, state: TableState | None = None) -> int:
    """Merge runs of small adjacent segments, of a state as `merge_inline`. Returns the number of replaced segments."""
    runs = plan_small_merge(state or table.refresh())
    return merge(table.log, table.storage, table.world, runs, table.segment_options())


def merge_if_due(table: TableHandle, state: TableState) -> None:
    """Merge inline rows behind the call if the state after a write asks for it. The write is done, so a failure is
    only logged. A writer that is so fast that twice as much is inline waits for the merge that is under way.

    One thread of this process does so at a time, and one process of this host: of several, all but one would lose
    their work. A write that finds a merge under way leaves it to one of the next writes, which finds the rows that are
    still inline. A process that was stopped in a merge keeps others from it until twice as much is inline.
    """
    if not inline_merge_due(state):
        return
    background, place = table.world.after_calls, (table.storage.url, table.uuid)
    if has_much_inline(state, OVERDUE):
        background.finish(place)
    background.start(place, partial(_merge, table, state))


def _merge(table: TableHandle, state: TableState) -> None:
    with after_commit(logger, "merging inline rows", table.name), try_lock(_merge_lock(table)) as is_held:
        if is_held:
            _merge_if_alone(table, state)


def _merge_if_alone(table: TableHandle, state: TableState) -> None:
    with only_process(table.storage.local_path(f"{commits_prefix(table.uuid)}{MERGE_LOCK_NAME}")) as is_alone:
        if not is_alone and not has_much_inline(state, OVERDUE):
            return
        if has_much_inline(newest := table.refresh()):  # not where somebody merged since the write
            merge(table.log, table.storage, table.world, plan_inline_merge(newest), table.segment_options())


def _merge_lock(table: TableHandle) -> threading.RLock:
    """Return the lock of a table's merges, one for all handles of the table in this process."""
    place = table.storage.url, table.uuid
    with _merge_locks_guard:
        turn = _merge_locks.get(place)
        if turn is None:
            turn = _merge_locks[place] = new_lock()
        return turn
