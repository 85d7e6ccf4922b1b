"""Options that the catalog's Java class and its Python side pass to each other, which no user gives."""

from __future__ import annotations

from typing import Final

CALL_OPTION: Final = "__streamhouse_call"
"""The operation of a call; `READ` is none, but the reader of what a plan left to Python."""
ARGUMENTS_OPTION: Final = "__streamhouse_args"
UUID_OPTION: Final = "__streamhouse_uuid"
"""The table that the catalog loaded, beside its name in ``path``."""
READ_OPTION: Final = "__streamhouse_read"
"""Of a write of UPDATE, DELETE or MERGE: the state that it read, a `ReadBase`."""
SCOPE_OPTION: Final = "__streamhouse_scope"
"""Of the same: which rows of it, a `ReadScope`."""

CLUSTERED_OPTION: Final = "__streamhouse_clustered"
"""Of a write that Spark was asked to cluster such that each task has all rows of its buckets."""


def is_internal(option: str) -> bool:
    return option.lower().startswith("__streamhouse_")
