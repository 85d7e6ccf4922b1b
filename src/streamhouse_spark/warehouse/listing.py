"""The tables of databases, looked at together: on a store with requests that take long, a listing of many tables takes
hardly more round trips than one of few.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.model import TablePath
from streamhouse_spark.errors import StreamhouseError, TableNotFoundError
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.opening import Asked, asked_together
from streamhouse_spark.log.lifecycle import names
from streamhouse_spark.log.lifecycle.renaming import is_named
from streamhouse_spark.log.lifecycle.succession import followed
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.read_ahead import at_once

logger = logging.getLogger(__name__)

TOGETHER_MAX: Final = 64
"""Tables whose checkpoints and newest records are in memory at the same time."""


Named = tuple[TablePath, names.NamePointer | None]
"""A name that means a table; without its pointer where that cannot be read."""


@dataclass(frozen=True, slots=True)
class ListedTable:
    path: TablePath
    log: CommitLog | None
    """The log, read to its end; None for a table that cannot be opened, which must not hide the others."""


def list_tables(storage: Storage, world: World, folders: Sequence[str]) -> Iterator[ListedTable]:
    """Open all tables of these databases, as far as they exist, by name."""
    found = [named for of_one in at_once(storage, lambda of: _of_existing(storage, of), folders) for named in of_one]
    return _opened(storage, world, found)


def list_tables_of(storage: Storage, world: World, database: str) -> Iterator[ListedTable]:
    """Open all tables of a database, whether or not it exists itself, by name."""
    return _opened(storage, world, list(names.list_names(storage, database)))


def _of_existing(storage: Storage, database: str) -> list[Named]:
    """Return the names of a database that exists, which is asked for together with them."""
    looks: list[Callable[[], list[Named] | None]] = [
        lambda: None if names.is_listed(storage, database) else [],
        lambda: list(names.list_names(storage, database)),
    ]
    of_absent, found = at_once(storage, lambda look: look(), looks)
    return of_absent if of_absent is not None else found or []


def _opened(storage: Storage, world: World, named: Sequence[Named]) -> Iterator[ListedTable]:
    for begin in range(0, len(named), TOGETHER_MAX):
        yield from _opened_together(storage, world, named[begin : begin + TOGETHER_MAX])


def _opened_together(storage: Storage, world: World, named: Sequence[Named]) -> Iterator[ListedTable]:
    uuids = [pointer.uuid for _, pointer in named if pointer is not None and pointer.uuid is not None]
    asked = asked_together(storage, world, uuids)
    # Two names may mean one table while it is renamed: what was asked for is for one reader.
    wanted = [(path, pointer, asked.pop(str(pointer and pointer.uuid), None)) for path, pointer in named]

    def look(one: tuple[TablePath, names.NamePointer | None, Asked | None]) -> ListedTable | None:
        path, pointer, of_log = one
        if pointer is None or pointer.uuid is None:
            return ListedTable(path, None)
        return _open(storage, world, path, pointer.uuid, of_log)

    return (table for table in at_once(storage, look, wanted) if table is not None)


def _open(storage: Storage, world: World, path: TablePath, uuid: str, asked: Asked | None) -> ListedTable | None:
    """Open one table; None where the name does not mean it any more."""
    log = CommitLog(storage, uuid, world, asked=asked)
    try:
        log = followed(storage, world, log)
        return ListedTable(path, log) if is_named(log.state, path) else None
    except TableNotFoundError:  # dropped so long ago that its files are gone
        return None
    except StreamhouseError as error:
        logger.warning("table %s cannot be opened: %s", path, error)
        return ListedTable(path, None)
