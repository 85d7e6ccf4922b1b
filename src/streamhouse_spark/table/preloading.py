"""Imports of the modules that the first calls need, when a table is opened.

Lake libraries are imported by the first call that reads the lake, because writers do not need them.
"""

from __future__ import annotations

import logging

import pyarrow as pa

from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.log.state import TableState
from streamhouse_spark.table_handle import TableHandle

logger = logging.getLogger(__name__)

_loads_lazily = False


def disable_preloading() -> None:
    """Import modules only in the calls that need them. For short-lived processes, such as a command."""
    global _loads_lazily  # noqa: PLW0603 - of the whole process
    _loads_lazily = True


def preload_on_open(table: TableHandle) -> None:
    """Call `preload_modules`, unless this process loads lazily. Errors of reading the table are only logged."""
    if not _loads_lazily:
        with log_post_commit_errors(logger, "importing modules for the first calls", table.name):
            preload_modules(table.state)


def preload_modules(state: TableState) -> None:
    """Import the modules for appends and reads of a table, and for upserts and lookups of a primary-key table.

    The conversion of a Python value makes Arrow import pandas, if it is installed.
    """
    import streamhouse_spark.expressions.where
    import streamhouse_spark.read.snapshot_reader
    import streamhouse_spark.read.time_travel
    import streamhouse_spark.write.log_writer

    pa.array([0])
    if state.primary_key:
        import streamhouse_spark.lookup.point_lookup
        import streamhouse_spark.write.upsert  # noqa: F401
