"""Discovery of a warehouse's tables: one listing per database shows the names that must be resolved again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Final, Literal

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.errors import StreamhouseError, TableNotFoundError
from streamhouse_spark.log.catalog import names
from streamhouse_spark.storage.prefetch import map_with_store_concurrency
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection

LISTING_MS: Final = 5_000
REMOTE_LISTING_MS: Final = 15_000
"""Longer, because listings are the most expensive requests of an object store."""
UNSETTLED: Final = "unsettled"
"""The result for a name whose table has another name or is dropped, because a DDL operation is in progress."""


@dataclass(frozen=True, slots=True)
class TableListing:
    """The tables, and the errors by the names of tables that could not be opened."""

    tables: list[Table]
    failures: dict[str, StreamhouseError]


@dataclass
class TableDiscovery:
    """Discovers tables, and caches the table of each name by the number of the name's latest pointer.

    A name is resolved again if it has a new pointer, or its table has another name. A table without a lake is always
    resolved again, because the lake may be enabled. Not safe for threads.
    """

    connection: Connection
    _tables: dict[str, tuple[int, Table | None]] = field(default_factory=dict)
    """Name → the number of its latest pointer, and the table, or None if the name has no table."""

    @property
    def interval_ms(self) -> int:
        """The time between two listings."""
        is_local = self.connection.warehouse().storage.local_path("") is not None
        return LISTING_MS if is_local else REMOTE_LISTING_MS

    def forget(self, table: Table) -> None:
        """Forget a table, which may be dropped, so that its name is resolved again."""
        self._tables = {name: entry for name, entry in self._tables.items() if entry[1] is not table}

    def discover(self, chosen: Sequence[str] | None = None) -> TableListing:
        """Return the tables of the warehouse, or the ``chosen`` tables. Raises the errors of a listing."""
        newest = dict.fromkeys(chosen, 0) if chosen is not None else self._list_pointers()
        storage = self.connection.warehouse().storage
        stale_names = [name for name in newest if chosen is not None or not self._is_unchanged(name, newest[name])]
        failures: dict[str, StreamhouseError] = {}
        for name, outcome in zip(
            stale_names, map_with_store_concurrency(storage, self._open, stale_names), strict=True
        ):
            self._tables.pop(name, None)
            if isinstance(outcome, StreamhouseError):
                failures[name] = outcome
            elif outcome != UNSETTLED:
                self._tables[name] = (newest[name], outcome)
        self._tables = {name: entry for name, entry in self._tables.items() if name in newest}
        return TableListing([table for _, table in self._tables.values() if table is not None], failures)

    def _list_pointers(self) -> dict[str, int]:
        storage = self.connection.warehouse().storage
        pointers: dict[str, int] = {}
        databases = names.list_databases(storage)
        for numbers in map_with_store_concurrency(
            storage, lambda database: names.list_pointers(storage, database), databases
        ):
            pointers |= {str(path): number for path, number in numbers.items()}
        return pointers

    def _is_unchanged(self, name: str, newest: int) -> bool:
        number, table = self._tables.get(name, (0, None))
        if number != newest:
            return False
        if table is None:
            return True
        state = table.state
        return not state.dropped and state.name == name and state.parsed.datalake_enabled

    def _open(self, name: str) -> Table | StreamhouseError | Literal["unsettled"] | None:
        path = parse_table_name(name).path
        try:
            return self.connection.table(str(path))
        except TableNotFoundError:
            resolved = names.resolve(self.connection.warehouse().storage, path)
            return None if resolved.uuid is None else UNSETTLED
        except StreamhouseError as error:
            return error
