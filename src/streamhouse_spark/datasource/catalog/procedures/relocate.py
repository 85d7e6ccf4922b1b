"""``CALL streamhouse.system.relocate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.warehouse.relocation import relocate as relocated


def relocate(connection: Connection, arguments: Mapping[str, Any]) -> Rows:
    """Relocate the warehouse and return a row for each table. Raises as `streamhouse_spark.relocate`."""
    report = relocated(connection.warehouse(), copy=arguments["copy"], dry_run=arguments["dry_run"])
    return [
        (
            table.table,
            table.uuid,
            table.former_uuid,
            table.lake,
            table.moved_from,
            table.files_written,
            arguments["dry_run"],
        )
        for table in report.tables
    ]
