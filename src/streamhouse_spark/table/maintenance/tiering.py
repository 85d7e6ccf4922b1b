"""Tiering of one table, and the rebuild of its lake."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from streamhouse_spark.config.table_properties import ADOPTED
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import parse_table_name, rebuilt_lake_location
from streamhouse_spark.errors import InvalidOptionError, OffsetsTrimmedError, count_of
from streamhouse_spark.lake.tiering.job import TieringJob, TieringReport
from streamhouse_spark.lake.tiering.round import RunTasks
from streamhouse_spark.log.actions import Action, ResetLake
from streamhouse_spark.log.catalog.branches import require_no_branch
from streamhouse_spark.log.deletion_vectors import DeleteRows, count_rows, union_deleted_file_rows
from streamhouse_spark.log.state import TableState
from streamhouse_spark.table_handle import TableHandle

logger = logging.getLogger(__name__)


def tier_table(table: TableHandle, run_tasks: RunTasks) -> TieringReport:
    """Tier all rows that were committed before the call. ``run_tasks`` writes the files of a round."""
    require_no_branch(table.state, "tiering")
    return TieringJob(table.log, table.open_lake(), world=table.world).run(run_tasks)


@dataclass(frozen=True, slots=True)
class RetierReport:
    """The changes of `Table.retier`, or with ``dry_run`` the changes that it would make."""

    table: str
    lake_location: str
    """Key of the new location in the warehouse."""
    former_location: str
    rows: int
    """Rows, or changes of a primary-key table, that the next tiering rounds write."""
    lost_rows: int
    """Rows that were trimmed from the log, and may be only in the former lake table."""
    returned_rows: int
    """Rows of dropped partitions that the log still contains, and that return to the table."""
    dry_run: bool = False


def retier(table: TableHandle, *, allow_loss: bool = False, dry_run: bool = False) -> RetierReport:
    """Rebuild the lake at a new location; see `Table.retier`. Never reads the lake table, which may be lost.

    The key-value snapshots of a primary-key table count as log. **Commit point:** one record.
    """
    if dry_run:
        return _plan_report(table.refresh(), allow_loss=allow_loss, dry_run=True)
    planned: list[RetierReport] = []

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        planned[:] = [_plan_report(state, allow_loss=allow_loss)]
        starts = {bucket: trimmed.end for bucket, trimmed in _find_lost_ranges(state).items()}
        # Dropped rows stay deleted. With an Iceberg lake, the ResetLake action implies that.
        dropped = state.dropped_rows.named.rows if state.parsed.datalake_format != "iceberg" else None
        return [ResetLake(planned[0].lake_location, starts), *((DeleteRows(dropped),) if dropped else ())]

    table.log.commit(plan)
    logger.warning("rebuilding the lake of %s: %s", table.name, planned[0])
    return planned[0]


def _plan_report(state: TableState, *, allow_loss: bool, dry_run: bool = False) -> RetierReport:
    """Return the changes for a table in ``state``. Raises the errors of `Table.retier`."""
    require_no_branch(state, "rebuilding a lake")
    properties = state.parsed
    if not properties.datalake_enabled:
        raise InvalidOptionError(
            f"table {state.name} has no lake to rebuild: table.datalake.enabled is false; set it to true first"
        )
    if ADOPTED in state.properties:
        raise InvalidOptionError(
            f"the lake of {state.name} cannot be rebuilt: it was adopted, and the adopted rows are not in the log; "
            "restore the lake table, or create a table and write the rows that can still be read into it"
        )
    lost = _find_lost_ranges(state)
    lost_rows = sum(map(len, lost.values()))
    returned_rows = _count_returning_rows(state)
    if lost and not allow_loss:
        bucket, trimmed = next(iter(lost.items()))
        raise OffsetsTrimmedError(
            f"the lake of {state.name} cannot be rebuilt: {count_of(lost_rows, 'row')} were trimmed from the hot log "
            f"(bucket {bucket}: offsets {trimmed}); nothing was changed, restore the lake, or accept the loss with "
            "allow_loss=True"
        )
    if returned_rows and not allow_loss:
        raise OffsetsTrimmedError(
            f"the lake of {state.name} cannot be rebuilt: {count_of(returned_rows, 'row')} of dropped partitions may "
            "still be in the hot log and would return; nothing was changed, accept it with allow_loss=True, then drop "
            "the partitions again"
        )
    rows = sum(log.end - state.first_offset(bucket) for bucket, log in state.buckets.items()) - lost_rows
    number = len(state.former_lakes) + 1
    path = parse_table_name(state.name).path
    location = rebuilt_lake_location(path, state.table_uuid, number, lake_format=properties.datalake_format)
    return RetierReport(state.name, location, state.lake_location, rows, lost_rows, returned_rows, dry_run)


def _count_returning_rows(state: TableState) -> int:
    """Return an upper bound of the rows of dropped partitions in the log, which would return."""
    if state.primary_key or state.lake is None:
        return 0
    tiered = sum(max(0, state.lake_offset(bucket) - log.start) for bucket, log in state.buckets.items())
    without_offsets = count_rows(union_deleted_file_rows(state.deletions))  # they may still be in the log
    return min(tiered, max(0, state.lake.dropped_rows - state.dropped_rows.accounted) + without_offsets)


def _find_lost_ranges(state: TableState) -> Mapping[int, OffsetRange]:
    """Return bucket → offsets that are in neither the log nor a key-value snapshot."""
    snapshot_ends = {bucket: snapshot.offset for bucket, snapshot in state.snapshots.items()}
    return {
        bucket: OffsetRange(state.first_offset(bucket), log.start)
        for bucket, log in state.buckets.items()
        if log.start > max(state.first_offset(bucket), snapshot_ends.get(bucket, 0))
    }
