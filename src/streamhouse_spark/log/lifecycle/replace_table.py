"""Replaces a table by another one under its name: CREATE OR REPLACE TABLE with another schema.

The new table is created and filled without a name. **Commit point:** the record that drops the old table and names its
successor. There is no moment without a table, and none in which both accept rows: a holder of the old one finds it
dropped. A process that resolves the name before its pointer is updated finds the old table, and follows it to the
successor. The pointer is put after the record, by any process. It must exist before the old table is undropped or
buried.
"""

from __future__ import annotations

import logging

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import CommitConflictError, ObjectNotFoundError, TableNotFoundError
from streamhouse_spark.log.commits.actions import Drop, Rename
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.history import state_at
from streamhouse_spark.log.commits.record import Record, read_record
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle import names
from streamhouse_spark.storage.base import Storage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplacedTable:
    """A table that was replaced by another."""

    log: CommitLog
    dropped: Record
    """The record that dropped it: from its time on the name means the successor."""

    def last(self, storage: Storage) -> TableState:
        """Return its last state before that. Raises as `state_at`."""
        return state_at(self.log, storage, self.dropped.number - 1)


def find_replaced_table(storage: Storage, world: World, path: TablePath, uuid: str) -> ReplacedTable | None:
    """Return the table that ``uuid`` replaced under its name.

    None if there was none, if it was undropped under another name, or if its records were deleted.
    """
    for other in names.iter_pointed_tables(storage, path):
        if other == uuid:
            continue
        log = CommitLog(storage, other, world)
        try:
            if log.refresh().successor == uuid:
                dropped = _drop_of(storage, log)
                return None if dropped is None else ReplacedTable(log, dropped)
        except (TableNotFoundError, ObjectNotFoundError):
            return None
    return None


def _drop_of(storage: Storage, log: CommitLog) -> Record | None:
    """Return the record that dropped a table; only clean-up records follow it. Raises `ObjectNotFoundError`."""
    for version in range(log.state.version, 0, -1):
        record, _ = read_record(storage, log.table_uuid, version)
        if any(isinstance(action, Drop) for action in record.actions):
            return record
    return None


def follow_replacements(storage: Storage, world: World, log: CommitLog) -> CommitLog:
    """Return the log, read to its tail, or that of the table that finally replaced its table.

    Raises as `CommitLog.refresh`.
    """
    state = log.refresh()
    while state.dropped and state.successor is not None:
        log = CommitLog(storage, state.successor, world)
        state = log.refresh()
    return log


def commit_replacement(storage: Storage, world: World, path: TablePath, old: CommitLog, new: CommitLog) -> None:
    """Replace the table with this name by one without a name. **Commit point:** see the module.

    Raises `CommitConflictError` if the old table was dropped, renamed or replaced since it was opened, or if the new
    one waited so long that maintenance dropped it. The name is unchanged then.
    """

    def is_replaceable(state: TableState) -> bool:
        return not state.dropped and state.name == str(path)

    # A new record resets its age, so that maintenance does not take it for an abandoned table.
    new.commit(lambda state, _time_ms: (Rename(state.name),) if is_replaceable(state) else ())
    if not is_replaceable(new.state):
        raise CommitConflictError(f"the table that should replace {path} waited too long and was cleaned up; try again")
    old.commit(lambda state, _time_ms: (Drop(new.table_uuid),) if is_replaceable(state) else ())
    if old.state.successor != new.table_uuid:
        raise CommitConflictError(
            f"table {path} was dropped, renamed or replaced by another while it was being replaced; nothing was "
            "changed, run it again"
        )
    with log_post_commit_errors(logger, "moving the name", path):
        update_replaced_name(storage, world, old)


def update_replaced_name(storage: Storage, world: World, log: CommitLog) -> None:
    """Point the name of a replaced table to its successor, unless that was done. Uses the known state of its log."""
    state = log.state
    if not state.dropped or state.successor is None:
        return
    database, _, table = state.name.partition(".")
    path = TablePath(database, table)
    pointer = names.resolve(storage, path)
    while pointer.uuid == state.table_uuid:
        names.point(storage, path, pointer, state.successor, world)
        pointer = names.resolve(storage, path)
