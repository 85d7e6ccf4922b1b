"""``CALL streamhouse.system.create_branch``, ``drop_branch`` and ``fast_forward``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streamhouse_spark.datasource.catalog.procedures.arguments import parse_table_argument
from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.warehouse.process_cache import Connection

CREATED: Final = "table string not null, branch string not null, version bigint not null, lake_snapshot_id bigint"
DROPPED: Final = "table string not null, branch string not null"
PUBLISHED: Final = (
    "table string not null, branch string not null, version bigint not null, rows_written bigint, rows_deleted bigint"
)


def create_branch(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Begin a branch and return one row. Raises as `Table.create_branch`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    branch = table.create_branch(arguments["branch"])
    return [(table.name, branch.name, branch.version, branch.lake_snapshot)]


def drop_branch(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Drop a branch and return one row. Raises as `Table.drop_branch`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    table.drop_branch(arguments["branch"])
    return [(table.name, arguments["branch"])]


def fast_forward(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Bring ``branch``, which is the table itself, to the branch ``to``, and return one row. The order of the two is
    Iceberg's. Raises as `Table.fast_forward`, and `InvalidOptionError` for another branch than ``main``.
    """
    name, branch = parse_table_argument(arguments["table"]), arguments["branch"]
    if branch.strip().lower() != "main":
        raise InvalidOptionError(
            f"fast_forward of {name}: branch is {branch!r}, and 'main', the table itself, alone goes forward; say "
            f"fast_forward('{name}', 'main', '<the branch to publish>')"
        )
    report = connection.table(name).fast_forward(arguments["to"])
    return [(report.table, report.branch, report.version, report.rows_written, report.rows_deleted)]
