"""Warehouses and tables cached per process of a Spark job.

A `Connection` is created on the driver and travels to the executors in readers and writers. Open stores and tables are
cached per process, because Spark's Python workers survive tasks and micro-batches. A forked child starts with an empty
cache.
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
from streamhouse_spark.log.catalog.renaming import is_named, name_is_view_error
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import ReadsMany, map_with_store_concurrency
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse, make_table, open_pointed

logger = logging.getLogger(__name__)

TABLES_KEPT = 64
"""Minimum number of cached tables, however large."""
ENTRIES_KEPT_MAX = 200_000
"""Total segments and other entries of cached states, about a kilobyte each, up to which more tables are cached."""
NAMES_KEPT = 4096
"""Number of cached name resolutions: on a high-latency store a name and its last table are read in parallel."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Connection:
    """Location and settings of a warehouse. Both may hold credentials, so ``repr`` hides the settings."""

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
        """Return the table that the name refers to now, freshly read; a suffix is ignored.

        Raises `TableNotFoundError` naming the nearest table, for which all tables are listed.
        """
        table = self.find_table(name)
        return table if table is not None else self.warehouse().table(str(parse_table_name(name).path))

    def find_table(self, name: str) -> Table | None:
        """Return the table as `table` does; None if there is none."""
        return self.find_table_with(name, None)[0]

    def find_table_with(self, name: str, read_extra: Callable[[Table], T] | None) -> tuple[Table | None, T | None]:
        """Return the table as `find_table` does, and what ``read_extra`` read of it in parallel.

        On a high-latency store the name, its last table, and what ``read_extra`` reads of that are requested in
        parallel. The second result is None if that saves nothing, the name refers to another table, or ``read_extra``
        failed.
        """
        process = _open_process(os.getpid(), self)
        path = parse_table_name(name).path
        if path.branch is not None:
            return self._find_branch(process, path), None
        if process.tables:  # a cached table is only refreshed
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
            except DifferentHistoryError as error:  # callers check their positions against the newly opened table
                logger.warning("opening the table again: %s", error)
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
        """Return the table of a plan, whatever its name refers to by now. Its state is read on first use."""
        process = _open_process(os.getpid(), self)
        table = process.tables.get(uuid)
        if table is None or table.log.is_stale_history:
            warehouse = process.warehouse
            log = CommitLog(warehouse.storage, uuid, warehouse.world)
            table = make_table(warehouse, parse_table_name(name).path, log)
            process.tables.keep(table)
        return table


class OpenTables:
    """Open tables of this process by uuid, least recently used first.

    Tables are cached up to `ENTRIES_KEPT_MAX` entries of their states. Evicted tables are still found while something
    references them. A tiering service references all of its tables and never opens one twice.
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
        """Cache that a name refers to a table."""
        with self._lock:
            self._uuid_by_path[path] = table.uuid
            self._uuid_by_path.move_to_end(path)
            if len(self._uuid_by_path) > NAMES_KEPT:
                self._uuid_by_path.popitem(last=False)

    def find_open(self, path: TablePath) -> Table | None:
        """Return the last table of a name; None if it is not open. The name may refer to another table by now."""
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
                _, left = self._recent.popitem(last=False)
                entries -= _num_entries(left.log.cached_state)


def _num_entries(state: TableState | None) -> int:
    if state is None:
        return 1
    of_buckets = len(state.buckets) + sum(len(log.segments) for log in state.buckets.values())
    return 1 + of_buckets + len(state.transactions) + len(state.request_keys) + len(state.condemned)


class _Process:
    """The store and tables of one warehouse that this process has open."""

    def __init__(self, connection: Connection) -> None:
        author = system_author("spark" if "pyspark" in sys.modules else "python")
        self.warehouse = Warehouse(connection.location, dict(connection.settings), world=World(author=author))
        self.tables = OpenTables()

    def prefetch(self, path: TablePath, read_extra: Callable[[Table], T] | None) -> _PrefetchedTable[T] | None:
        """Read a name, its last table, and ``read_extra`` of it in one round trip; None if that saves nothing."""
        storage = self.warehouse.storage
        cached = self.tables.find_open(path)
        if cached is None or cached.log.is_stale_history or not isinstance(storage, ReadsMany):
            return None
        prefetch = _PrefetchedTable[T](cached)
        looks = [lambda: prefetch.read_name(storage, path), prefetch.read_table]
        if read_extra is not None:
            looks.append(lambda: prefetch.read_extra(read_extra))
        for _ in map_with_store_concurrency(storage, lambda look: look(), looks):
            pass
        return prefetch


class _PrefetchedTable(Generic[T]):
    """The results of reading a name and its last table in parallel.

    If the table could not be read its fields are None; reading it again raises the error.
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
    """Return the connection that options and the driver's environment specify. Raises `InvalidOptionError`."""
    return Connection.of(options.resolve_warehouse(given_options, environ), options.warehouse_settings(given_options))
