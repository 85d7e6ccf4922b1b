"""The tables of databases, looked at together: on a store with requests that take long, a listing of many tables takes
hardly more round trips than one of few.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.paths import TABLES_PREFIX, is_placed
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import StreamhouseError, TableNotFoundError
from streamhouse_spark.log.commits.bootstrap import LogPrefetcher, PrefetchedLog, prefetch_logs
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.lifecycle import names
from streamhouse_spark.log.lifecycle.renaming import is_named
from streamhouse_spark.log.lifecycle.replace_table import follow_replacements
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import ReadsMany, at_once

logger = logging.getLogger(__name__)

TOGETHER_MAX: Final = 64
"""Tables whose checkpoints and newest records are in memory at the same time."""
LOGS_MAX: Final = 256
"""Logs that are asked for before it is known which of them have names. Where there are more, the number of requests
decides how long a listing takes, and not how many follow one another."""
_UNNAMED_MAX: Final = 16


Named = tuple[TablePath, names.NamePointer | None]
"""A name that means a table; without its pointer where that cannot be read."""
Step = Callable[[], list[TablePath] | None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NamePrefetch:
    """The listings with which a look at many tables begins."""

    folders: Sequence[str]
    """Folders of databases, dropped ones included."""
    logs: Sequence[str]
    """The uuids of logs: a hint of what will be asked for. Some have no name, and new ones may be missing."""


@dataclass(frozen=True, slots=True)
class TableSummary:
    path: TablePath
    log: CommitLog | None
    """The log, read to its end; None for a table that cannot be opened, which must not hide the others."""


def prefetch_names(storage: Storage, *, exists: bool = False) -> NamePrefetch:
    """Check that there is a warehouse, unless that ``exists``, and list the folders of databases and logs, in the
    time of one request. Raises as `names.require_warehouse`.
    """

    def require() -> list[str]:
        if not exists:
            names.require_warehouse(storage)
        return []

    looks: list[Callable[[], list[str]]] = [
        require,
        lambda: names.database_folders(storage),
        lambda: _logs_to_prefetch(storage),
    ]
    _, folders, logs = _run_steps(storage, looks)
    return NamePrefetch(folders, logs)


def _logs_to_prefetch(storage: Storage) -> list[str]:
    """Return the logs to be asked for ahead; none where that saves nothing, or where each takes a look elsewhere."""
    if not isinstance(storage, ReadsMany):
        return []
    uuids = [uuid for uuid in storage.list_names(TABLES_PREFIX) if not is_placed(uuid)]
    return uuids if len(uuids) <= LOGS_MAX else []


def list_tables(storage: Storage, world: World, prefetch: NamePrefetch) -> Iterator[TableSummary]:
    """Open all tables of these databases, as far as they exist, by name."""
    logs = LogPrefetcher(storage, world, prefetch.logs)
    steps: list[Step] = [logs.read_hints, *(partial(_list_existing, storage, folder) for folder in prefetch.folders)]
    paths = [path for database_paths in _run_steps(storage, steps) for path in database_paths or ()]
    named: list[Named] = []
    looks: list[Callable[[], None]] = [lambda: named.extend(names.iter_table_names(storage, paths))]
    prefetches_early = len(logs) <= 2 * len(paths) + _UNNAMED_MAX
    _run_steps(storage, [*looks, logs.read_first] if prefetches_early else looks)
    logs.keep(_uuids(named))
    if not prefetches_early:
        logs.read_first()
    logs.read_others()
    return _open_tables(storage, world, named, logs.asked())


def list_tables_of(
    storage: Storage, world: World, database: str, require: Callable[[], object] = lambda: None
) -> Iterator[TableSummary]:
    """Open all tables of a database, whether or not it exists itself, by name. ``require`` looks at something else
    meanwhile, and may raise.
    """
    paths: list[TablePath] = []
    uuids: list[str] = []
    looks: list[Callable[[], object]] = [
        require,
        lambda: paths.extend(names.list_paths(storage, database)),
        lambda: uuids.extend(_logs_to_prefetch(storage)),
    ]
    _run_steps(storage, looks)
    logs = LogPrefetcher(storage, world, uuids if len(uuids) <= 2 * len(paths) + _UNNAMED_MAX else ())
    named: list[Named] = []
    looks = [lambda: named.extend(names.iter_table_names(storage, paths)), logs.read_hints]
    _run_steps(storage, looks)
    logs.keep(_uuids(named))
    logs.read_first()
    logs.read_others()
    return _open_tables(storage, world, named, logs.asked())


def _run_steps(storage: Storage, steps: Sequence[Callable[[], T]]) -> list[T]:
    return list(at_once(storage, lambda step: step(), steps))


def _uuids(named: Sequence[Named]) -> set[str]:
    return {pointer.uuid for _, pointer in named if pointer is not None and pointer.uuid is not None}


def _list_existing(storage: Storage, database: str) -> list[TablePath]:
    """Return the names of a database that exists, which is asked for together with them."""
    looks: list[Step] = [
        lambda: None if names.is_listed(storage, database) else [],
        lambda: names.list_paths(storage, database),
    ]
    of_absent, paths = _run_steps(storage, looks)
    return of_absent if of_absent is not None else paths or []


def _open_tables(
    storage: Storage, world: World, named: Sequence[Named], prefetched: dict[str, PrefetchedLog]
) -> Iterator[TableSummary]:
    """Open tables with what was ``prefetched`` for; what others are opened with is asked for here."""
    for begin in range(0, len(named), TOGETHER_MAX):
        some = named[begin : begin + TOGETHER_MAX]
        prefetched |= prefetch_logs(storage, world, [uuid for uuid in _uuids(some) if uuid not in prefetched])
        # Two names may mean one table while it is renamed: what was asked for is for one reader.
        requests = [(path, pointer, prefetched.pop(str(pointer and pointer.uuid), None)) for path, pointer in some]
        tables = at_once(storage, partial(_summarise_table, storage, world), requests)
        yield from (table for table in tables if table is not None)


def _summarise_table(
    storage: Storage, world: World, request: tuple[TablePath, names.NamePointer | None, PrefetchedLog | None]
) -> TableSummary | None:
    path, pointer, of_log = request
    if pointer is None or pointer.uuid is None:
        return TableSummary(path, None)
    return _open_log(storage, world, path, pointer.uuid, of_log)


def _open_log(
    storage: Storage, world: World, path: TablePath, uuid: str, prefetched: PrefetchedLog | None
) -> TableSummary | None:
    """Open one table; None where the name does not mean it any more."""
    log = CommitLog(storage, uuid, world, asked=prefetched)
    try:
        log = follow_replacements(storage, world, log)
        return TableSummary(path, log) if is_named(log.state, path) else None
    except TableNotFoundError:  # dropped so long ago that its files are gone
        return None
    except StreamhouseError as error:
        logger.warning("table %s cannot be opened: %s", path, error)
        return TableSummary(path, None)
