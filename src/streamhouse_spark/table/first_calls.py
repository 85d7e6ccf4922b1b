"""Eager loading of the modules that the first calls of a table need, when the table is opened.

Lake libraries are loaded by the first call that reads the lake: writers need none of them.
"""

from __future__ import annotations

import logging

import pyarrow as pa

from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.log.state import TableState
from streamhouse_spark.table_handle import TableHandle

logger = logging.getLogger(__name__)

_loads_lazily = False


def load_lazily() -> None:
    """Load modules only in the calls that need them, for short-lived processes such as a command."""
    global _loads_lazily  # noqa: PLW0603 - of the whole process
    _loads_lazily = True


def load_on_opening(table: TableHandle) -> None:
    """Call `load_first_calls` unless this process loads lazily. A table that cannot be read is no error here."""
    if not _loads_lazily:
        with log_post_commit_errors(logger, "loading what first calls need", table.name):
            load_first_calls(table.state)


def load_first_calls(state: TableState) -> None:
    """Load what appends and reads of a table need, and for a primary-key table also upserts and lookups.

    Converting the first Python value also makes Arrow import pandas, if it is installed.
    """
    import streamhouse_spark.expressions.where
    import streamhouse_spark.read.snapshot_reader
    import streamhouse_spark.read.time_travel
    import streamhouse_spark.write.log_writer

    pa.array([0])
    if state.primary_key:
        import streamhouse_spark.lookup.point_lookup
        import streamhouse_spark.write.upsert  # noqa: F401
