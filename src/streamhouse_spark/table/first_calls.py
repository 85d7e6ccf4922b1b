"""The modules that first calls of a table need, loaded when it is opened: hundreds of them, in the time of many calls.

Libraries of the lake are left to the first call that looks into it: who writes needs none of them.
"""

from __future__ import annotations

import logging

import pyarrow as pa

from streamhouse_spark.core.post_commit import after_commit
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commits.state import TableState

logger = logging.getLogger(__name__)

_loads_lazily = False


def leave_late() -> None:
    """Load modules in the calls that need them: for a process of few calls, as a command is."""
    global _loads_lazily  # noqa: PLW0603 - of the whole process
    _loads_lazily = True


def load_on_opening(table: TableHandle) -> None:
    """Do `load_first_calls`, unless this process leaves modules late. The table may have been made just now, so it is
    no error if it cannot be read.
    """
    if not _loads_lazily:
        with after_commit(logger, "loading what first calls need", table.name):
            load_first_calls(table.state)


def load_first_calls(state: TableState) -> None:
    """Load what appends and reads of a table of this state need, and with a primary key upserts and lookups.

    Arrow imports pandas, where it is installed, as soon as a value of Python is converted.
    """
    import streamhouse_spark.read.union_read
    import streamhouse_spark.write.log_writer

    pa.array([0])
    if state.primary_key:
        import streamhouse_spark.lookup.point_lookup
        import streamhouse_spark.write.upsert  # noqa: F401
