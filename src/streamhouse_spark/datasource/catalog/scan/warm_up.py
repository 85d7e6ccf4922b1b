"""Warm-up calls of a session: the planner imports what the first query needs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import streamhouse_spark.datasource.catalog.scan.scan
import streamhouse_spark.lake.iceberg.table  # noqa: F401 - these are loaded for the calls that follow
from streamhouse_spark.warehouse.process_cache import Connection


def begin(_connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Import the modules of a part of reads: ``reads`` for every query, ``lakes`` for Iceberg's library.

    The parts are separate so that a query that is already waiting loads its table in between. Nothing of the warehouse
    is read.
    """
    if args["part"] == "lakes":
        with suppress(ModuleNotFoundError):  # opening such a table names the missing library
            import streamhouse_spark.lake.iceberg.snapshot_reader  # noqa: F401
    return {}
