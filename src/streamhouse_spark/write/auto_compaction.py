"""Compaction of the small segments of a table, by writers and by maintenance. **Commit point:** one record."""

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
    merge_runs,
    plan_inline_merge,
    plan_small_merge,
)
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.local import try_hold_lock_file
from streamhouse_spark.table_handle import TableHandle

logger = logging.getLogger(__name__)

MERGE_LOCK_NAME: Final = ".tmp-merging"
"""The file that a process locks while it compacts. Listings omit this temporary file, and cleaning deletes it."""
OVERDUE: Final = 2
"""If inline rows exceed the due amount by this factor, they are compacted even if another process compacts them."""
_merge_locks: weakref.WeakValueDictionary[tuple[str, str], threading.RLock] = weakref.WeakValueDictionary()
_merge_locks_guard = new_lock()
"""Guards the locks."""


def compact_inline_rows(table: TableHandle, state: TableState | None = None) -> int:
    """Compact the inline rows of a state into one segment per bucket. Returns the number of replaced segments.

    ``state`` is by default the latest state.
    """
    runs = plan_inline_merge(state or table.refresh())
    return merge_runs(table.log, table.storage, table.world, runs, table.segment_options())


def compact_small_segments(table: TableHandle, state: TableState | None = None) -> int:
    """Compact runs of small adjacent segments. Returns the number of replaced segments; see `compact_inline_rows`."""
    runs = plan_small_merge(state or table.refresh())
    return merge_runs(table.log, table.storage, table.world, runs, table.segment_options())


def compact_if_due(table: TableHandle, state: TableState) -> None:
    """Compact inline rows in the background if the state after a write has too many. A failure is only logged.

    Only one thread of a host compacts a table at a time, because concurrent compactions conflict. A write during a
    compaction leaves the work to a later write. If the inline rows reach twice the due amount, the writer waits for the
    compaction in this process, and then compacts regardless of a stalled compaction in another process.
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
    with try_hold_lock_file(table.storage.local_path(f"{commits_prefix(table.uuid)}{MERGE_LOCK_NAME}")) as is_alone:
        if not is_alone and not has_much_inline(state, OVERDUE):
            return
        if has_much_inline(latest := table.refresh()):  # unless another process compacted since the write
            compact_inline_rows(table, latest)


def _merge_lock(table: TableHandle) -> threading.RLock:
    """Return the compaction lock of a table, which all of its handles in this process share."""
    place = table.storage.url, table.uuid
    with _merge_locks_guard:
        lock = _merge_locks.get(place)
        if lock is None:
            lock = _merge_locks[place] = new_lock()
        return lock
