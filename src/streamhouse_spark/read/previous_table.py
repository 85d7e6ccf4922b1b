"""Reads as of a time from before a table took the place of another one: they read the other one, while it is kept."""

from __future__ import annotations

from streamhouse_spark.errors import SnapshotExpiredError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.replace_table import find_replaced_table


class PreviousTable(TableHandle):
    """A table that was replaced, in its last state. It is read, and nothing else."""

    def __init__(self, table: TableHandle, log: CommitLog, last: TableState) -> None:
        super().__init__(table.storage, table.settings, table.path, log, table.world)
        self._last = last

    @property
    def state(self) -> TableState:
        return self._last

    def refresh(self) -> TableState:
        return self._last

    def look(self, at_most: int) -> TableState:  # noqa: ARG002 - nothing comes any more
        return self._last


def table_of_time(table: TableHandle, state: TableState, timestamp_ms: int) -> tuple[TableHandle, TableState]:
    """Return the table that the name meant at a time, and its state: this one, or one whose place it took since,
    directly or not, and that one's last state.

    Costs the look at the name's pointers, and where another table had the name before, at that table's log. Raises
    `SnapshotExpiredError` where that table is being deleted.
    """
    if table.path.branch is not None:
        return table, state
    while (replaced := find_replaced_table(table.storage, table.world, table.path, table.uuid)) is not None:
        if timestamp_ms >= replaced.dropped.time_ms:
            break
        if replaced.log.state.buried:
            raise SnapshotExpiredError(
                f"{table.name} as of {timestamp_ms} ms: another table had the name until {replaced.dropped.time_ms} "
                "ms, and is no longer kept; choose a later time"
            )
        state = replaced.last(table.storage)
        table = PreviousTable(table, replaced.log, state)
    return table, state
