"""CREATE OR REPLACE TABLE: a table is staged, filled, and then published under the name, or abandoned.

A staged table has no name and is invisible. **Commit point** of publishing:
`streamhouse_spark.log.catalog.renaming`. The old table becomes a dropped one, which `undrop_table` restores
under another name. A process that dies before leaves an unnamed table, which cleaning removes after the grace period.
"""

from __future__ import annotations

from streamhouse_spark.config.table_properties import parse_properties
from streamhouse_spark.core.paths import lake_location
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.log.actions import Create, Drop
from streamhouse_spark.log.bootstrap import put_first_record
from streamhouse_spark.log.catalog.log_locations import create_table_uuid, require_log_location
from streamhouse_spark.log.catalog.renaming import commit_replacement
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.state import fold
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse


def stage_table(warehouse: Warehouse, path: TablePath, create: Create) -> Table:
    """Create an unnamed table, for `publish_table`."""
    storage, world = warehouse.storage, warehouse.world
    require_log_location(storage, create.properties)
    uuid, attempt = create_table_uuid(storage, world, create.properties), world.ids.new_uuid()
    parsed = parse_properties(create.properties, create.schema, create.partition_by)
    location = lake_location(path, uuid, has_conflict=True, lake_format=parsed.datalake_format)
    placed = Create(create.name, create.schema, create.partition_by, create.num_buckets, create.properties, location)
    record = Record(1, uuid, attempt, storage.now_ms(), (placed,), author=world.author)
    state = fold(None, put_first_record(storage, record))
    return Table(storage, warehouse.settings, path, CommitLog(storage, uuid, world, state=state), world)


def publish_table(warehouse: Warehouse, path: TablePath, staged_uuid: str, replaced_uuid: str) -> None:
    """Replace the table of the name by a staged one. Raises `CommitConflictError` as `commit_replacement`."""
    storage, world = warehouse.storage, warehouse.world
    old, new = (CommitLog(storage, uuid, world) for uuid in (replaced_uuid, staged_uuid))
    commit_replacement(storage, world, path, old, new)


def abandon_table(warehouse: Warehouse, staged_uuid: str, replaced_uuid: str) -> None:
    """Drop a staged table, unless it was published."""
    storage, world = warehouse.storage, warehouse.world
    if CommitLog(storage, replaced_uuid, world).refresh().successor != staged_uuid:
        CommitLog(storage, staged_uuid, world).commit(lambda state, _time_ms: () if state.dropped else (Drop(),))
