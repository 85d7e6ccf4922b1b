"""``CALL streamhouse.system.relocate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamhouse_spark.datasource.catalog.procedures.lake import Rows
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.warehouse.relocation import relocate as relocated


def relocate(connection: Connection, given: Mapping[str, Any]) -> Rows:
    """Relocate the warehouse and return a row for each table. Raises as `streamhouse_spark.relocate`."""
    report = relocated(connection.warehouse(), copy=given["copy"], dry_run=given["dry_run"])
    return [
        (
            found.table,
            found.uuid,
            found.former_uuid,
            found.lake,
            found.moved_from,
            found.files_written,
            given["dry_run"],
        )
        for found in report.tables
    ]
