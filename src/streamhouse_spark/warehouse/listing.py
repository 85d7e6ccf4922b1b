"""Batched listing of tables, with few round trips on a high-latency store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from streamhouse_spark.config.table_properties import BRANCH
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import TABLES_PREFIX, may_have_external_log
from streamhouse_spark.errors import StreamhouseError, TableNotFoundError
from streamhouse_spark.log.bootstrap import LogPrefetcher, PrefetchedLog, prefetch_logs
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.catalog.name_changes import follow_replacements, is_named
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import SupportsBatchReads, map_with_store_concurrency

logger = logging.getLogger(__name__)
TOGETHER_MAX: Final = 64
"""Tables whose checkpoints and latest records are in memory at the same time."""
LOGS_MAX: Final = 256
"""Upper bound of logs that are prefetched before their names are known. With more logs, the number of requests matters
more than their latency.
"""
_UNNAMED_MAX: Final = 16
Named = tuple[TablePath, names.NamePointer | None]
"""A name that refers to a table, and its pointer, or None if the pointer is unreadable."""
Step = Callable[[], list[TablePath] | None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DroppedTable:
    name: str
    """The last name of the table."""
    uuid: str
    dropped_ms: int
    """Store time of the drop, or of a later record of cleaning. The grace period of `Warehouse.clean_dropped` starts at
    this time.
    """
    rows: int
    """Rows, or changes of a primary-key table, that were written since the table was created or truncated."""


def list_dropped_tables(storage: Storage, world: World) -> list[DroppedTable]:
    """Return the dropped tables, ordered by name, then latest first. Unreadable tables are logged and skipped."""

    def read(uuid: str) -> TableState | None:
        try:
            return CommitLog(storage, uuid, world).refresh()
        except TableNotFoundError:  # buried, or without a first record
            return None
        except StreamhouseError as error:
            logger.warning("cannot read table %s: %s", uuid, error)
            return None

    states = parallel_map(read, storage.list_names(TABLES_PREFIX))
    dropped = [
        DroppedTable(state.name, state.table_uuid, state.time_ms, state.num_rows)
        for state in states
        if state is not None and state.dropped and not state.buried and BRANCH not in state.properties
    ]
    return sorted(dropped, key=lambda table: (table.name, -table.dropped_ms, table.uuid))


def find_dropped_table(dropped: Sequence[DroppedTable], path: TablePath, uuid: str | None, url: str) -> DroppedTable:
    """Return the latest dropped table of a name, or the table with this uuid. Raises `TableNotFoundError`."""
    same_name = [table for table in dropped if table.name == str(path)]
    if match := next((table for table in same_name if uuid in (None, table.uuid)), None):
        return match
    if same_name:
        hint = f"dropped tables with this name: {', '.join(table.uuid for table in same_name[:5])}"
    else:
        near = find_nearest(str(path), [table.name for table in dropped])
        names = ", ".join(dict.fromkeys(table.name for table in dropped[:10]))
        hint = f"did you mean {near}?" if near else f"dropped tables: {names or 'none'}"
    which = f"{path} ({uuid})" if uuid is not None else str(path)
    raise TableNotFoundError(
        f"no dropped table {which} in {url} can be restored; {hint}. Cleaning deletes the files of dropped tables "
        "after the grace period"
    )


@dataclass(frozen=True, slots=True)
class NamePrefetch:
    """Listings of databases and logs."""

    folders: Sequence[str]
    """Database folders, also of dropped databases."""
    logs: Sequence[str]
    """Uuids of logs to prefetch. Some logs may have no name, and new logs may be missing."""


@dataclass(frozen=True, slots=True)
class TableSummary:
    path: TablePath
    log: CommitLog | None
    """The log, read to its end; None for a table that cannot be opened."""


def prefetch_names(storage: Storage, *, exists: bool = False) -> NamePrefetch:
    """List the folders of databases and logs in one round trip, with a check of the warehouse unless it ``exists``.

    Raises the errors of `names.require_warehouse`.
    """

    def require() -> list[str]:
        if not exists:
            names.require_warehouse(storage)
        return []

    reads: list[Callable[[], list[str]]] = [
        require,
        lambda: names.list_database_folders(storage),
        lambda: _logs_to_prefetch(storage),
    ]
    _, folders, logs = _run_steps(storage, reads)
    return NamePrefetch(folders, logs)


def _logs_to_prefetch(storage: Storage) -> list[str]:
    """Return the logs to prefetch; none if that saves no round trip."""
    if not isinstance(storage, SupportsBatchReads):
        return []
    uuids = [uuid for uuid in storage.list_names(TABLES_PREFIX) if not may_have_external_log(uuid)]
    return uuids if len(uuids) <= LOGS_MAX else []


def list_tables(storage: Storage, world: World, prefetch: NamePrefetch) -> Iterator[TableSummary]:
    """Open all tables of the databases that exist, ordered by name."""
    logs = LogPrefetcher(storage, world, prefetch.logs)
    steps: list[Step] = [logs.read_hints, *(partial(_list_existing, storage, folder) for folder in prefetch.folders)]
    paths = [path for database_paths in _run_steps(storage, steps) for path in database_paths or ()]
    named: list[Named] = []
    reads: list[Callable[[], None]] = [lambda: named.extend(names.iter_table_names(storage, paths))]
    prefetches_early = len(logs) <= 2 * len(paths) + _UNNAMED_MAX
    _run_steps(storage, [*reads, logs.read_first] if prefetches_early else reads)
    logs.keep(_uuids(named))
    if not prefetches_early:
        logs.read_first()
    logs.read_others()
    return _open_tables(storage, world, named, logs.prefetched_logs())


def list_tables_of(
    storage: Storage, world: World, database: str, require: Callable[[], object] = lambda: None
) -> Iterator[TableSummary]:
    """Open all tables of a database, ordered by name. ``require`` runs in parallel and may raise."""
    paths: list[TablePath] = []
    uuids: list[str] = []
    reads: list[Callable[[], object]] = [
        require,
        lambda: paths.extend(names.list_paths(storage, database)),
        lambda: uuids.extend(_logs_to_prefetch(storage)),
    ]
    _run_steps(storage, reads)
    logs = LogPrefetcher(storage, world, uuids if len(uuids) <= 2 * len(paths) + _UNNAMED_MAX else ())
    named: list[Named] = []
    reads = [lambda: named.extend(names.iter_table_names(storage, paths)), logs.read_hints]
    _run_steps(storage, reads)
    logs.keep(_uuids(named))
    logs.read_first()
    logs.read_others()
    return _open_tables(storage, world, named, logs.prefetched_logs())


def _run_steps(storage: Storage, steps: Sequence[Callable[[], T]]) -> list[T]:
    return list(map_with_store_concurrency(storage, lambda step: step(), steps))


def _uuids(named: Sequence[Named]) -> set[str]:
    return {pointer.uuid for _, pointer in named if pointer is not None and pointer.uuid is not None}


def _list_existing(storage: Storage, database: str) -> list[TablePath]:
    """Return the names in a database; none if it does not exist."""
    reads: list[Step] = [
        lambda: None if names.is_listed(storage, database) else [],
        lambda: names.list_paths(storage, database),
    ]
    absent, paths = _run_steps(storage, reads)
    return absent if absent is not None else paths or []


def _open_tables(
    storage: Storage, world: World, named: Sequence[Named], prefetched: dict[str, PrefetchedLog]
) -> Iterator[TableSummary]:
    """Open tables with their ``prefetched`` logs, and prefetch the other logs in batches."""
    for begin in range(0, len(named), TOGETHER_MAX):
        batch = named[begin : begin + TOGETHER_MAX]
        prefetched |= prefetch_logs(storage, world, [uuid for uuid in _uuids(batch) if uuid not in prefetched])
        # During a rename two names may refer to one table, but a prefetched log can be read once.
        requests = [(path, pointer, prefetched.pop(str(pointer and pointer.uuid), None)) for path, pointer in batch]
        tables = map_with_store_concurrency(storage, partial(_summarise_table, storage, world), requests)
        yield from (table for table in tables if table is not None)


def _summarise_table(
    storage: Storage, world: World, request: tuple[TablePath, names.NamePointer | None, PrefetchedLog | None]
) -> TableSummary | None:
    """Open the table of a name; None if the name no longer refers to it."""
    path, pointer, prefetched = request
    if pointer is None or pointer.uuid is None:
        return TableSummary(path, None)
    try:
        log = follow_replacements(storage, world, CommitLog(storage, pointer.uuid, world, prefetched=prefetched))
        return TableSummary(path, log) if is_named(log.state, path) else None
    except TableNotFoundError:  # dropped, and its files are deleted
        return None
    except StreamhouseError as error:
        logger.warning("cannot open table %s: %s", path, error)
        return TableSummary(path, None)
