"""Replacing a table by another one under its name: staged, filled, and then published or given up.

A staged table has no name, and nobody sees it. **Commit point** of publishing:
`streamhouse_spark.log.lifecycle.replace_table`. The old table stays as a dropped one, which `undrop_table` brings back
under another name. A process that dies before leaves a table without a name, which cleaning removes after its grace.
"""

from __future__ import annotations

from streamhouse_spark.config.properties import parse_properties
from streamhouse_spark.core.paths import lake_location
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.log.commits.actions import Create, Drop
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.record import Record
from streamhouse_spark.log.commits.state import fold
from streamhouse_spark.log.lifecycle.first_record import put_first_record
from streamhouse_spark.log.lifecycle.log_locations import new_table_uuid, require_log_location
from streamhouse_spark.log.lifecycle.replace_table import succeed
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse


def stage_table(warehouse: Warehouse, path: TablePath, create: Create) -> Table:
    """Make a table that has no name yet, for `publish_table`."""
    storage, world = warehouse.storage, warehouse.world
    require_log_location(storage, create.properties)
    uuid, attempt = new_table_uuid(storage, world, create.properties), world.ids.new_uuid()
    parsed = parse_properties(create.properties, create.schema, create.partition_by)
    location = lake_location(path, uuid, has_conflict=True, lake_format=parsed.datalake_format)
    placed = Create(create.name, create.schema, create.partition_by, create.num_buckets, create.properties, location)
    record = Record(1, uuid, attempt, storage.now_ms(), (placed,), author=world.author)
    state = fold(None, put_first_record(storage, record))
    return Table(storage, warehouse.settings, path, CommitLog(storage, uuid, world, state=state), world)


def publish_table(warehouse: Warehouse, path: TablePath, staged_uuid: str, replaced_uuid: str) -> None:
    """Let a staged table take the place of the one with the name. Raises `CommitConflictError` as `succeed`."""
    storage, world = warehouse.storage, warehouse.world
    old, new = (CommitLog(storage, uuid, world) for uuid in (replaced_uuid, staged_uuid))
    succeed(storage, world, path, old, new)


def abandon_table(warehouse: Warehouse, staged_uuid: str, replaced_uuid: str) -> None:
    """Drop a staged table that nobody will publish; one that was published stays."""
    storage, world = warehouse.storage, warehouse.world
    if CommitLog(storage, replaced_uuid, world).refresh().successor != staged_uuid:
        CommitLog(storage, staged_uuid, world).commit(lambda state, _time_ms: () if state.dropped else (Drop(),))
