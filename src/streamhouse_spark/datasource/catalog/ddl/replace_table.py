"""``CREATE OR REPLACE TABLE`` of an existing table, with and without a query, and ``saveAsTable`` with mode overwrite.

If the new rows have the table's columns, and the statement does not change the rest of the definition, the rows are
replaced in one commit, like INSERT OVERWRITE. The table keeps its properties, history and readers. Otherwise a new
table is staged without a name. Once it has its rows, it atomically replaces the existing table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamhouse_spark.datasource.catalog.ddl.tables import describe_new_table, table_properties
from streamhouse_spark.datasource.rpc_arguments import StructJson, path_of
from streamhouse_spark.datasource.scan.query_snapshot import take_query_snapshot
from streamhouse_spark.datasource.scan.scan import describe_scan, load
from streamhouse_spark.datasource.spark_schema import split_defaults
from streamhouse_spark.datasource.table_definition import format_partitioning, parse_partitioning
from streamhouse_spark.schema.evolution import can_be_read_as
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.creation import make_create_action
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.warehouse.replacement import abandon_table as abandon
from streamhouse_spark.warehouse.replacement import publish_table as publish
from streamhouse_spark.warehouse.replacement import stage_table


def replace_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Describe the table to write to, in the form of `load`. An existing table that is kept has its columns in the
    order of the new rows. For a staged table, ``replaces`` is the uuid of the existing table.

    Raises `TableNotFoundError`, and the errors of `create_table` for an unsupported definition.
    """
    path = path_of(args, "replace")
    table = connection.table(str(path))
    if args["as_select"] and _keeps_table(table, args):
        loaded = load(connection, {"database": args["database"], "table": args["table"]})
        fields = {field["name"].casefold(): field for field in json.loads(loaded["schema"])["fields"]}
        schema = {"type": "struct", "fields": [fields[name.casefold()] for name in _requested_columns(args).names]}
        return {**loaded, "schema": json.dumps(schema), "replaces": None}
    create = make_create_action(path, *describe_new_table(path, args))
    staged = stage_table(connection.warehouse(), path, create)
    staged_table = connection.table_by_uuid(str(path), staged.uuid)
    staged_table.refresh()
    return {
        **describe_scan(connection, take_query_snapshot(staged_table), None),
        "validators": None,
        "replaces": table.uuid,
    }


def publish_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace a table with its staged successor. **Commit point:** one record."""
    publish(connection.warehouse(), path_of(args, "replace"), args["uuid"], args["replaces"])
    return {}


def abandon_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop a staged table after its statement failed."""
    abandon(connection.warehouse(), args["uuid"], args["replaces"])
    return {}


def _requested_columns(args: Mapping[str, Any]) -> TableSchema:
    return TableSchema.of(StructJson(split_defaults(args["schema"])[0]))


def _keeps_table(table: Table, args: Mapping[str, Any]) -> bool:
    """Return whether the new rows fit the existing table, and the statement does not change its definition."""
    state, rows = table.state, _requested_columns(args)
    columns = {column.name.casefold(): column for column in state.schema.columns}
    if {column.name.casefold() for column in rows.columns} != columns.keys():
        return False
    if not all(can_be_read_as(column.type, columns[column.name.casefold()].type) for column in rows.columns):
        return False
    key = args.get("primary_key") or []
    if key and tuple(name.casefold() for name in key) != tuple(name.casefold() for name in state.primary_key):
        return False
    partitioning = args.get("partitioning") or []
    if partitioning and parse_partitioning(partitioning) != parse_partitioning(format_partitioning(state)):
        return False
    properties = table_properties(table.path, args.get("properties") or {})
    return all(state.properties.get(name) == value for name, value in properties.items())
