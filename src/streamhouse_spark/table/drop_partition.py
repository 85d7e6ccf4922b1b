"""Drop of partitions, for `Table.drop_partition`, the command line and Spark SQL.

In a **log table** the rows are dropped from the lake, because the hot log has one range of offsets for all partitions:

1. Rows committed before the call are tiered.
2. One lake snapshot drops the files of the partitions. **Commit point:** the lake's metadata version, or Paimon's
   snapshot.
3. The log records the new tiered snapshot. Later reads of the table do not return the rows. After a crash, the next
   tiering round records it.

No reader sees a part of a partition: readers with an older read snapshot see all of it. The hot log keeps the rows, for
streams that start earlier, until it is trimmed.

If the partitioning of a log table was changed (`table/alter.py`), lake files may contain rows of several partitions.
Then the rows are deleted individually. **Commit point:** the record that names them.

In a **primary-key table** the rows are deleted by key (`streamhouse_spark.kv.partition_overwrite`). **Commit point:**
the record with all deletions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.dml.delete import delete_rows
from streamhouse_spark.dml.overwrite import partition_filter
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.log.catalog.branches import require_no_branch
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.snapshot_fallback import InitialSchema, fall_back_to_lake_snapshot
from streamhouse_spark.read.snapshot_reader import read_hot_rows, read_latest
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.auto_compaction import compact_if_due

if TYPE_CHECKING:
    from streamhouse_spark.kv.tablet import Tablet
    from streamhouse_spark.lake.base import LakeTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DropPartitionReport:
    """The dropped rows and files, or with ``dry_run`` the rows and files that would be dropped."""

    rows: int
    files: int = 0
    """Dropped lake files; 0 if rows were deleted individually or by key."""
    snapshot_id: int | None = None
    """The lake snapshot without the rows; None if there was nothing to drop, or the deletions are in the log."""
    dry_run: bool = False


def drop_partitions(table: TableHandle, chosen: PartitionMatches, *, dry_run: bool = False) -> DropPartitionReport:
    """Drop all matching partitions in one commit; see `Table.drop_partition`."""
    state = table.refresh()
    require_no_branch(state, "dropping a partition")
    if state.primary_key:
        _require_deletable(table, state)
        return _count_rows(table, chosen) if dry_run else _delete_by_key(table, chosen)
    if not table.properties.datalake_enabled:
        raise InvalidOptionError(
            f"cannot drop a partition of table {table.name}: it has neither a lake nor a primary key "
            "(table.datalake.enabled is false); set table.datalake.enabled to true and drop the partition, or let "
            "table.log.ttl trim the log"
        )
    if state.former_partitionings:
        return _count_rows(table, chosen) if dry_run else _delete_by_offset(table, chosen)
    lake = table.open_lake()
    if dry_run:
        return _count_dropped(table, lake, chosen)
    lake.drop_partitions(chosen, below={}, dry_run=True)  # validates before anything is tiered
    return _drop_from_lake(table, state.ends, chosen)


# -- log tables --------------------------------------------------------------------------------------------------------


def _drop_from_lake(table: TableHandle, ends: Mapping[int, int], chosen: PartitionMatches) -> DropPartitionReport:
    """Tier the table, and drop the rows below ``ends``."""
    from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally

    TieringJob(table.log, table.open_lake(), world=table.world, is_before_drop=True).run(
        run_tasks_locally(table.storage, table.settings, table.world)
    )
    lake = table.open_lake()  # with the current columns
    report = lake.drop_partitions(chosen, below=ends)
    if not _record_drop(table, lake):
        logger.warning("%s: dropped %s from the lake; the next tiering round records it", table.name, chosen)
    return DropPartitionReport(report.rows, report.files, report.snapshot.id if report.snapshot is not None else None)


def _record_drop(table: TableHandle, lake: LakeTable) -> bool:
    """Record the drop in the log. Returns False after a conflict, which does not fail the drop."""
    from streamhouse_spark.lake.tiering.record_snapshot import record_latest_snapshot

    try:
        return record_latest_snapshot(table.log, lake)
    except CommitConflictError:
        return False


def _count_dropped(table: TableHandle, lake: LakeTable, chosen: PartitionMatches) -> DropPartitionReport:
    """Count the rows of the latest lake snapshot, and the later rows in the hot log."""
    snapshot = fall_back_to_lake_snapshot(table)
    below = snapshot.lake.offsets if snapshot.lake is not None else {}
    in_lake = lake.drop_partitions(chosen, below=below, dry_run=True)
    columns = Projection.of(snapshot.state.schema, chosen.columns, None)
    hot_rows = sum(int(chosen.mask(rows).sum()) for rows in read_hot_rows(table, snapshot, columns))
    return DropPartitionReport(in_lake.rows + hot_rows, in_lake.files, dry_run=True)


# -- tables whose partitioning was changed ----------------------------------------------------------------------------


def _delete_by_offset(table: TableHandle, chosen: PartitionMatches) -> DropPartitionReport:
    initial = InitialSchema(None, reader="dropping a partition of {name}", advice="run it again")
    return DropPartitionReport(delete_rows(table, lambda _schema: partition_filter(chosen), initial))


def _count_rows(table: TableHandle, chosen: PartitionMatches) -> DropPartitionReport:
    state = table.refresh()
    rows = read_latest(table, take_latest_snapshot(state), Projection.of(state.schema, chosen.columns, None))
    return DropPartitionReport(int(chosen.mask(rows).sum()), dry_run=True)


# -- primary-key tables ------------------------------------------------------------------------------------------------


def _require_deletable(table: TableHandle, state: TableState) -> None:
    from streamhouse_spark.kv.primary_key_properties import parse_keyed_properties

    behavior = parse_keyed_properties(state.properties, state.schema, state.partition_by).delete_behavior
    if behavior != "allow":
        raise InvalidOptionError(
            f"table {table.name} does not support deletes (table.delete.behavior is {behavior}), so no partition can "
            "be dropped; set the property to allow if the last row wins or columns are aggregated"
        )


def _delete_by_key(table: TableHandle, chosen: PartitionMatches) -> DropPartitionReport:
    from streamhouse_spark.kv.partition_overwrite import PartitionDeletion
    from streamhouse_spark.write.upsert import PrimaryKeyTable

    keyed = PrimaryKeyTable(table)

    def tablet_of(bucket: int) -> Tablet:
        return keyed.keyed_schema().tablet_of(bucket)

    delete = PartitionDeletion(table.log, table.storage, table.world, table.segment_options, tablet_of, chosen)
    rows = delete.run()
    compact_if_due(table, table.state)
    return DropPartitionReport(rows)
