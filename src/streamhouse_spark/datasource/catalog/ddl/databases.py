"""Database operations of the catalog: SHOW, CREATE, DESCRIBE, ALTER and DROP DATABASE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamhouse_spark.core.warehouse_layout import DEFAULT_DATABASE, parse_database
from streamhouse_spark.errors import InvalidNameError, InvalidOptionError, TableNotFoundError, WarehouseNotFoundError
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.warehouse.warehouse import Warehouse

_SPARK_PROPERTIES = ("owner",)
"""Properties that Spark adds to every CREATE DATABASE."""


def databases(connection: Connection, _args: Mapping[str, Any]) -> Mapping[str, Any]:
    """List databases: SHOW DATABASES. ``default`` always exists, for tables without a database."""
    return {"databases": sorted({*connection.warehouse().databases(), DEFAULT_DATABASE})}


def database(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return whether the database exists, and its comment. A database with an invalid name does not exist."""
    try:
        name = parse_database(args["database"])
    except InvalidNameError:
        return {"exists": False, "properties": {}}
    warehouse = connection.warehouse()
    comment = warehouse.database_comment(name) if is_stored(warehouse, name) else None
    exists = database_exists(warehouse, name)
    return {"exists": exists, "properties": {"comment": comment} if comment is not None else {}}


def create_database(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Create a database: CREATE DATABASE. Creates the warehouse too if the location is empty."""
    properties = {
        name: value for name, value in (args.get("properties") or {}).items() if name not in _SPARK_PROPERTIES
    }
    comment = properties.pop("comment", None)
    _reject_properties(args["database"], properties)
    connection.warehouse().create_database(args["database"], if_not_exists=False, comment=comment)
    return {}


def _reject_properties(name: str, properties: Mapping[str, str]) -> None:
    if "location" in properties:
        raise InvalidOptionError(
            f"database {name}: LOCATION {properties['location']!r} is not supported, because all databases are stored "
            "in the catalog's warehouse; omit it, or configure a catalog for another warehouse"
        )
    if properties:
        raise InvalidOptionError(
            f"database {name}: found properties {', '.join(sorted(properties))}, expected only a comment; omit them, "
            "or set them on tables"
        )


def drop_database(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop a database: DROP DATABASE. CASCADE drops its tables first."""
    dropped = connection.warehouse().drop_database(args["database"], cascade=bool(args.get("cascade")), if_exists=True)
    return {"dropped": dropped}


def database_exists(warehouse: Warehouse, name: str) -> bool:
    return name == DEFAULT_DATABASE or is_stored(warehouse, name)


def is_stored(warehouse: Warehouse, name: str) -> bool:
    """Return whether the warehouse stores the database. Spark assumes that ``default`` exists even if it does not."""
    try:
        return warehouse.database_exists(name)
    except WarehouseNotFoundError:  # CREATE DATABASE creates the warehouse
        return False


def require_database(warehouse: Warehouse, name: str) -> None:
    """Raise `TableNotFoundError` (``DATABASE_NOT_FOUND``) for an unknown database, because SQL never creates it
    implicitly.
    """
    if not database_exists(warehouse, name):
        raise TableNotFoundError(
            f"database {name} does not exist in {warehouse.url}; create it with CREATE DATABASE",
            condition="DATABASE_NOT_FOUND",
        )


def alter_database(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Set the comment of a database: COMMENT ON DATABASE, and ALTER DATABASE SET DBPROPERTIES."""
    changed: dict[str, str | None] = {}
    for change in args["changes"]:
        changed[change["name"]] = change["value"] if change["change"] == "set_property" else None
    _reject_properties(args["database"], {name: value or "" for name, value in changed.items() if name != "comment"})
    if "comment" in changed:
        connection.warehouse().comment_database(args["database"], changed["comment"])
    return {}
