"""``CREATE OR REPLACE TABLE … AS SELECT`` and ``saveAsTable`` with mode overwrite, of an existing table.

Its rows are replaced in one commit, as INSERT OVERWRITE does; the table stays, with columns, buckets, partitions,
properties, history and readers. A statement that would make it another table is refused before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamhouse_spark.datasource.catalog.arguments import StructJson, path_of
from streamhouse_spark.datasource.catalog.ddl.tables import table_properties
from streamhouse_spark.datasource.catalog.scan.scan import load
from streamhouse_spark.datasource.catalog.transforms import parse_partitioning, partitioning_of
from streamhouse_spark.datasource.spark_schema import split_defaults
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.connection import Connection

_INSTEAD = "or drop the table and create it"


def replace_table(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of the table as `load` does, with the columns of the rows, in their order.

    Raises `TableNotFoundError`, `SchemaMismatchError`, `InvalidOptionError`.
    """
    table = connection.table(str(path_of(args, "replace")))
    _require_same_shape(table, args)
    loaded = load(connection, {"database": args["database"], "table": args["table"]})
    fields = {field["name"].casefold(): field for field in json.loads(loaded["schema"])["fields"]}
    names = TableSchema.of(StructJson(split_defaults(args["schema"])[0]), known=table.state.schema).names
    unknown = [name for name in names if name.casefold() not in fields]
    if unknown:
        raise SchemaMismatchError(
            f"table {table.name} has no column {unknown[0]!r}: replacing its rows keeps its columns "
            f"{', '.join(table.state.schema.names)}; use ALTER TABLE ADD COLUMNS first, {_INSTEAD}"
        )
    schema = {"type": "struct", "fields": [fields[name.casefold()] for name in names]}
    return {**loaded, "schema": json.dumps(schema)}


def _require_same_shape(table: Table, args: Mapping[str, Any]) -> None:
    """Require that the statement leaves the table's partitioning, properties and the like out, or repeats them."""
    if args.get("primary_key"):
        raise InvalidOptionError(f"table {table.name} has no primary key: leave PRIMARY KEY out, {_INSTEAD}")
    wanted = args.get("partitioning") or []
    if wanted and parse_partitioning(wanted) != parse_partitioning(partitioning_of(table.state)):
        raise InvalidOptionError(
            f"table {table.name}: replacing its rows keeps its partitions and buckets; leave PARTITIONED BY out, "
            f"{_INSTEAD}"
        )
    for name, value in table_properties(table.path, args.get("properties") or {}).items():
        if table.state.properties.get(name) != value:
            raise InvalidOptionError(
                f"table {table.name}: replacing its rows keeps its properties, {name} is "
                f"{table.state.properties.get(name)!r}; leave it out, use ALTER TABLE, {_INSTEAD}"
            )
