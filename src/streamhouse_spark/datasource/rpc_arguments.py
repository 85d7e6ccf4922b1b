"""Internal options and arguments of the calls between the catalog's Java classes and Python. Users never set them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import parse_database, parse_table_name
from streamhouse_spark.errors import TableNotFoundError

CALL_OPTION: Final = "__streamhouse_call"
"""The operation of a call, or the name of a reader."""
ARGUMENTS_OPTION: Final = "__streamhouse_args"
UUID_OPTION: Final = "__streamhouse_uuid"
"""Uuid of the table that the catalog loaded; ``path`` holds its name."""
READ_OPTION: Final = "__streamhouse_read"
"""The state that an UPDATE, DELETE or MERGE read, as a `ReadVersion`."""
SCOPE_OPTION: Final = "__streamhouse_scope"
"""The rows that this statement may have read, as a `ReadSet`."""
STAGED_OPTION: Final = "__streamhouse_staged"
"""Set for a write to a staged table, which has no name yet: only `UUID_OPTION` identifies it."""
REPLACED_OPTION: Final = "__streamhouse_replaced"
"""The part of the table that a write replaces, as a `ReplacedPart`."""

NEED_OPTION: Final = "__streamhouse_need"
"""Set for a stream with pushdown. It is also the key in the start of each batch that holds the query's ``columns``,
their Spark ``schema`` and ``filters``.
"""
LAG_OPTION: Final = "__streamhouse_lag"
"""Key in the latest offset of a stream with pushdown. It holds the lag in ``ms``, counted from ``offsets``."""
READ: Final = "read"
READ_STREAM: Final = "read_stream"
RUN_TASKS: Final = "run_tasks"
"""Calls that select a reader: for a scan plan, for the batches of a stream, and for tasks that write files."""

CLUSTERED_OPTION: Final = "__streamhouse_clustered"
"""Set for a write that Spark clusters by bucket, so that each task gets all rows of its buckets."""
REAL_TIME_OPTION: Final = "__streamhouse_real_time"
"""Set for a real-time stream into a table: the query id and the uuid of the source table, separated by a space."""


def is_internal(option: str) -> bool:
    return option.lower().startswith("__streamhouse_")


@dataclass(frozen=True, slots=True)
class StructJson:
    """A ``StructType`` as its JSON text, for `TableSchema.of`."""

    text: str

    def json(self) -> str:
        return self.text


def require_loaded_table(name: str, uuid: str, loaded_uuid: str) -> None:
    """Raise `TableNotFoundError` if the name no longer refers to the table that the catalog loaded."""
    if uuid != loaded_uuid:
        raise TableNotFoundError(
            f"table {name} ({loaded_uuid}) was dropped and created again since this query was made; run the query "
            "again, or start the stream with a new checkpoint"
        )


def table_path(database: object, table: object, action: str) -> TablePath:
    """Return the path of a database and a table name. Raises `InvalidNameError`, also for a suffix or a branch.

    Each part is validated separately, so that a dot or ``$`` in a part cannot select another table.
    """
    return parse_table_name(f"{parse_database(database)}.{table}").require_table(action)


def rows_path_of(args: Mapping[str, Any], action: str) -> TablePath:
    """Return the path from the arguments ``database`` and ``table``, which may name a branch."""
    return parse_table_name(f"{parse_database(args['database'])}.{args['table']}").require_rows(action)


def path_of(args: Mapping[str, Any], action: str) -> TablePath:
    """Return the path from the arguments ``database`` and ``table``."""
    return table_path(args["database"], args["table"], action)
