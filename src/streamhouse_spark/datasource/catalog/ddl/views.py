"""View operations of the catalog: SHOW, CREATE, ALTER, DESCRIBE and DROP VIEW."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import DEFAULT_DATABASE, parse_database
from streamhouse_spark.datasource.catalog.ddl.databases import database_exists, require_database
from streamhouse_spark.datasource.rpc_arguments import path_of, table_path
from streamhouse_spark.log.catalog import name_changes, names
from streamhouse_spark.log.catalog.names import ViewEntry
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.warehouse.warehouse import Warehouse

logger = logging.getLogger(__name__)


def views(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """List the views of a database for SHOW VIEWS and SHOW TABLES."""
    warehouse = connection.warehouse()
    database = parse_database(args["database"])
    require_database(warehouse, database)
    return {"views": [path.table for path in names.list_views(warehouse.storage, database)]}


def load_view(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Load a view by name. Raises `TableNotFoundError` (``VIEW_NOT_FOUND``)."""
    path = path_of(args, "read the view")
    storage = connection.warehouse().storage
    return {"view": asdict(name_changes.require_view(storage, path))}


def create_view(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Create a view: CREATE VIEW; with ``replace`` CREATE OR REPLACE VIEW."""
    path = path_of(args, "create the view")
    warehouse = connection.warehouse()
    view = ViewEntry.from_header(args["view"])
    with _existing_database(warehouse, path):
        name_changes.create_view(warehouse.storage, warehouse.world, path, view, replace=bool(args["replace"]))
    return {}


def replace_view(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace a view's query or properties: ALTER VIEW."""
    path = path_of(args, "alter the view")
    warehouse = connection.warehouse()
    name_changes.replace_view(warehouse.storage, warehouse.world, path, ViewEntry.from_header(args["view"]))
    return {}


def rename_view(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename a view, also into another database: ALTER VIEW … RENAME TO."""
    path = path_of(args, "rename the view")
    target = table_path(args["to_database"], args["to_table"], "rename the view to")
    warehouse = connection.warehouse()
    with _existing_database(warehouse, target):
        name_changes.rename_view(warehouse.storage, warehouse.world, path, target)
    return {}


def drop_view(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop a view: DROP VIEW."""
    path = path_of(args, "drop the view")
    warehouse = connection.warehouse()
    if not database_exists(warehouse, path.database):
        return {"dropped": False}
    return {"dropped": name_changes.drop_view(warehouse.storage, warehouse.world, path)}


@contextmanager
def _existing_database(warehouse: Warehouse, path: TablePath) -> Iterator[None]:
    """Require the database of a view. ``default``, which Spark assumes to exist, is created. After the block, the
    database is recreated if it was dropped concurrently.

    Raises `TableNotFoundError` for any other missing database.
    """
    require_database(warehouse, path.database)
    if path.database == DEFAULT_DATABASE:
        warehouse.create_database(DEFAULT_DATABASE)
    yield
    with log_post_commit_errors(logger, "keeping the database", path):
        names.create_database(warehouse.storage, path.database, warehouse.world)
