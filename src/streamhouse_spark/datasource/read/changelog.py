"""Batch reads of the changelog of a log table from which rows were deleted or partitions dropped.

Offsets identify appended rows but do not show deletions, so the changes are planned by commit. Times select commits,
and offsets select rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from streamhouse_spark.config.spark_options import FULL, LATEST, ReadOptions
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.datasource.read.read_target import batch_ranges
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.change_feed.planning import (
    ChangesPlan,
    commits_between,
    last_commit_before,
    plan_changelog_rows,
    plan_changes,
    with_changelog_types,
)
from streamhouse_spark.read.scan_planning import Pruning
from streamhouse_spark.read.scan_tasks import ChangesScanTask
from streamhouse_spark.table_handle import TableHandle


def plan_changelog(table: TableHandle, state: TableState, options: ReadOptions) -> ChangesPlan:
    """Plan the changes that the options select. Without a start time, start at the first commit after which all changes
    are retained.

    Raises `InvalidOptionError` in the cases of `batch_ranges`. Raises `OffsetsTrimmedError` if changes since the start
    time are no longer retained, unless ``failOnDataLoss`` is false.
    """
    ranges = _requested_offsets(state, options)
    last, end_ms = state.version, options.ending_timestamp_ms
    if end_ms is not None:
        last = last_commit_before(table.storage, state, end_ms * 1000)
    if options.starting_timestamp_ms is None or not options.fail_on_data_loss:
        plan = plan_changelog_rows(table, state, last)
    else:
        start_us = options.starting_timestamp_ms * 1000
        first, _ = commits_between(table.storage, state, start_us, None, includes=(True, True))
        plan = with_changelog_types(plan_changes(table, state, first, last, Pruning()))
    tasks = plan.tasks
    if options.starting_timestamp_ms is not None and not options.fail_on_data_loss:
        start_us = options.starting_timestamp_ms * 1000
        tasks = tuple(replace(task, commits=commits) for task in tasks if (commits := task.commits.since(start_us)))
    return replace(plan, tasks=tasks if ranges is None else tuple(_restrict_to_offsets(tasks, ranges)))


def _requested_offsets(state: TableState, options: ReadOptions) -> Mapping[int, OffsetRange] | None:
    """Return bucket → offsets of the rows whose changes are requested, or None for all rows."""
    by_start = options.starting_timestamp_ms is None and options.starting_offsets != FULL
    by_end = options.ending_timestamp_ms is None and options.ending_offsets != LATEST
    if not (by_start or by_end):
        return None
    offset_options = replace(options, starting_timestamp_ms=None, ending_timestamp_ms=None)
    offset_options = offset_options if by_start else replace(offset_options, starting_offsets=FULL)
    ranges = batch_ranges(state, offset_options if by_end else replace(offset_options, ending_offsets=LATEST))
    return ranges if by_start else {bucket: OffsetRange(0, rows.end) for bucket, rows in ranges.items()}


def _restrict_to_offsets(
    tasks: tuple[ChangesScanTask, ...], ranges: Mapping[int, OffsetRange]
) -> Iterator[ChangesScanTask]:
    """Drop changes of rows outside the ranges, and of rows without an offset."""
    for task in tasks:
        offsets = ranges.get(task.bucket) if task.bucket is not None else None
        if offsets is not None and (commits := task.commits.within(offsets)):
            yield replace(task, commits=commits)
