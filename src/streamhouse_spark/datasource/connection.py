"""A warehouse as each process of a Spark job opens it.

A `Connection` is decided on the driver and travels to the executors inside readers and writers. Opened stores and
tables are kept per process, because Spark's Python workers live on from task to task and from micro-batch to
micro-batch; a forked child begins anew.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from streamhouse_spark import options
from streamhouse_spark.errors import DifferentHistoryError
from streamhouse_spark.log import names
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.renaming import is_named
from streamhouse_spark.paths import parse_table_name
from streamhouse_spark.table import Table
from streamhouse_spark.warehouse import Warehouse

logger = logging.getLogger(__name__)

_TABLES_MAX = 64


@dataclass(frozen=True, slots=True, repr=False)
class Connection:
    """Where a warehouse lies and with which settings. They may hold credentials, so neither text shows them."""

    location: str
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, location: str, settings: Mapping[str, str]) -> Connection:
        return cls(location, tuple(sorted(settings.items())))

    def __repr__(self) -> str:
        return f"Connection({self.location!r})"

    def warehouse(self) -> Warehouse:
        return _opened(os.getpid(), self).warehouse

    def table(self, name: str) -> Table:
        """The table that the name (its suffix does not count) means now, freshly read. Raises `TableNotFoundError`."""
        process = _opened(os.getpid(), self)
        path = parse_table_name(name).path
        if process.tables:  # a table that this process had open is only read on
            pointer = names.resolve(process.warehouse.storage, path)
            known = process.tables.get(pointer.uuid or "")
            try:
                if known is not None and is_named(known.refresh(), path):
                    return known
            except DifferentHistoryError as error:  # who holds a position looks at it by what is opened anew
                logger.warning("opening the table again: %s", error)
        table = process.warehouse.table(str(path))
        process.keep(table)
        return table

    def table_by_uuid(self, name: str, uuid: str) -> Table:
        """The table that was planned for, whatever its name means by now. Its state is read only when it is used."""
        process = _opened(os.getpid(), self)
        known = process.tables.get(uuid)
        if known is None or known.log.is_severed:
            warehouse = process.warehouse
            log = CommitLog(warehouse.storage, uuid, warehouse.world)
            known = Table(warehouse.storage, warehouse.settings, parse_table_name(name).path, log, warehouse.world)
            process.keep(known)
        return known


class _Process:
    """What this process has opened of one warehouse."""

    def __init__(self, connection: Connection) -> None:
        self.warehouse = Warehouse(connection.location, dict(connection.settings))
        self.tables: OrderedDict[str, Table] = OrderedDict()

    def keep(self, table: Table) -> None:
        self.tables[table.uuid] = table
        while len(self.tables) > _TABLES_MAX:
            self.tables.popitem(last=False)


@functools.lru_cache(maxsize=16)
def _opened(_process_id: int, connection: Connection) -> _Process:
    return _Process(connection)


def connect(given: Mapping[str, str], environ: Mapping[str, str]) -> Connection:
    """The connection that options and the driver's environment name. Raises `InvalidOptionError`."""
    return Connection.of(options.resolve_warehouse(given, environ), options.warehouse_settings(given))
