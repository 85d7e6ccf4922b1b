"""Resolution of a name's pointer to a table."""

from __future__ import annotations

from collections.abc import Mapping

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import TableNotFoundError
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.lifecycle.renaming import is_named
from streamhouse_spark.log.lifecycle.replace_table import follow_replacements
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table.table import Table


def open_pointed(
    storage: Storage,
    settings: Mapping[str, str],
    world: World,
    path: TablePath,
    uuid: str,
    log: CommitLog | None = None,
) -> Table | None:
    """Open the table of a pointer, freshly read; None if the pointer no longer counts for this name.

    Reads only the log, no name. ``log`` is the log of the uuid, if the caller has it.
    """
    log = log or CommitLog(storage, uuid, world)
    try:
        log = follow_replacements(storage, world, log)
    except TableNotFoundError:  # dropped, and its files are deleted
        return None
    return Table(storage, settings, path, log, world) if is_named(log.state, path) else None
