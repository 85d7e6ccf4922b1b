"""`Warehouse.sql`: read-only SQL over the tables of a warehouse with DuckDB, without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from streamhouse_spark.core.warehouse_layout import DEFAULT_DATABASE
from streamhouse_spark.errors import InvalidNameError, InvalidOptionError, TableNotFoundError
from streamhouse_spark.table.scan import create_duckdb_view, quote_name, require_library

if TYPE_CHECKING:
    import duckdb

    from streamhouse_spark.table.scan import Scannable


def run_sql(open_view: Callable[[str], Scannable], query: str) -> duckdb.DuckDBPyRelation:
    """Return a query as a lazy relation; see `Warehouse.sql`. ``open_view`` is `Warehouse.view`."""
    # queries must not see Python variables, which would be those of this function
    connection = require_library("duckdb").connect(config={"python_enable_replacements": False})
    connection.execute(f"CREATE SCHEMA {quote_name(DEFAULT_DATABASE)}")
    connection.execute("SET search_path = ?", [quote_name(DEFAULT_DATABASE)])
    for database, name in dict.fromkeys(_table_names(_parse(connection, query))):
        full_name = f"{database}.{name}"
        try:
            scan = open_view(full_name).scan()
        except (InvalidNameError, TableNotFoundError):
            if "$" in name:
                raise
            continue  # the query may define the name itself; if not, DuckDB reports it
        create_duckdb_view(connection, full_name, scan)
        schema = f"memory.{quote_name(database)}"  # with the catalog, because a database may be named like a catalog
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        connection.execute(f"CREATE VIEW {schema}.{quote_name(name)} AS FROM {quote_name(full_name)}")
    relation: duckdb.DuckDBPyRelation = connection.sql(query)
    return relation


def _parse(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    """Return DuckDB's syntax tree. Raises `InvalidOptionError` unless the text is one SELECT."""
    row = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
    tree: dict[str, Any] = json.loads(row[0]) if row is not None else {"error": True}
    if tree["error"] or len(tree["statements"]) != 1:
        raise InvalidOptionError(
            f"sql {query[:200]!r}: {tree.get('error_message', 'several statements')}; expected one SELECT in DuckDB's "
            "dialect; to write, use append, upsert, delete or overwrite, or Spark SQL"
        )
    return tree


def _table_names(node: Any) -> Iterator[tuple[str, str]]:
    """Return the database and name of each table in the tree, in lower case because DuckDB ignores case."""
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            yield (node["schema_name"] or DEFAULT_DATABASE).lower(), node["table_name"].lower()
        for child in node.values():
            yield from _table_names(child)
    elif isinstance(node, list):
        for child in node:
            yield from _table_names(child)
