"""Doing something to all tables of a warehouse, where one that is damaged must not keep the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from streamhouse_spark.errors import StreamhouseError, TableNotFoundError

if TYPE_CHECKING:
    from streamhouse_spark.table.table import Table

logger = logging.getLogger(__name__)

R = TypeVar("R")


@dataclass(slots=True)
class OpenedTables:
    """Tables that could be opened, and by name the errors of those for which something failed."""

    tables: list[Table] = field(default_factory=list)
    failed: dict[str, StreamhouseError] = field(default_factory=dict)

    def each(self, work: Callable[[Table], R]) -> list[R]:
        """What the work gave for each table, in their order. Its errors are logged and kept; the others go on."""
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
        """Raise the first error, once the others had their turn: nothing that failed is taken for done."""
        for error in self.failed.values():
            raise error


def open_named(open_one: Callable[[str], Table], names: Sequence[str]) -> OpenedTables:
    """Tables that a user named: the first error is raised."""
    return OpenedTables([open_one(name) for name in names])


def open_listed(open_one: Callable[[str], Table], names: Iterable[str]) -> OpenedTables:
    """Tables that a listing found: those that were dropped meanwhile are left out."""
    opened = OpenedTables()
    for name in names:
        try:
            opened.tables.append(open_one(name))
        except TableNotFoundError:
            continue
        except StreamhouseError as error:
            opened.fail(name, error)
    return opened
