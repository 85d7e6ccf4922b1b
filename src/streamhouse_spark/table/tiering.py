"""Tiering of one table."""

from __future__ import annotations

from streamhouse_spark.handle import TableHandle
from streamhouse_spark.lake.tiering.job import TieringJob, TieringReport
from streamhouse_spark.lake.tiering.round import RunTasks
from streamhouse_spark.log.lifecycle.branches import require_no_branch


def tier_table(table: TableHandle, run_tasks: RunTasks) -> TieringReport:
    """Tier all rows that were committed before the call; ``run_tasks`` writes the files of a round."""
    require_no_branch(table.state, "tiering")
    return TieringJob(table.log, table.open_lake(), world=table.world).run(run_tasks)
