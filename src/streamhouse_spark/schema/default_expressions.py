"""Constants and functions as column defaults, in JSON of records and in SQL.

A constant has the same value for all writers. A function, such as the current time, has one value per write, whatever
the number of rows, tasks and processes: the process that starts the write creates a `StatementContext` for all of them.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import zoneinfo
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import pyarrow as pa

from streamhouse_spark.core.clock import World, system_author
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import scalar_to_ticks
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.ddl import DECIMAL_PRECISION_MAX, parse_type, quote_text, type_name, unquote_text

Constant = str | int | float | bool
"""A constant in records: dates are days, timestamps microseconds, decimals strings, bytes hexadecimal strings."""

TEXT_LENGTH_MAX: Final = 32 << 10
"""Maximum characters of a string constant, which every commit record and Spark plan of the table contains."""

_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - for times without a zone
_QUOTED: Final = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*\""""
_LITERAL: Final = re.compile(
    rf"""
        (?P<number>[+-]?\s*(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)(?P<suffix>bd|[yslfd])?
      | (?P<word>true|false|null)
      | (?:(?P<kind>date|timestamp_ntz|timestamp_ltz|timestamp|x)\s*)?(?P<text>{_QUOTED})
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_CAST: Final = re.compile(r"cast\s*\((?P<literal>.*)\sas\s+(?P<type>[\w\s(),]+)\)", re.IGNORECASE | re.DOTALL)
_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_DOES_NOT_FIT: Final = (pa.ArrowException, ArithmeticError, ValueError, TypeError)


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


def value_to_json(value: Any) -> Any:
    """Convert a value to its JSON in records: decimals, infinities, NaN and bytes become strings."""
    match value:
        case decimal.Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case float() if not math.isfinite(value):
            return repr(value)
        case _:
            return value


def constant_from_json(value: Any, data_type: pa.DataType) -> pa.Scalar:
    """Convert JSON to a scalar of a plain type. Raises an error of Python or Arrow for an invalid value."""
    if pa.types.is_decimal(data_type):
        return pa.scalar(decimal.Decimal(value), data_type)
    if pa.types.is_binary(data_type):
        return pa.scalar(bytes.fromhex(value), data_type)
    if pa.types.is_floating(data_type):
        return pa.scalar(float(value), data_type)
    return pa.scalar(value, data_type)


def constant_to_json(scalar: pa.Scalar, column: str) -> Constant | None:
    """Convert a column default to JSON; null becomes None. Raises `SchemaMismatchError` for an unsupported value."""
    require_scalar_type(scalar.type, column)
    value: Constant | None = value_to_json(scalar_to_ticks(scalar))
    if value is None:
        return None
    if isinstance(value, str) and len(value) > TEXT_LENGTH_MAX:
        raise SchemaMismatchError(
            f"the default of column '{column}' has {len(value)} characters, expected at most {TEXT_LENGTH_MAX}; "
            "use a shorter default, or set the value in each row"
        )
    try:
        constant_to_sql(value, scalar.type)
    except _DOES_NOT_FIT:
        raise SchemaMismatchError(
            f"the default of column '{column}' is outside the years 1 to 9999; write the value in the rows"
        ) from None
    return value


def require_scalar_type(data_type: pa.DataType, column: str) -> None:
    """Raise `SchemaMismatchError` for a type without constants."""
    if pa.types.is_nested(data_type):
        raise SchemaMismatchError(
            f"column '{column}' of type {type_name(data_type)} cannot have a default: nested types have no constants; "
            "leave the default out, and write the value in the rows"
        )


# -- SQL ---------------------------------------------------------------------------------------------------------------


def constant_to_sql(value: Constant, data_type: pa.DataType) -> str:
    """Return the value as a Spark SQL literal, which `parse_constant` can parse."""
    types = pa.types
    scalar = constant_from_json(value, data_type)
    if types.is_floating(data_type):
        text: str = scalar.cast(pa.string()).as_py()
        name = type_name(data_type).upper()
        return f"CAST('{_NOT_FINITE[text]}' AS {name})" if text in _NOT_FINITE else f"{text}{name[0]}"
    python_value = scalar.as_py()
    if types.is_boolean(data_type):
        return "true" if python_value else "false"
    if types.is_decimal(data_type):
        return f"{python_value:f}BD"
    if types.is_string(data_type):
        return quote_text(python_value)
    if types.is_binary(data_type):
        return f"X'{python_value.hex().upper()}'"
    if types.is_date(data_type):
        return f"DATE '{python_value.isoformat()}'"
    if types.is_timestamp(data_type):
        time_text = python_value.replace(tzinfo=None).isoformat(sep=" ")
        return f"TIMESTAMP_NTZ '{time_text}'" if data_type.tz is None else f"TIMESTAMP '{time_text}Z'"
    return str(python_value)


def parse_constant(text: str, data_type: pa.DataType, column: str, time_zone: str | None = None) -> Constant | None:
    """Parse the constant of a ``DEFAULT`` clause for a column of this type; None for NULL.

    A timestamp without a zone is in ``time_zone``, the name of the session's zone in Spark. Raises
    `SchemaMismatchError` for an expression that is not a literal, and for a value that the type does not hold.
    """
    require_scalar_type(data_type, column)
    literal = text.strip()
    while literal.startswith("(") and literal.endswith(")"):
        literal = literal[1:-1].strip()
    is_cast = (cast := _CAST.fullmatch(literal)) is not None and parse_type(cast["type"]).equals(data_type)
    match = _LITERAL.fullmatch(cast["literal"].strip() if cast is not None and is_cast else literal)
    if match is None:
        raise SchemaMismatchError(
            f"column '{column}': DEFAULT {_shorten(text)} is not a constant; expected one literal of the column's "
            "type, such as 5, 1.5, 'text', true, DATE '2026-01-31', TIMESTAMP '2026-01-31 12:00:00Z' or X'1F', or one "
            "of current_timestamp(), current_date() and current_user(). Compute anything else in the query"
        )
    if (match["word"] or "").lower() == "null":
        return None
    try:
        scalar = _scalar(match, data_type, time_zone, is_cast=is_cast)
    except _DOES_NOT_FIT as error:
        reason = str(error).partition("\n")[0]
        raise SchemaMismatchError(
            f"column '{column}' of type {type_name(data_type)} cannot have DEFAULT {_shorten(text)}: {reason}"
        ) from None
    return constant_to_json(scalar, column)


def _scalar(match: re.Match[str], data_type: pa.DataType, time_zone: str | None, *, is_cast: bool) -> pa.Scalar:
    """Convert a parsed literal to a scalar. Raises one of `_DOES_NOT_FIT`."""
    types = pa.types
    if match["number"] is not None:
        return _number("".join(match["number"].split()), (match["suffix"] or "").lower(), data_type)
    if match["word"] is not None:
        is_true = match["word"].lower() == "true"
        return pa.scalar(is_true) if types.is_boolean(data_type) else _wrong_kind("a truth value")
    kind = (match["kind"] or "").lower()
    text = unquote_text(match["text"])
    if types.is_string(data_type) and not kind:
        return pa.scalar(text, data_type)
    if types.is_binary(data_type) and kind == "x":
        return pa.scalar(bytes.fromhex(text), data_type)
    if types.is_date(data_type) and (kind == "date" or is_cast):
        return pa.scalar(dt.date.fromisoformat(text), data_type)
    if types.is_timestamp(data_type) and (kind.startswith("timestamp") or is_cast):
        return _timestamp(text, data_type, time_zone)
    if types.is_floating(data_type) and is_cast:
        return pa.scalar(float(text), data_type)
    return _wrong_kind(f"a {kind.upper()} literal" if kind else "a text")


def _number(text: str, suffix: str, data_type: pa.DataType) -> pa.Scalar:
    types = pa.types
    if types.is_decimal(data_type):
        return pa.scalar(decimal.Decimal(text), data_type)
    if types.is_integer(data_type):
        number = decimal.Decimal(text)
        if number.adjusted() > DECIMAL_PRECISION_MAX:
            raise ValueError("it is too large")
        if number != number.to_integral_value():
            raise ValueError("it is not a whole number")
        return pa.scalar(int(number), data_type)
    if types.is_floating(data_type):
        # 0.1F is the nearest float32, also in a column of doubles
        scalar = pa.scalar(float(text), pa.float32() if suffix == "f" else data_type).cast(data_type)
        if not math.isfinite(scalar.as_py()):
            raise ValueError("it is too large")
        return scalar
    return _wrong_kind("a number")


def _timestamp(text: str, data_type: pa.DataType, time_zone: str | None) -> pa.Scalar:
    moment = dt.datetime.fromisoformat(text.strip())
    if data_type.tz is None:
        if moment.tzinfo is not None:
            raise ValueError("it has a zone, and the column has none; leave the zone out")
    elif moment.tzinfo is not None:
        moment = moment.astimezone(dt.UTC)
    elif time_zone is None:
        raise ValueError("it has no zone, so its meaning depends on the machine; add a zone, as in …Z")
    else:
        moment = moment.replace(tzinfo=_zone(time_zone)).astimezone(dt.UTC)
    return pa.scalar((moment.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1), pa.int64()).cast(data_type)


def _zone(name: str) -> dt.tzinfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"it has no zone, and the session's zone {name} is unknown; add a zone, as in …Z") from None


def _wrong_kind(description: str) -> NoReturn:
    raise ValueError(f"it is {description}")


def _shorten(text: str) -> str:
    return text if len(text) <= 100 else text[:99] + "…"


@dataclass(frozen=True, slots=True)
class StatementContext:
    """The time and the user of one write."""

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
    """A column default that is a function, evaluated once per write."""

    name: str

    @property
    def sql(self) -> str:
        return f"{self.name}()"

    def to_json(self) -> dict[str, str]:
        """Return the JSON in commit records. Versions of this package that support only constants reject it."""
        return {"function": self.name}

    def value(self, context: StatementContext) -> Constant:
        """Return the value in a write, as a `Constant`. Days are in UTC."""
        match self.name:
            case "current_timestamp":
                return context.ms * 1000
            case "current_date":
                return context.ms // _DAY_MS
            case _:
                return context.user


Default = Constant | DefaultFunction


def parse_default(text: str, data_type: pa.DataType, column: str, time_zone: str | None = None) -> Default | None:
    """Parse the expression of a ``DEFAULT`` clause: a function of this module, or a constant as in `parse_constant`.

    Raises `SchemaMismatchError` for anything else, and for a function whose type differs from the column's.
    """
    require_scalar_type(data_type, column)
    inner = text.strip()
    while inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1].strip()
    call = _CALL.fullmatch(inner)
    name = _SYNONYMS.get(call["name"].lower()) if call is not None else None
    if name is None:
        return parse_constant(text, data_type, column, time_zone)
    _require_type(name, data_type, column)
    return DefaultFunction(name)


def default_from_json(value: Any, data_type: pa.DataType, column: str) -> Default | None:
    """Parse a default from a record. Raises `SchemaMismatchError` for an unknown function."""
    if not isinstance(value, Mapping):
        return value  # type: ignore[no-any-return]
    name = value.get("function")
    if name not in _TYPES:
        raise SchemaMismatchError(
            f"column '{column}' has the default {dict(value)!r}, which this version of the package does not support; "
            "install the version that wrote it, or a later version"
        )
    _require_type(name, data_type, column)
    return DefaultFunction(name)


def _require_type(name: str, data_type: pa.DataType, column: str) -> None:
    if not data_type.equals(_TYPES[name]):
        raise SchemaMismatchError(
            f"column '{column}' of type {type_name(data_type)} cannot have DEFAULT {name}(), which is a "
            f"{type_name(_TYPES[name])}; give the column this type, or compute the value in the query"
        )
