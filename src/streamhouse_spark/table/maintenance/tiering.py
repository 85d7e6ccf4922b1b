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
    """Tier all rows that were committed before the call; ``run_tasks`` writes the files of a round."""
    require_no_branch(table.state, "tiering")
    return TieringJob(table.log, table.open_lake(), world=table.world).run(run_tasks)


@dataclass(frozen=True, slots=True)
class RetierReport:
    """Changes that `retier` made, or with ``dry_run`` would make."""

    table: str
    lake_location: str
    """Key of the new location in the warehouse."""
    former_location: str
    rows: int
    """Offsets that the next rounds tier: rows, or changes of a primary-key table."""
    lost_rows: int
    """Offsets that were trimmed from the log: only the former lake table may have these rows."""
    returned_rows: int
    """Rows of dropped partitions that the log still holds and that return to the table."""
    dry_run: bool = False


def retier(table: TableHandle, *, allow_loss: bool = False, dry_run: bool = False) -> RetierReport:
    """Move the lake to a new location, where the next round tiers all rows of the log.

    Never reads the lake table, which may be lost. For a primary-key table the key-value snapshots count as log. Rows
    that other engines wrote to the lake are not in the log. Deleted rows and dropped partitions stay deleted. Unless
    ``allow_loss``, it fails before any change if rows were trimmed from the log, which would be lost, or if the log may
    hold rows of dropped partitions that no record names and that would return.

    **Commit point:** the record. Raises `OffsetsTrimmedError` with the numbers, `InvalidOptionError` for a table
    without a lake or with an adopted one, `TableNotFoundError`.
    """
    if dry_run:
        return _plan_report(table.refresh(), allow_loss=allow_loss, dry_run=True)
    planned: list[RetierReport] = []

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        planned[:] = [_plan_report(state, allow_loss=allow_loss)]
        starts = {bucket: trimmed.end for bucket, trimmed in _find_lost_ranges(state).items()}
        # Dropped rows stay deleted. With an Iceberg lake the record of the new lake implies it.
        dropped = state.dropped_rows.named.rows if state.parsed.datalake_format != "iceberg" else None
        return [ResetLake(planned[0].lake_location, starts), *((DeleteRows(dropped),) if dropped else ())]

    table.log.commit(plan)
    logger.warning("the lake of %s is rebuilt: %s", table.name, planned[0])
    return planned[0]


def _plan_report(state: TableState, *, allow_loss: bool, dry_run: bool = False) -> RetierReport:
    """Return the effect on a table of this state. Raises if it is not allowed."""
    require_no_branch(state, "building a lake anew")
    properties = state.parsed
    if not properties.datalake_enabled:
        raise InvalidOptionError(
            f"table {state.name} has no lake to rebuild: table.datalake.enabled is false; set it to true first"
        )
    if ADOPTED in state.properties:
        raise InvalidOptionError(
            f"table {state.name} was made of a lake table, whose rows the log never had: its lake cannot be "
            "rebuilt; bring the lake table back, or create a table and write the rows that can still be read into it"
        )
    lost = _find_lost_ranges(state)
    lost_rows = sum(map(len, lost.values()))
    returned_rows = _count_returning_rows(state)
    if lost and not allow_loss:
        bucket, trimmed = next(iter(lost.items()))
        raise OffsetsTrimmedError(
            f"the lake of {state.name} cannot be rebuilt: it alone has {count_of(lost_rows, 'row')} that the hot log "
            f"no longer has (bucket {bucket}: offsets {trimmed}), and nothing was changed; bring the lake back, or "
            "give these rows up with allow_loss=True"
        )
    if returned_rows and not allow_loss:
        raise OffsetsTrimmedError(
            f"the lake of {state.name} cannot be rebuilt: {count_of(returned_rows, 'row')} of dropped partitions may "
            "still be in the hot log and would come back, and nothing was changed; allow it with allow_loss=True, "
            "then drop the partitions again"
        )
    rows = sum(log.end - state.first_offset(bucket) for bucket, log in state.buckets.items()) - lost_rows
    number = len(state.former_lakes) + 1
    path = parse_table_name(state.name).path
    location = rebuilt_lake_location(path, state.table_uuid, number, lake_format=properties.datalake_format)
    return RetierReport(state.name, location, state.lake_location, rows, lost_rows, returned_rows, dry_run)


def _count_returning_rows(state: TableState) -> int:
    """Return the maximum number of rows of dropped partitions in the log that would return."""
    if state.primary_key or state.lake is None:
        return 0
    tiered = sum(max(0, state.lake_offset(bucket) - log.start) for bucket, log in state.buckets.items())
    of_files = count_rows(union_deleted_file_rows(state.deletions))  # whose places in the log are not known
    return min(tiered, max(0, state.lake.dropped_rows - state.dropped_rows.accounted) + of_files)


def _find_lost_ranges(state: TableState) -> Mapping[int, OffsetRange]:
    """Bucket → offsets of the table that neither the log nor a key-value snapshot holds."""
    snapshot_ends = {bucket: snapshot.offset for bucket, snapshot in state.snapshots.items()}
    return {
        bucket: OffsetRange(state.first_offset(bucket), log.start)
        for bucket, log in state.buckets.items()
        if log.start > max(state.first_offset(bucket), snapshot_ends.get(bucket, 0))
    }
