"""Parameters of procedures: defaults and validation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.core.paths import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.schema.ddl import DdlColumn, parse_type

_IS_OF_TYPE: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "timestamp": lambda value: isinstance(value, int) and not isinstance(value, bool),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter. ``default`` is an SQL literal, or None if the parameter is required."""

    name: str
    type: str
    comment: str
    default: str | None = None

    @property
    def default_value(self) -> Any:
        return None if self.default in (None, "NULL") else json.loads(self.default or "")

    @property
    def is_nullable(self) -> bool:
        return self.default == "NULL"

    def to_json(self) -> dict[str, Any]:
        struct = spark_versions.spark_schema_of(pa.schema([(self.name, parse_type(self.type))]))
        shown = struct.fields[0].dataType.json()
        return {"name": self.name, "type": shown, "default": self.default, "comment": self.comment}


def bind_arguments(procedure: str, parameters: Sequence[Parameter], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each parameter. Raises `InvalidOptionError` for an unknown, missing or mistyped argument."""
    by_folded_name = {name.casefold(): value for name, value in arguments.items()}
    names = [parameter.name for parameter in parameters]
    for name in arguments:
        if name.casefold() not in names:
            near = find_nearest(name, names)
            hint = f"did you mean {near}?" if near else f"it has {', '.join(names)}"
            raise InvalidOptionError(f"procedure {procedure} has no parameter {name[:100]!r}; {hint}")
    return {parameter.name: _bind_value(procedure, parameter, by_folded_name) for parameter in parameters}


def _bind_value(procedure: str, parameter: Parameter, arguments: Mapping[str, Any]) -> Any:
    if parameter.name not in arguments:
        if parameter.default is None:
            raise InvalidOptionError(f"procedure {procedure} needs {parameter.name}: {parameter.comment}")
        return parameter.default_value
    value = arguments[parameter.name]
    if value is None and parameter.is_nullable:
        return None
    if value is None or not _IS_OF_TYPE[parameter.type](value):
        shown = "null" if value is None else repr(value)[:100]
        raise InvalidOptionError(f"{parameter.name} of procedure {procedure} is {shown}, expected {parameter.type}")
    return value


def parse_table_argument(text: str) -> str:
    """Return a valid table name. Raises `InvalidNameError`, also for a name with a suffix."""
    return str(parse_table_name(text).require_table("call a procedure on"))


def parse_older_than(older_than_us: int | None, default_ms: int, now_ms: int) -> int:
    """Return the age of ``older_than`` in milliseconds. Raises `InvalidOptionError` for a future time."""
    if older_than_us is None:
        return default_ms
    grace_ms = now_ms - older_than_us // 1000
    if grace_ms < 0:
        raise InvalidOptionError(f"older_than lies {-grace_ms} ms in the future; give a time that has passed")
    return grace_ms


def struct_json(columns: Sequence[DdlColumn]) -> str:
    """Return the ``StructType`` of columns as its JSON text."""
    return str(
        spark_versions.spark_schema_of(pa.schema([pa.field(c.name, c.type, c.nullable) for c in columns])).json()
    )
