"""Options between the catalog's Java class and its Python side, which no user gives."""

from __future__ import annotations

from typing import Final

CALL_OPTION: Final = "__streamhouse_call"
"""The operation of a call, or the name of a reader."""
ARGUMENTS_OPTION: Final = "__streamhouse_args"
UUID_OPTION: Final = "__streamhouse_uuid"
"""Uuid of the table that the catalog loaded, beside its name in ``path``."""
READ_OPTION: Final = "__streamhouse_read"
"""The state that an UPDATE, DELETE or MERGE read, for its write: a `ReadVersion`."""
SCOPE_OPTION: Final = "__streamhouse_scope"
"""The rows that it may have read, for the same write: a `ReadSet`."""
STAGED_OPTION: Final = "__streamhouse_staged"
"""Set for a write to a table that has no name yet: `UUID_OPTION` alone says which one it is."""
REPLACED_OPTION: Final = "__streamhouse_replaced"
"""The part of the table that a write replaces: a `ReplacedPart`."""

NEED_OPTION: Final = "__streamhouse_need"
"""Set for a stream whose batches are planned with what their query needs, which lies under this key in the start of a
batch: ``columns``, their Spark ``schema``, and ``filters``."""
LAG_OPTION: Final = "__streamhouse_lag"
"""The last key of the newest offset that such a stream reports: time behind it in ``ms``, from ``offsets`` on."""
READ: Final = "read"
READ_STREAM: Final = "read_stream"
RUN_TASKS: Final = "run_tasks"
"""The call's names of the readers of a plan's groups, of the parts of a stream's batches, and of tasks that write."""

CLUSTERED_OPTION: Final = "__streamhouse_clustered"
"""Set for a write that Spark was asked to cluster so that each task has all rows of its buckets."""
REAL_TIME_OPTION: Final = "__streamhouse_real_time"
"""Set for a stream into a table in real-time mode: ids of the query and of the table that it reads, with a space
between."""


def is_internal(option: str) -> bool:
    return option.lower().startswith("__streamhouse_")
