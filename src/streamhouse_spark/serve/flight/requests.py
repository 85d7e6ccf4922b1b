"""Requests and tickets of Arrow Flight as JSON: a table and the rows to read.

A ticket contains a request and a part of the server's plan for the request, but never names of files. Clients may
therefore write any ticket: tickets need no signature, and rights are checked when a ticket is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.errors import InvalidOptionError, quote

PARTS_DEFAULT: Final = 4
PARTS_MAX: Final = 64
_BYTES_MAX: Final = 64 << 10
_NUMBER_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The rows to read, with the fields of the JSON object."""

    table: str
    """A name such as ``sales.orders``, ``sales.orders$lake`` or ``sales.orders$history``."""
    columns: tuple[str, ...] | None = None
    where: str | None = None
    limit: int | None = None
    version: int | str | None = None
    """A commit or a tag."""
    snapshot: int | None = None
    """The lake snapshot, for ``$lake``."""
    parts: int = PARTS_DEFAULT
    """Number of parts into which the plan is divided, for parallel readers."""

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class ReadTicket:
    """A request, and a part of its plan. A ticket without a part reads all rows of the latest state."""

    request: ReadRequest
    uuid: str | None = None
    """The table's UUID, because another table may get its name."""
    plan: str | None = None
    """Digest of the plan."""
    part: int | None = None

    def to_bytes(self) -> bytes:
        place = {"uuid": self.uuid, "plan": self.plan, "part": self.part} if self.part is not None else {}
        return json.dumps({**self.request.to_json(), **place}, separators=(",", ":")).encode()


_FIELDS: Final = tuple(field.name for field in fields(ReadRequest))
_PLACE: Final = ("uuid", "plan", "part")


def parse_path(path: Sequence[bytes]) -> ReadRequest:
    """Parse a descriptor's path: a table name, or a database and a table. Raises `InvalidOptionError`."""
    if not 1 <= len(path) <= 2 or sum(map(len, path)) > _BYTES_MAX:
        raise InvalidOptionError(
            f"the path has {len(path)} words, expected ['sales.orders'] or ['sales', 'orders']; or send a command"
        )
    return ReadRequest(".".join(_decode_word(word) for word in path))


def parse_command(command: bytes) -> ReadRequest:
    """Parse a descriptor's command. Raises `InvalidOptionError`."""
    return _parse_request(_parse_object(command, "the command"), "the command", _FIELDS)


def parse_ticket(ticket: bytes) -> ReadTicket:
    """Parse a ticket, which may also be a command. Raises `InvalidOptionError`."""
    document = _parse_object(ticket, "the ticket")
    request = _parse_request(document, "the ticket", (*_FIELDS, *_PLACE))
    if not any(name in document for name in _PLACE):
        return ReadTicket(request)
    uuid, plan = (_parse_text(document, "the ticket", name) for name in ("uuid", "plan"))
    part = _parse_number(document, "the ticket", "part", 0)
    if uuid is None or plan is None or part is None:
        raise InvalidOptionError("the ticket has only some of uuid, plan and part; request the flight info again")
    return ReadTicket(request, uuid, plan, part)


def _parse_object(text: bytes, of: str) -> Mapping[str, Any]:
    if len(text) > _BYTES_MAX:
        raise InvalidOptionError(f"{of} has {len(text)} bytes, expected at most {_BYTES_MAX}; send a shorter request")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOptionError(
            f'{of} is not valid JSON: {quote(str(error))}; send an object, such as {{"table": "sales.orders"}}'
        ) from error
    if not isinstance(document, dict):
        raise InvalidOptionError(f'{of} is not a JSON object; send an object, such as {{"table": "sales.orders"}}')
    return document


def _parse_request(document: Mapping[str, Any], of: str, allowed: Sequence[str]) -> ReadRequest:
    for name in document:
        if name not in allowed:
            near = find_nearest(name, _FIELDS)
            hint = f"did you mean {near}?" if near else f"expected {', '.join(_FIELDS)}"
            raise InvalidOptionError(f"{of} has an unknown field {quote(name)}; {hint}")
    table = _parse_text(document, of, "table")
    if table is None:
        raise InvalidOptionError(f'{of} has no table; send, for example, {{"table": "sales.orders"}}')
    return ReadRequest(
        table,
        _parse_columns(document, of),
        _parse_text(document, of, "where"),
        _parse_number(document, of, "limit", 0),
        _parse_version(document, of),
        _parse_number(document, of, "snapshot", -_NUMBER_MAX),
        _parse_number(document, of, "parts", 1, PARTS_MAX) or PARTS_DEFAULT,
    )


def _parse_columns(document: Mapping[str, Any], of: str) -> tuple[str, ...] | None:
    value = document.get("columns")
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise InvalidOptionError(f"{of}: columns is {quote(value)}, expected a list of names")
    return tuple(value)


def _parse_version(document: Mapping[str, Any], of: str) -> int | str | None:
    value = document.get("version")
    return value if isinstance(value, str) else _parse_number(document, of, "version", 1)


def _parse_text(document: Mapping[str, Any], of: str, name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidOptionError(f"{of}: {name} is {quote(value)}, expected a string")
    return value


def _parse_number(document: Mapping[str, Any], of: str, name: str, least: int, most: int = _NUMBER_MAX) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidOptionError(f"{of}: {name} is {quote(value)}, expected a number from {least} to {most}")
    return value


def _decode_word(word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError as error:
        raise InvalidOptionError(f"the path has {quote(word)}, which is not UTF-8; send a table name") from error
