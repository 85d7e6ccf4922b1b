"""``CALL streamhouse.system.clone``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streamhouse_spark.datasource.catalog.procedures.arguments import parse_table_argument
from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.log.lifecycle.clones import version_of_clone
from streamhouse_spark.warehouse.process_cache import Connection

CLONED: Final = "source string not null, target string not null, version bigint not null, lake_snapshot_id bigint"


def clone(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Clone a version of a table and return one row: both names, the version, and the lake snapshot that both tables
    have from now on. Raises as `Warehouse.clone_table`.
    """
    source, target = parse_table_argument(arguments["source"]), parse_table_argument(arguments["target"])
    if arguments["version"] is not None and arguments["tag"] is not None:
        raise InvalidOptionError(f"clone of {source}: version and tag are both given; give one")
    version = arguments["version"] if arguments["version"] is not None else arguments["tag"]
    clone = connection.warehouse().clone_table(source, target, version=version)
    origin = version_of_clone(connection.table(source).refresh(), clone.uuid)
    return [(source, clone.name, origin.version, origin.lake_snapshot)]
