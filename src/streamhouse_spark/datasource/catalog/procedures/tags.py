"""``CALL streamhouse.system.create_tag`` and ``drop_tag``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streamhouse_spark.datasource.catalog.procedures.arguments import parse_table_argument
from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.warehouse.process_cache import Connection

DAY_MS: Final = 24 * 3600 * 1000
CREATED: Final = "table string not null, tag string not null, version bigint not null, lake_snapshot_id bigint"
DROPPED: Final = "table string not null, tag string not null"


def create_tag(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Name a version and return one row. Raises as `Table.create_tag`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    days = arguments["retain_days"]
    tag = table.create_tag(arguments["tag"], arguments["version"], retain_ms=None if days is None else days * DAY_MS)
    return [(table.name, tag.name, tag.version, tag.lake_snapshot)]


def drop_tag(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Drop a tag and return one row. Raises as `Table.drop_tag`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    table.drop_tag(arguments["tag"])
    return [(table.name, arguments["tag"])]
