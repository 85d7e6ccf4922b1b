"""The components of a server that HTTP and Arrow Flight share."""

from __future__ import annotations

from contextlib import suppress

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import TableNotFoundError
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.auth import Authenticator
from streamhouse_spark.serve.server_metrics import ServerCounters
from streamhouse_spark.table.preloading import preload_modules
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse


class OpenTables:
    """The open tables of a server, whose caches all requests share. Safe for threads."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse
        self._tables: dict[str, Table] = {}

    def table(self, name: str) -> Table:
        """Return the table that currently has the name, in its latest state. Raises `TableNotFoundError`."""
        table = self._tables.get(name)
        if table is not None:
            with suppress(TableNotFoundError):
                if table.refresh().name == name:
                    return table
            self._tables.pop(name, None)
        table = self.warehouse.table(name)
        preload_modules(table.state)
        self._tables[name] = table
        return table


@dataclass(frozen=True, slots=True)
class AppContext:
    tables: OpenTables
    admission: Authenticator
    counts: ServerCounters
    audit: AuditLog | None = None
