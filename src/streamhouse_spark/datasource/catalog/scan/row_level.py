"""UPDATE, DELETE and MERGE: the catalog's answers while Spark plans one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamhouse_spark.datasource.catalog.scan.query_pin import QueryPin, pinned
from streamhouse_spark.datasource.spark_schema import offered_schema
from streamhouse_spark.datasource.write.row_level import arriving_schema
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.kv.keyed_properties import parse_keyed_properties
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.warehouse.connection import Connection
from streamhouse_spark.write.upsert import require_rewritable


def row_level_operation(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer how an operation reads and writes the loaded table: its scans are all of the loaded state.

    Raises `InvalidOptionError` if the table has no primary key, or would store other rows than the statement's.
    """
    pin = QueryPin.from_text(args["pin"])
    table, state = pinned(connection, pin)
    command = args["command"]
    if args.get("options"):
        raise InvalidOptionError(f"{command} of {pin.name} has no options; leave {', '.join(args['options'])} out")
    if not state.primary_key:
        raise InvalidOptionError(
            f"table {table.name} has no primary key, so {command} cannot say which rows it means; DELETE with a "
            "condition that compares columns with constants removes rows, TRUNCATE TABLE or DELETE without condition "
            "all of them, INSERT OVERWRITE replaces them by those of a query, and a table made with PRIMARY KEY takes "
            "UPDATE, DELETE and MERGE"
        )
    properties = parse_keyed_properties(state.properties, state.schema, state.partition_by)
    require_rewritable(table.name, properties, deletes=command == "DELETE")
    return {
        "pin": replace(pin, is_chosen=True, is_rewritten=True).to_text(),
        "row_id": list(state.primary_key),
        "schema": offered_schema(arriving_schema(state.schema, state.primary_key), state.schema).json(),
        "read": ReadBase.of(state).to_text(),
        "schema_id": state.schema_id,
    }
