"""Warehouses and tables that are cached per process of a Spark job.

A `Connection` is created on the driver and sent to executors in readers and writers. Open stores and tables are cached
per process, because Spark reuses Python workers for many tasks and micro-batches. A forked child has an empty cache.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Generic, TypeVar

from streamhouse_spark.config import spark_options as options
from streamhouse_spark.core.clock import World, system_author
from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.errors import DifferentHistoryError, StreamhouseError
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.catalog.branches import require_branch
from streamhouse_spark.log.catalog.name_changes import is_named, name_is_view_error
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import SupportsBatchReads, map_with_store_concurrency
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse, make_table, open_pointed

logger = logging.getLogger(__name__)

TABLES_KEPT = 64
"""Number of tables that are always cached, regardless of their size."""
ENTRIES_KEPT_MAX = 200_000
"""More tables are cached up to this number of segments and other entries, of about a kilobyte each, in their states."""
NAMES_KEPT = 4096
"""Number of cached name resolutions, with which a name and its last table are read in parallel."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Connection:
    """Location and settings of a warehouse. ``repr`` hides the settings, which may contain credentials."""

    location: str
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, location: str, settings: Mapping[str, str]) -> Connection:
        return cls(location, tuple(sorted(settings.items())))

    def __repr__(self) -> str:
        return f"Connection({self.location!r})"

    def warehouse(self) -> Warehouse:
        return _open_process(os.getpid(), self).warehouse

    def table(self, name: str) -> Table:
        """Return the table that the name refers to, with its latest state. A suffix of the name is ignored.

        Raises `TableNotFoundError` with the nearest name, for which all tables are listed.
        """
        table = self.find_table(name)
        return table if table is not None else self.warehouse().table(str(parse_table_name(name).path))

    def find_table(self, name: str) -> Table | None:
        """Return the table that the name refers to; None if it does not exist. See `table`."""
        return self.find_table_with(name, None)[0]

    def find_table_with(self, name: str, read_extra: Callable[[Table], T] | None) -> tuple[Table | None, T | None]:
        """Return the result of `find_table`, and the result of ``read_extra`` for the table.

        On a high-latency store, the name and the cached table that it last referred to are read in parallel with
        ``read_extra``. The second result is None on other stores, if the name refers to another table, or if
        ``read_extra`` failed.
        """
        process = _open_process(os.getpid(), self)
        path = parse_table_name(name).path
        if path.branch is not None:
            return self._find_branch(process, path), None
        if process.tables:  # try to refresh a cached table
            prefetch = process.prefetch(path, read_extra)
            pointer = prefetch.pointer if prefetch else names.resolve(process.warehouse.storage, path)
            if pointer.view is not None:
                raise name_is_view_error(path, process.warehouse.url)
            if pointer.uuid is None:
                return None, None
            cached = process.tables.get(pointer.uuid)
            try:
                if prefetch is not None and prefetch.table is not cached:
                    prefetch = None
                state = prefetch.state if prefetch is not None else None
                if cached is not None and is_named(state or cached.refresh(), path):
                    process.tables.note_name(path, cached)
                    return cached, prefetch.extra if prefetch is not None else None
            except DifferentHistoryError as error:  # callers compare their positions with the reopened table
                logger.warning("reopening the table: %s", error)
            table = open_pointed(process.warehouse, path, pointer.uuid)
        else:
            table = process.warehouse.find_table(str(path))
        if table is not None:
            process.tables.keep(table)
            process.tables.note_name(path, table)
        return table, None

    def _find_branch(self, process: _Process, path: TablePath) -> Table | None:
        """Return a branch; None if its table does not exist. Raises `TableNotFoundError` for an unknown branch."""
        if (table := self.find_table(str(path.base))) is None:
            return None
        name = path.branch or ""
        cached = process.tables.get(require_branch(table.state, name).uuid)
        if cached is not None and not cached.log.is_stale_history:
            cached.refresh()
            return cached
        branch = table.branch(name)
        process.tables.keep(branch)
        return branch

    def table_by_uuid(self, name: str, uuid: str) -> Table:
        """Return the table of a plan, even if its name refers to another table. Its state is read on first use."""
        process = _open_process(os.getpid(), self)
        table = process.tables.get(uuid)
        if table is None or table.log.is_stale_history:
            warehouse = process.warehouse
            log = CommitLog(warehouse.storage, uuid, warehouse.world)
            table = make_table(warehouse, parse_table_name(name).path, log)
            process.tables.keep(table)
        return table


class OpenTables:
    """LRU cache of the open tables of this process by uuid.

    Evicted tables are found while they are referenced. So a tiering service, which references all of its tables, opens
    each of them once.
    """

    def __init__(self) -> None:
        self._recent: OrderedDict[str, Table] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[str, Table] = weakref.WeakValueDictionary()
        self._uuid_by_path: OrderedDict[TablePath, str] = OrderedDict()
        self._lock = new_lock()

    def __bool__(self) -> bool:
        return bool(self._recent)

    def __len__(self) -> int:
        return len(self._recent)

    def get(self, uuid: str) -> Table | None:
        with self._lock:
            if uuid in self._recent:
                self._recent.move_to_end(uuid)
            return self._alive.get(uuid)

    def note_name(self, path: TablePath, table: Table) -> None:
        """Record that a name refers to a table."""
        with self._lock:
            self._uuid_by_path[path] = table.uuid
            self._uuid_by_path.move_to_end(path)
            if len(self._uuid_by_path) > NAMES_KEPT:
                self._uuid_by_path.popitem(last=False)

    def find_open(self, path: TablePath) -> Table | None:
        """Return the open table that a name last referred to, if any. The name may refer to another table now."""
        with self._lock:
            uuid = self._uuid_by_path.get(path)
        return None if uuid is None else self.get(uuid)

    def keep(self, table: Table) -> None:
        with self._lock:
            self._alive[table.uuid] = table
            self._recent[table.uuid] = table
            self._recent.move_to_end(table.uuid)
            if len(self._recent) <= TABLES_KEPT:
                return
            entries = sum(_num_entries(open_table.log.cached_state) for open_table in self._recent.values())
            while len(self._recent) > TABLES_KEPT and entries > ENTRIES_KEPT_MAX:
                _, evicted = self._recent.popitem(last=False)
                entries -= _num_entries(evicted.log.cached_state)


def _num_entries(state: TableState | None) -> int:
    if state is None:
        return 1
    in_buckets = len(state.buckets) + sum(len(log.segments) for log in state.buckets.values())
    return 1 + in_buckets + len(state.transactions) + len(state.request_keys) + len(state.condemned)


class _Process:
    """An open warehouse of this process, and its open tables."""

    def __init__(self, connection: Connection) -> None:
        author = system_author("spark" if "pyspark" in sys.modules else "python")
        self.warehouse = Warehouse(connection.location, dict(connection.settings), world=World(author=author))
        self.tables = OpenTables()

    def prefetch(self, path: TablePath, read_extra: Callable[[Table], T] | None) -> _PrefetchedTable[T] | None:
        """Read a name, its last table and ``read_extra`` in parallel; None if that saves no round trip."""
        storage = self.warehouse.storage
        cached = self.tables.find_open(path)
        if cached is None or cached.log.is_stale_history or not isinstance(storage, SupportsBatchReads):
            return None
        prefetch = _PrefetchedTable[T](cached)
        reads = [lambda: prefetch.read_name(storage, path), prefetch.read_table]
        if read_extra is not None:
            reads.append(lambda: prefetch.read_extra(read_extra))
        for _ in map_with_store_concurrency(storage, lambda read: read(), reads):
            pass
        return prefetch


class _PrefetchedTable(Generic[T]):
    """The results of reading a name and its last table in parallel.

    If a read of the table failed, its result is None, and the caller reads the table again to get the error.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.pointer = names.NamePointer(0, None)
        self.state: TableState | None = None
        self.extra: T | None = None

    def read_name(self, storage: Storage, path: TablePath) -> None:
        self.pointer = names.resolve(storage, path)

    def read_table(self) -> None:
        with suppress(StreamhouseError):
            self.state = self.table.refresh()

    def read_extra(self, read_extra: Callable[[Table], T]) -> None:
        with suppress(StreamhouseError):
            self.extra = read_extra(self.table)


@functools.lru_cache(maxsize=16)
def _open_process(_process_id: int, connection: Connection) -> _Process:
    return _Process(connection)


def connect(given_options: Mapping[str, str], environ: Mapping[str, str]) -> Connection:
    """Resolve the connection from options and the driver's environment. Raises `InvalidOptionError`."""
    return Connection.of(options.resolve_warehouse(given_options, environ), options.warehouse_settings(given_options))
