"""Options between the catalog's Java class and its Python side, which no user gives."""

from __future__ import annotations

from typing import Final

CALL_OPTION: Final = "__streamhouse_call"
"""The operation of a call; `READ` is none, but the reader of the groups that a plan left to Python."""
ARGUMENTS_OPTION: Final = "__streamhouse_args"
UUID_OPTION: Final = "__streamhouse_uuid"
"""Uuid of the table that the catalog loaded, beside its name in ``path``."""
READ_OPTION: Final = "__streamhouse_read"
"""The state that an UPDATE, DELETE or MERGE read, for its write: a `ReadBase`."""
SCOPE_OPTION: Final = "__streamhouse_scope"
"""The rows that it may have read, for the same write: a `ReadScope`."""
REPLACED_OPTION: Final = "__streamhouse_replaced"
"""The part of the table that a write replaces: a `ReplacedPart`."""

CLUSTERED_OPTION: Final = "__streamhouse_clustered"
"""Set for a write that Spark was asked to cluster so that each task has all rows of its buckets."""


def is_internal(option: str) -> bool:
    return option.lower().startswith("__streamhouse_")
