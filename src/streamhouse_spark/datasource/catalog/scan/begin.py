"""The call with which a session begins: the planner loads what the first query needs, before there is one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import streamhouse_spark.datasource.catalog.scan.scan  # noqa: F401 - it is loaded for the calls that follow
from streamhouse_spark.warehouse.connection import Connection


def begin(_connection: Connection, _args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Load the modules of reads, those of the default lake included. Nothing of the warehouse is read."""
    with suppress(ModuleNotFoundError):  # the lake's library: a table that has such a lake says so
        import streamhouse_spark.lake.iceberg.table  # noqa: F401
    return {}
