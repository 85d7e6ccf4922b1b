"""``CALL streamhouse.system.create_branch``, ``drop_branch`` and ``fast_forward``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streamhouse_spark.datasource.catalog.procedures.arguments import table_name_of
from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.warehouse.process_cache import Connection

CREATED: Final = "table string not null, branch string not null, version bigint not null, lake_snapshot_id bigint"
DROPPED: Final = "table string not null, branch string not null"
PUBLISHED: Final = (
    "table string not null, branch string not null, version bigint not null, rows_written bigint, rows_deleted bigint"
)


def create_branch(connection: Connection, given: Mapping[str, Any]) -> Rows:
    """Begin a branch and return one row. Raises as `Table.create_branch`."""
    table = connection.table(table_name_of(given["table"]))
    made = table.create_branch(given["branch"])
    return [(table.name, made.name, made.version, made.lake_snapshot)]


def drop_branch(connection: Connection, given: Mapping[str, Any]) -> Rows:
    """Drop a branch and return one row. Raises as `Table.drop_branch`."""
    table = connection.table(table_name_of(given["table"]))
    table.drop_branch(given["branch"])
    return [(table.name, given["branch"])]


def fast_forward(connection: Connection, given: Mapping[str, Any]) -> Rows:
    """Bring ``branch``, which is the table itself, to the branch ``to``, and return one row. The order of the two is
    Iceberg's. Raises as `Table.fast_forward`, and `InvalidOptionError` for another branch than ``main``.
    """
    name, branch = table_name_of(given["table"]), given["branch"]
    if branch.strip().lower() != "main":
        raise InvalidOptionError(
            f"fast_forward of {name}: branch is {branch!r}, and 'main', the table itself, alone goes forward; say "
            f"fast_forward('{name}', 'main', '<the branch to publish>')"
        )
    done = connection.table(name).fast_forward(given["to"])
    return [(done.table, done.branch, done.version, done.rows_written, done.rows_deleted)]
