"""Compaction of a table's small segments, by writers and by maintenance. **Commit point:** one record."""

from __future__ import annotations

import logging
import threading
import weakref
from functools import partial
from typing import Final

from streamhouse_spark.core.concurrency import new_lock, try_lock
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.warehouse_layout import commits_prefix
from streamhouse_spark.log.compaction import (
    has_much_inline,
    is_inline_merge_due,
    merge,
    plan_inline_merge,
    plan_small_merge,
)
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.local import only_process
from streamhouse_spark.table_handle import TableHandle

logger = logging.getLogger(__name__)

MERGE_LOCK_NAME: Final = ".tmp-merging"
"""The file that a process locks while it compacts: a temporary file that is never listed and that cleaning removes."""
OVERDUE: Final = 2
"""Multiple of the due amount of inline rows at which they are compacted even if another process does so."""
_merge_locks: weakref.WeakValueDictionary[tuple[str, str], threading.RLock] = weakref.WeakValueDictionary()
_merge_locks_guard = new_lock()
"""Guards the locks. A forked child may see one more or fewer, which is harmless."""


def merge_inline(table: TableHandle, state: TableState | None = None) -> int:
    """Compact inline rows of a state, by default the latest, into one segment per bucket.

    Returns the number of replaced segments.
    """
    runs = plan_inline_merge(state or table.refresh())
    return merge(table.log, table.storage, table.world, runs, table.segment_options())


def merge_small(table: TableHandle, state: TableState | None = None) -> int:
    """Compact runs of small adjacent segments, and return the number of replaced ones; see `merge_inline`."""
    runs = plan_small_merge(state or table.refresh())
    return merge(table.log, table.storage, table.world, runs, table.segment_options())


def merge_if_due(table: TableHandle, state: TableState) -> None:
    """Compact inline rows in the background if the state after a write needs it. A failure is only logged.

    A writer that is so fast that twice the due amount is inline waits for the running compaction.

    One thread of this process compacts at a time, and one process of this host: all others would lose the race. A write
    that finds a compaction in progress leaves the work to a later write. A process that stalls in a compaction blocks
    the others until twice the due amount is inline.
    """
    if not is_inline_merge_due(state):
        return
    background, place = table.world.post_commit_executor, (table.storage.url, table.uuid)
    if has_much_inline(state, OVERDUE):
        background.finish(place)
    background.start(place, partial(_merge, table, state))


def _merge(table: TableHandle, state: TableState) -> None:
    with log_post_commit_errors(logger, "merging inline rows", table.name), try_lock(_merge_lock(table)) as is_held:
        if is_held:
            _merge_if_alone(table, state)


def _merge_if_alone(table: TableHandle, state: TableState) -> None:
    with only_process(table.storage.local_path(f"{commits_prefix(table.uuid)}{MERGE_LOCK_NAME}")) as is_alone:
        if not is_alone and not has_much_inline(state, OVERDUE):
            return
        if has_much_inline(newest := table.refresh()):  # unless another process compacted since the write
            merge(table.log, table.storage, table.world, plan_inline_merge(newest), table.segment_options())


def _merge_lock(table: TableHandle) -> threading.RLock:
    """Return the lock of a table's compactions, shared by all handles of the table in this process."""
    place = table.storage.url, table.uuid
    with _merge_locks_guard:
        turn = _merge_locks.get(place)
        if turn is None:
            turn = _merge_locks[place] = new_lock()
        return turn
