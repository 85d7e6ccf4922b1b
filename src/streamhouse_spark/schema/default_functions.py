"""Default functions: time and user of the write that omits the column. Pure.

A function has one value per write, regardless of the number of its rows, tasks and processes. The process that starts
the write creates a `StatementContext` and passes it to all others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.clock import World, system_author
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema import literals
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.literals import Constant

_SYNONYMS: Final = {
    "current_timestamp": "current_timestamp",
    "now": "current_timestamp",
    "current_date": "current_date",
    "curdate": "current_date",
    "current_user": "current_user",
    "user": "current_user",
    "session_user": "current_user",
}
_TYPES: Final = {
    "current_timestamp": pa.timestamp("us", tz="UTC"),
    "current_date": pa.date32(),
    "current_user": pa.string(),
}
_CALL: Final = re.compile(r"(?P<name>[A-Za-z_]+)\s*(?:\(\s*\))?")
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class StatementContext:
    """Time and user of one write."""

    ms: int
    """Milliseconds since 1970-01-01 UTC."""
    user: str

    @classmethod
    def of(cls, world: World) -> StatementContext:
        """Return the current time, and the user recorded in commits, which may be empty."""
        author = world.author or system_author("python")
        return cls(world.clock.now_ms(), author.user)


@dataclass(frozen=True, slots=True)
class DefaultFunction:
    """A function as the default of a column."""

    name: str

    @property
    def sql(self) -> str:
        return f"{self.name}()"

    def to_json(self) -> dict[str, str]:
        """Return the form in commit records. Versions of this package that support only constants reject it."""
        return {"function": self.name}

    def value(self, context: StatementContext) -> Constant:
        """Return the value in a write, in the form of constants in records. Days are in UTC."""
        match self.name:
            case "current_timestamp":
                return context.ms * 1000
            case "current_date":
                return context.ms // _DAY_MS
            case _:
                return context.user


Default = Constant | DefaultFunction


def parse_default(text: str, data_type: pa.DataType, column: str, time_zone: str | None = None) -> Default | None:
    """Parse the expression of a ``DEFAULT`` clause: a function of this module, or a constant as in `literals.parse`.

    Raises `SchemaMismatchError` for anything else, and for a function with another type than the column.
    """
    literals.require_plain(data_type, column)
    inner = text.strip()
    while inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1].strip()
    call = _CALL.fullmatch(inner)
    name = _SYNONYMS.get(call["name"].lower()) if call is not None else None
    if name is None:
        return literals.parse(text, data_type, column, time_zone)
    _require_type(name, data_type, column)
    return DefaultFunction(name)


def default_from_json(value: Any, data_type: pa.DataType, column: str) -> Default | None:
    """Parse a default from a record. Raises `SchemaMismatchError` for an unknown function."""
    if not isinstance(value, Mapping):
        return value  # type: ignore[no-any-return]
    name = value.get("function")
    if name not in _TYPES:
        raise SchemaMismatchError(
            f"column '{column}' has the default {dict(value)!r}, which this version of the package does not know; "
            "install the version that wrote it, or a later one"
        )
    _require_type(name, data_type, column)
    return DefaultFunction(name)


def _require_type(name: str, data_type: pa.DataType, column: str) -> None:
    if not data_type.equals(_TYPES[name]):
        raise SchemaMismatchError(
            f"column '{column}' of type {type_name(data_type)} cannot have DEFAULT {name}(), which is a "
            f"{type_name(_TYPES[name])}; give the column this type, or compute the value in the query"
        )
