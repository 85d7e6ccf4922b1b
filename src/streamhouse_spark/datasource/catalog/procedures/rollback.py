"""``CALL streamhouse.system.rollback_to_version`` and ``rollback_to_timestamp``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streamhouse_spark.datasource.catalog.procedures.arguments import parse_table_argument
from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.table.rollback import RollbackReport
from streamhouse_spark.warehouse.process_cache import Connection

RESULT: Final = (
    "table string not null, version bigint not null, seen_version bigint not null, rows_deleted bigint not null, "
    "rows_added bigint not null, dry_run boolean not null"
)


def rollback_to_version(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Roll a table back and return one row of counts. Raises as `Table.rollback_to_version`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    return _report_rows(table.rollback_to_version(arguments["version"], dry_run=arguments["dry_run"]))


def rollback_to_timestamp(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Roll a table back to a time and return one row of counts. Raises as `Table.rollback_to_timestamp`."""
    table = connection.table(parse_table_argument(arguments["table"]))
    if arguments["timestamp"] < 0:
        raise InvalidOptionError(
            "timestamp of procedure rollback_to_timestamp is before 1970; give the time of a commit"
        )
    return _report_rows(table.rollback_to_timestamp(arguments["timestamp"] // 1000, dry_run=arguments["dry_run"]))


def _report_rows(report: RollbackReport) -> Rows:
    counts = (report.rows_deleted, report.rows_added, report.dry_run)
    return [(report.table, report.version, report.seen_version, *counts)]
