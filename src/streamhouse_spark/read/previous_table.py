"""Time travel across CREATE OR REPLACE TABLE.

A read as of a time before the replacement reads the replaced table, if it is still retained.
"""

from __future__ import annotations

from streamhouse_spark.errors import SnapshotExpiredError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.replace_table import find_replaced_table


class PreviousTable(TableHandle):
    """A replaced table in its last state, for reads only."""

    def __init__(self, table: TableHandle, log: CommitLog, last: TableState) -> None:
        super().__init__(table.storage, table.settings, table.path, log, table.world)
        self._last = last

    @property
    def state(self) -> TableState:
        return self._last

    def refresh(self) -> TableState:
        return self._last

    def look(self, at_most: int) -> TableState:  # noqa: ARG002 - a replaced table has no new commits
        return self._last


def table_as_of(table: TableHandle, state: TableState, timestamp_ms: int) -> tuple[TableHandle, TableState]:
    """Return the table that the name referred to at a time, and its state.

    It is this table, or a table that it replaced directly or indirectly, in that table's last state. Costs one listing
    of the name's pointers, and a read of the log of each replaced table. Raises `SnapshotExpiredError` if that table is
    being deleted.
    """
    if table.path.branch is not None:
        return table, state
    while (replaced := find_replaced_table(table.storage, table.world, table.path, table.uuid)) is not None:
        if timestamp_ms >= replaced.dropped.time_ms:
            break
        if replaced.log.state.buried:
            raise SnapshotExpiredError(
                f"{table.name} as of {timestamp_ms} ms: another table had the name until {replaced.dropped.time_ms} "
                "ms, and was deleted; choose a later time"
            )
        state = replaced.last(table.storage)
        table = PreviousTable(table, replaced.log, state)
    return table, state
