"""Dropped tables that are not cleaned yet, and how to find the one to restore."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from streamhouse_spark.config.branch_metadata import BRANCH
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.core.paths import TABLES_PREFIX
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import StreamhouseError, TableNotFoundError
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.storage.base import Storage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DroppedTable:
    name: str
    """The table's last name."""
    uuid: str
    dropped_ms: int
    """Store time of the latest record of its log: of the drop, or of a later cleaning step. The grace period of
    `Warehouse.clean_dropped` starts here."""
    rows: int
    """Rows written since it was created or truncated; for a primary-key table, changes."""


def list_dropped_tables(storage: Storage, world: World) -> list[DroppedTable]:
    """Return the dropped tables by name, the latest first. Unreadable ones are logged and skipped."""

    def look(uuid: str) -> TableState | None:
        try:
            return CommitLog(storage, uuid, world).refresh()
        except TableNotFoundError:  # buried, or without a first record
            return None
        except StreamhouseError as error:
            logger.warning("table %s cannot be read: %s", uuid, error)
            return None

    states = parallel_map(look, storage.list_names(TABLES_PREFIX))
    dropped = [
        DroppedTable(state.name, state.table_uuid, state.time_ms, state.num_rows)
        for state in states
        if state is not None and state.dropped and not state.buried and BRANCH not in state.properties
    ]
    return sorted(dropped, key=lambda table: (table.name, -table.dropped_ms, table.uuid))


def find_dropped_table(dropped: Sequence[DroppedTable], path: TablePath, uuid: str | None, url: str) -> DroppedTable:
    """Return the last dropped table of this name, or the one with this uuid. Raises `TableNotFoundError`."""
    of_name = [table for table in dropped if table.name == str(path)]
    fitting = [table for table in of_name if uuid in (None, table.uuid)]
    if fitting:
        return fitting[0]
    if of_name:
        hint = f"dropped under that name are {', '.join(table.uuid for table in of_name[:5])}"
    else:
        near = find_nearest(str(path), [table.name for table in dropped])
        names = ", ".join(dict.fromkeys(table.name for table in dropped[:10]))
        hint = f"did you mean {near}?" if near else f"dropped tables there: {names or 'none'}"
    which = f"{path} ({uuid})" if uuid is not None else str(path)
    raise TableNotFoundError(
        f"no dropped table {which} in {url} can be restored; {hint}. Cleaning deletes the files of dropped tables "
        "once the grace is over"
    )
