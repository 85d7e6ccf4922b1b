"""Planning of UPDATE, DELETE and MERGE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamhouse_spark.datasource.dml.row_changes import make_row_changes_schema
from streamhouse_spark.datasource.scan.query_snapshot import QuerySnapshot, open_at_snapshot
from streamhouse_spark.datasource.spark_schema import read_schema
from streamhouse_spark.dml.validation import require_deletable
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.kv.primary_key_properties import parse_keyed_properties
from streamhouse_spark.log.segments.metadata_columns import ROW_ID
from streamhouse_spark.read.lake_row_ids import take_read_version
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.write.upsert import require_rewritable


def row_level_operation(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Describe how a statement reads and writes the loaded table. All scans of the statement read the loaded state.

    Rows are identified by primary key, and in log tables by row id. Raises `InvalidOptionError` if the table does not
    support the statement, or would store rows that differ from the statement's rows.
    """
    snapshot = QuerySnapshot.from_text(args["snapshot"])
    table, state = open_at_snapshot(connection, snapshot)
    command = args["command"]
    if args.get("options"):
        raise InvalidOptionError(f"{command} of {snapshot.name} supports no options; omit {', '.join(args['options'])}")
    if state.primary_key:
        properties = parse_keyed_properties(state.properties, state.schema, state.partition_by)
        require_rewritable(table.name, properties, deletes=command == "DELETE")
        identity = [state.schema.arrow.field(name) for name in state.primary_key]
    else:
        require_deletable(state)
        identity = [ROW_ID]
    return {
        "snapshot": replace(snapshot, is_chosen=True, is_rewritten=True).to_text(),
        "row_id": [field.name for field in identity],
        "schema": read_schema(make_row_changes_schema(state.schema, identity), state.schema).json(),
        "read": take_read_version(table, state).to_text(),
        "schema_id": state.schema_id,
    }
