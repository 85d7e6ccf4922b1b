"""Procedures of branches and tags: each is a method of `Table`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streamhouse_spark.datasource.catalog.procedures.arguments import parse_table_argument
from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.warehouse.process_cache import Connection

CREATE_BRANCH_RESULT: Final = (
    "table string not null, branch string not null, version bigint not null, lake_snapshot_id bigint"
)
DROP_BRANCH_RESULT: Final = "table string not null, branch string not null"
FAST_FORWARD_RESULT: Final = (
    "table string not null, branch string not null, version bigint not null, rows_written bigint, rows_deleted bigint"
)
DAY_MS: Final = 24 * 3600 * 1000
CREATE_TAG_RESULT: Final = (
    "table string not null, tag string not null, version bigint not null, lake_snapshot_id bigint"
)
DROP_TAG_RESULT: Final = "table string not null, tag string not null"


def create_branch(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Create a branch and return one row. Raises as `Table.create_branch`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    branch = table.create_branch(arguments["branch"])
    return [(table.name, branch.name, branch.version, branch.lake_snapshot)]


def drop_branch(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Drop a branch and return one row. Raises as `Table.drop_branch`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    table.drop_branch(arguments["branch"])
    return [(table.name, arguments["branch"])]


def fast_forward(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Publish the branch ``to`` to ``branch``, which must be ``main``, and return one row. The argument order is
    Iceberg's. Raises as `Table.fast_forward`, and `InvalidOptionError` for any other ``branch``.
    """
    name, branch = parse_table_argument(arguments["table"]), arguments["branch"]
    if branch.strip().lower() != "main":
        raise InvalidOptionError(
            f"fast_forward of {name}: branch is {branch!r}, expected 'main', the table itself; run "
            f"fast_forward('{name}', 'main', '<the branch to publish>')"
        )
    report = connection.table(name).fast_forward(arguments["to"])
    return [(report.table, report.branch, report.version, report.rows_written, report.rows_deleted)]


def create_tag(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Create a tag and return one row. Raises as `Table.create_tag`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    days = arguments["retain_days"]
    tag = table.create_tag(arguments["tag"], arguments["version"], retain_ms=None if days is None else days * DAY_MS)
    return [(table.name, tag.name, tag.version, tag.lake_snapshot)]


def drop_tag(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Drop a tag and return one row. Raises as `Table.drop_tag`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    table.drop_tag(arguments["tag"])
    return [(table.name, arguments["tag"])]
