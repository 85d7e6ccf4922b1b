"""``CALL streamhouse.system.undrop_table``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamhouse_spark.datasource.catalog.procedures.arguments import parse_table_argument
from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.warehouse.process_cache import Connection


def undrop_table(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Bring a table back and return one row of it. Raises as `Warehouse.undrop_table`."""
    to = None if arguments["to"] is None else parse_table_argument(arguments["to"])
    table = connection.warehouse().undrop_table(parse_table_argument(arguments["table"]), uuid=arguments["uuid"], to=to)
    return [(table.name, table.uuid, table.state.num_rows)]
