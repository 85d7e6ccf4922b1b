"""Merging of a table's segments: optional work of writers, and a step of maintenance. **Commit point:** one record."""

from __future__ import annotations

import logging

from streamhouse_spark.core.aftermath import after_commit
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.compaction import inline_merge_due, merge, plan_inline_merge, plan_small_merge

logger = logging.getLogger(__name__)


def merge_inline(table: TableHandle) -> int:
    """Move inline rows of commit records into one segment a bucket. Returns the number of replaced segments."""
    return merge(table.log, table.storage, table.world, plan_inline_merge(table.refresh()), table.segment_options())


def merge_small(table: TableHandle) -> int:
    """Merge runs of small adjacent segments. Returns the number of replaced segments."""
    return merge(table.log, table.storage, table.world, plan_small_merge(table.refresh()), table.segment_options())


def merge_if_due(table: TableHandle, state: TableState) -> None:
    """Merge inline rows if the state after a write asks for it. The write is done, so a failure is only logged."""
    if inline_merge_due(state):
        with after_commit(logger, "merging inline rows", table.name):
            merge_inline(table)
