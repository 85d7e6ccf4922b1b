"""Operations on all tables of a warehouse, in which a damaged table does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import parse_database
from streamhouse_spark.errors import StreamhouseError, TableNotFoundError
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.listing import list_tables, list_tables_of, prefetch_names

if TYPE_CHECKING:
    from streamhouse_spark.warehouse.warehouse import Warehouse

logger = logging.getLogger(__name__)

R = TypeVar("R")


@dataclass(slots=True)
class TableBatch:
    """Open tables, and name → error of the tables for which an operation failed."""

    tables: list[Table] = field(default_factory=list)
    failed: dict[str, StreamhouseError] = field(default_factory=dict)

    def each(self, work: Callable[[Table], R]) -> list[R]:
        """Call ``work`` for each table and return the results. Logs and records errors, and continues."""
        done = []
        for table in self.tables:
            try:
                done.append(work(table))
            except StreamhouseError as error:
                self.fail(table.name, error)
        return done

    def fail(self, name: str, error: StreamhouseError) -> None:
        logger.error("table %s: %s", name, error)
        self.failed[name] = error

    def raise_first(self) -> None:
        """Raise the first recorded error, if any. Call it after all tables were processed."""
        for error in self.failed.values():
            raise error


def open_all(warehouse: Warehouse, database: str | None = None) -> TableBatch:
    """Open all tables of a warehouse or database. Raises the errors of `Warehouse.tables`."""
    storage, world = warehouse.storage, warehouse.world
    if database is None:
        listed = list_tables(storage, world, prefetch_names(storage))
    else:
        warehouse.database_comment(database)  # raises for an unknown database
        listed = list_tables_of(storage, world, parse_database(database))
    opened = TableBatch()
    for table in listed:
        if table.log is not None:
            opened.tables.append(Table(storage, warehouse.settings, table.path, table.log, world))
        else:
            unopened = open_listed(warehouse.table, [str(table.path)])
            opened.tables += unopened.tables
            opened.failed |= unopened.failed
    return opened


def open_named(open_table: Callable[[str], Table], names: Sequence[str]) -> TableBatch:
    """Open tables that a user named. Raises the first error."""
    return TableBatch([open_table(name) for name in names])


def open_listed(open_table: Callable[[str], Table], names: Iterable[str]) -> TableBatch:
    """Open listed tables. Skips tables that were dropped since, and records errors."""
    opened = TableBatch()
    for name in names:
        try:
            opened.tables.append(open_table(name))
        except TableNotFoundError:
            continue
        except StreamhouseError as error:
            opened.fail(name, error)
    return opened
