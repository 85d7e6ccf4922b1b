"""CREATE OR REPLACE TABLE: a table is staged, filled, and then published under its name or abandoned.

A staged table has no name. **Commit point** of its publication: `log.catalog.name_changes`. The replaced table is then
a dropped table, which `undrop_table` restores under another name. A crash before the commit point leaves an unnamed
table, which cleaning deletes after the grace period.
"""

from __future__ import annotations

from streamhouse_spark.core.types import TablePath
from streamhouse_spark.log.actions import Create, Drop
from streamhouse_spark.log.bootstrap import put_first_record
from streamhouse_spark.log.catalog.log_locations import create_table_uuid, require_log_location
from streamhouse_spark.log.catalog.name_changes import commit_replacement
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.state import fold
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.creation import place_lake_table
from streamhouse_spark.warehouse.warehouse import Warehouse, make_table


def stage_table(warehouse: Warehouse, path: TablePath, create: Create) -> Table:
    """Create an unnamed table, for `publish_table`."""
    storage, world = warehouse.storage, warehouse.world
    require_log_location(storage, create.properties)
    uuid, attempt = create_table_uuid(storage, world, create.properties), world.ids.new_uuid()
    placed = place_lake_table(create, path, uuid, is_taken=True)
    record = Record(1, uuid, attempt, storage.now_ms(), (placed,), author=world.author)
    state = fold(None, put_first_record(storage, record))
    return make_table(warehouse, path, CommitLog(storage, uuid, world, state=state))


def publish_table(warehouse: Warehouse, path: TablePath, staged_uuid: str, replaced_uuid: str) -> None:
    """Replace the table of the name by a staged table. Raises `CommitConflictError`; see `commit_replacement`."""
    storage, world = warehouse.storage, warehouse.world
    old, new = (CommitLog(storage, uuid, world) for uuid in (replaced_uuid, staged_uuid))
    commit_replacement(storage, world, path, old, new)


def abandon_table(warehouse: Warehouse, staged_uuid: str, replaced_uuid: str) -> None:
    """Drop a staged table, unless it was published."""
    storage, world = warehouse.storage, warehouse.world
    if CommitLog(storage, replaced_uuid, world).refresh().successor != staged_uuid:
        CommitLog(storage, staged_uuid, world).commit(lambda state, _time_ms: () if state.dropped else (Drop(),))
