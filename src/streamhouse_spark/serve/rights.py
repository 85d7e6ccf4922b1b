"""Access rights over HTTP: the tables that each client may read or write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from starlette.requests import Request

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.paths import parse_database, parse_table_name
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import InvalidNameError, NotAuthorizedError, StreamhouseError, TableNotFoundError

Right = Literal["read", "write"]
_ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class TableGrant:
    """The tables of a grant: one table, one database, or all. None matches everything."""

    database: str | None = None
    table: str | None = None

    def covers(self, path: TablePath) -> bool:
        return self.database in (None, path.database) and self.table in (None, path.base.table)


ALL_TABLES: Final = TableGrant()


def parse_pattern(text: str) -> TableGrant:
    """Parse ``*``, ``<database>.*`` or ``<database>.<table>``. Raises `InvalidNameError`."""
    if text == _ALL:
        return ALL_TABLES
    database, _, table = text.partition(".")
    if table == _ALL:
        return TableGrant(parse_database(database))
    name = parse_table_name(text)
    if name.suffix is not None:
        raise InvalidNameError(f"{text[:80]!r}: a right is on a table with all that it shows; leave out ${name.suffix}")
    if name.path.branch is not None:
        raise InvalidNameError(f"{text[:80]!r}: a right is on a table with its branches; say {name.path.base}")
    return TableGrant(name.path.database, name.path.table)


@dataclass(frozen=True, slots=True)
class Client:
    """A client of the server, and the tables that it may read or write. Write includes read."""

    name: str
    readable: tuple[TableGrant, ...] = ()
    writable: tuple[TableGrant, ...] = ()
    requests_per_s: float | None = None
    """None for the server's limit per client."""
    ends_s: float | None = None
    """Unix time at which the client's token expires; None for one that does not."""

    def can(self, right: Right, path: TablePath) -> bool:
        granted = self.writable if right == "write" else (*self.readable, *self.writable)
        return any(pattern.covers(path) for pattern in granted)

    def can_read_all(self) -> bool:
        return ALL_TABLES in self.readable or ALL_TABLES in self.writable

    def can_see_database(self, database: str) -> bool:
        """Return whether the client has a right on the database or on one of its tables."""
        return any(pattern.database in (None, database) for pattern in (*self.readable, *self.writable))

    def filter_readable(self, names: Iterable[str]) -> list[str]:
        """Return the tables ``<database>.<table>`` that the client may read."""
        return [name for name in names if self.can("read", parse_table_name(name).path)]


ANONYMOUS: Final = Client("anybody", writable=(ALL_TABLES,))
"""The client of a server without tokens."""


def client_of(request: Request) -> Client:
    """Return the client that `Guard` authenticated; without one, a client without rights."""
    client = request.scope.get("state", {}).get("client")
    return client if isinstance(client, Client) else Client("unknown")


def require(request: Request, right: Right, table: str) -> None:
    """Raise like `require_right` if the client of a request lacks a right on a table."""
    path = parse_table_name(table).path
    state = request.scope.setdefault("state", {})
    state.update(right=right, table=str(path), denied=True)
    require_right(client_of(request), right, path)
    state["denied"] = False


def require_right(client: Client, right: Right, path: TablePath) -> None:
    """Raise `NotAuthorizedError` for a table that the client may read but not write, else `TableNotFoundError`.

    A table that it may not read raises the latter whether it exists or not, without any storage request.
    """
    if not client.can("read", path):
        raise table_not_found(client, path)
    if not client.can(right, path):
        raise NotAuthorizedError(
            f'the client {client.name} may not {right} {path}; ask for a right on it: {right} = ["{path}"] in the '
            "server's file of rights"
        )


def table_not_found(client: Client, path: TablePath) -> TableNotFoundError:
    """Return the error of a table that a client cannot see, equal to that of a missing table."""
    return TableNotFoundError(
        f"table {path} does not exist, or the client {client.name} has no right on it; ask for a right, or for one of "
        "the tables that are listed"
    )


def database_not_found(client: Client, database: str) -> TableNotFoundError:
    """Return the error of a database that a client cannot see, equal to that of a missing database."""
    return TableNotFoundError(
        f"database {database[:100]} does not exist, or the client {client.name} has no right on a table of it; ask for "
        "a right, or for one of the databases that are listed",
        condition="DATABASE_NOT_FOUND",
    )


def hide_names(
    error: StreamhouseError, client: Client, table: str | None, exists: Callable[[str], bool]
) -> StreamhouseError:
    """Return the error to send to a client for an error about a table.

    The error of a missing table may suggest other tables or its new name, which the client may not see.
    """
    if table is None or not isinstance(error, TableNotFoundError) or client.can_read_all():
        return error
    try:
        return error if exists(table) else table_not_found(client, parse_table_name(table).path)
    except StreamhouseError as failure:
        return failure


def requested_table(request: Request) -> str | None:
    """Return the table for which a request needs a right."""
    table = request.scope.get("state", {}).get("table")
    return table if isinstance(table, str) else None


def merge_clients(name: str, clients: Sequence[Client], ends_s: float | None) -> Client:
    """Return one client with the rights of all, such as of the groups of a person."""
    rates = [client.requests_per_s for client in clients if client.requests_per_s is not None]
    return Client(
        name,
        tuple(dict.fromkeys(pattern for client in clients for pattern in client.readable)),
        tuple(dict.fromkeys(pattern for client in clients for pattern in client.writable)),
        max(rates) if rates else None,
        ends_s,
    )
