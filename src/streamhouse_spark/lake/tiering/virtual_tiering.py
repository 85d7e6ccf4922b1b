"""Tiering into a virtual lake table: all rows of the log in one round, without a record in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from streamhouse_spark.errors import CommitConflictError, OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.lake.snapshot_history import require_same_history
from streamhouse_spark.lake.table import LakeTable
from streamhouse_spark.lake.tiering.round import RunTasks, plan_round, write_round
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.state import TableState

CONFLICTS_MAX: Final = 5


def tier_to_virtual_table(
    log: CommitLog, lake: LakeTable, run_tasks: RunTasks, check: Callable[[TableState], object]
) -> TableState:
    """Bring an unrecorded lake up to the latest state of the log, and return that state.

    Reads the lake before the log, so that the log is never behind it. **Commit point:** the lake's snapshot, fenced by
    its offsets; a loser reads again and finds most of the work done. ``check`` rejects a state. Raises
    `CommitConflictError` if concurrent processes keep winning, `OffsetsTrimmedError` or `LakeRolledBackError` if the
    lake is too old for the log.
    """
    conflicts = 0
    while True:
        try:
            with lake.cache_metadata_for_round():
                newest = lake.newest()
                state = log.refresh()
                check(state)
                lake = lake.with_state(state)
                lake.create_or_evolve()
                require_same_history(log, newest)
                plan = plan_round(state, newest, state.ends)
                if not plan.is_due:
                    return state
                context = lake.write_context()
            files = write_round(lake, context, plan, run_tasks)
            snapshot = lake.commit(
                files,
                expected=plan.offsets,
                new=plan.new,
                context=context,
                expected_starts=plan.starts,
                starts=state.first_offsets,
                absent=plan.absent_from(lake),
            )
        except (CommitConflictError, SnapshotExpiredError, OffsetsTrimmedError):
            conflicts += 1
            if conflicts > CONFLICTS_MAX:
                raise
            continue
        if snapshot is None or plan.reaches_all(state.ends):
            return state
