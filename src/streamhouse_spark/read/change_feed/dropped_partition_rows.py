"""Rows that went with a partition, told by the lake where the record of the drop does not name all of them.

A record names those that the log still had, so that its readers leave them out. The others are told by the files that
the drop took away, as long as the lake keeps the snapshot before it.
"""

from __future__ import annotations

from streamhouse_spark.errors import LakeMismatchError, LakeRolledBackError, SnapshotExpiredError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.lake.tiering.partition_drops import find_lost_rows
from streamhouse_spark.log.commits.actions import TieredSnapshot
from streamhouse_spark.log.commits.delete_vectors import NO_FILE_ROWS, PartitionDropRows, without_rows
from streamhouse_spark.log.commits.history import state_at
from streamhouse_spark.read.change_feed.commit_diff import Rows

EXPIRED_ERRORS = (SnapshotExpiredError, LakeRolledBackError, LakeMismatchError)


def find_rows_lost_by_record(
    table: TableHandle, number: int, pair: TieredSnapshot, dropped: PartitionDropRows | None
) -> Rows | None:
    """Return the rows with offsets that a record lost and that ``dropped`` does not name, ``pair`` being its lake
    snapshot. None where nothing tells them any more, or tells rows without offsets that it does not name.
    """
    try:
        before = state_at(table.log, table.storage, number - 1)
        lost = find_lost_rows(before, table.open_lake().with_state(before), pair)
    except EXPIRED_ERRORS:
        return None
    if lost is None or lost.files != (dropped.files if dropped is not None else NO_FILE_ROWS):
        return None
    return without_rows(lost.rows, dropped.rows if dropped is not None else {})
