"""Partition fields: a column, or a transform of a column, as in Iceberg's specification.

A transform derives the partition of a row from one of its columns ("hidden partitioning"): ``days(ts)``, ``truncate(4,
name)``. Timestamps are in UTC. Source: Iceberg table specification, "Partition Transforms".

``table.auto-partition.*``: expiry of partitions whose rows need not remain in the hot log. Pure.

A partition is *expired* if the hour, day, month, quarter or year in its column is more than ``num-retention`` units
before now, in one time zone. A value without a time unit, including null, never expires. Expiry affects log retention
only: rows of expired partitions are read, written and tiered like all others.
"""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core import option_parsing as values
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import join_names, parse_names
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.table_schema import TableSchema

Transform = Literal["identity", "years", "months", "days", "hours", "truncate"]

_UNITS: Final[Mapping[str, str]] = {"years": "Y", "months": "M", "days": "D", "hours": "h"}
"""Time transform → numpy unit."""
_HOUR_MICROS: Final = 3_600_000_000
_INT32: Final = (-(1 << 31), (1 << 31) - 1)
_SINGULAR: Final = {"year": "years", "month": "months", "day": "days", "hour": "hours", "date": "days"}
_SHORT: Final = {"years": "year", "months": "month", "days": "day", "hours": "hour", "truncate": "trunc"}
_CALL: Final = re.compile(r"\s*([A-Za-z_]+)\s*\(\s*(.*?)\s*\)\s*", re.DOTALL)
_FIELDS: Final = re.compile(r"\s*((?:`(?:[^`]|``)*`|\((?:`(?:[^`]|``)*`|[^()`])*\)|[^,`()])+)\s*(?:,|\Z)")


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a table's partitioning."""

    column: str
    transform: Transform = "identity"
    width: int = 0
    """Characters, bytes, or integer step of ``truncate``; else 0."""

    def __str__(self) -> str:
        """Return the field as in ``PARTITIONED BY``, which `parse_field` can parse."""
        column = join_names([self.column])
        if self.transform == "identity":
            return column
        return f"{self.transform}({f'{self.width}, ' if self.width else ''}{column})"

    @property
    def suffix(self) -> str:
        """Iceberg's name suffix for this transform, as in ``ts_day``; empty for a plain column."""
        return _SHORT.get(self.transform, "")

    @property
    def name(self) -> str:
        """The name of the partition value."""
        return f"{self.column}_{self.suffix}" if self.suffix else self.column

    def check(self, column_type: pa.DataType) -> None:
        """Raise `InvalidOptionError` if a column of this type does not support the transform."""
        temporal = pa.types.is_date32(column_type) or pa.types.is_timestamp(column_type)
        if self.transform == "identity":
            return
        if self.transform == "truncate":
            is_integer = pa.types.is_integer(column_type)
            if not (is_integer or pa.types.is_string(column_type) or pa.types.is_binary(column_type)):
                raise _unsupported_type_error(self, column_type, "text, binary, or integers")
        elif self.transform == "hours" and not pa.types.is_timestamp(column_type):
            raise _unsupported_type_error(self, column_type, "a timestamp")
        elif not temporal:
            raise _unsupported_type_error(self, column_type, "a date or a timestamp")

    def values(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return the partition value of each row; null for null.

        Years, months, days and hours are int32 since 1970, rounded down. ``truncate`` keeps the type, but widens
        shorter integers to int32.
        """
        if self.transform == "identity":
            return column
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([self.values(chunk) for chunk in column.chunks], type=self.value_type(column.type))
        if self.transform == "truncate":
            return self._truncate(column)
        return _mask_nulls(_since_1970(column, _UNITS[self.transform]).astype(np.int32), column, pa.int32())

    def value_type(self, column_type: pa.DataType) -> pa.DataType:
        """Return the type of `values` for a column of this type."""
        is_short = self.transform == "truncate" and pa.types.is_integer(column_type) and column_type.bit_width < 64
        return pa.int32() if is_short or self.transform in _UNITS else column_type

    def range_of(self, value: int, column_type: pa.DataType) -> tuple[int, int] | None:
        """Return the half-open range of days or microseconds with this partition value of a time transform.

        None for other transforms, and for values outside the range of the type.
        """
        if (
            self.transform not in _UNITS or not _INT32[0] < value < _INT32[1]
        ):  # the last hours also hold all clipped times
            return None
        unit = "D" if pa.types.is_date32(column_type) else "us"
        ends = np.array([value, value + 1], dtype=f"datetime64[{_UNITS[self.transform]}]")
        if unit == "us" and int(np.abs(ends.astype("datetime64[D]").astype(np.int64)).max()) > 100_000_000:
            return None
        start, end = ends.astype(f"datetime64[{unit}]").astype(np.int64).tolist()
        return start, end

    def _truncate(self, column: pa.Array) -> pa.Array:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return pc.utf8_slice_codeunits(column, 0, self.width)
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            return pc.binary_slice(column, 0, self.width)
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        kind = self.value_type(column.type)
        # Below the smallest integer it wraps around, as in Iceberg's own library.
        return _mask_nulls((values - np.mod(values, self.width)).astype(kind.to_pandas_dtype()), column, kind)


def _unsupported_type_error(field: PartitionField, column_type: pa.DataType, expected: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"PARTITIONED BY {field}: column '{field.column}' has type {type_name(column_type)}, expected {expected}"
    )


def _since_1970(column: pa.Array, unit: str) -> npt.NDArray[np.int64]:
    """Return whole units since 1970, rounded down; 0 for null. Hours are clipped to the lake's 32 bits."""
    is_date = pa.types.is_date32(column.type)
    raw = column.view(pa.int32()) if is_date else column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    values = pc.fill_null(raw, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if unit == "h":
        hours: npt.NDArray[np.int64] = np.clip(values // _HOUR_MICROS, *_INT32)
        return hours
    days = values if is_date else values // (24 * _HOUR_MICROS)
    cut: npt.NDArray[np.int64] = days.view("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64)
    return cut


def _mask_nulls(values: npt.NDArray[Any], column: pa.Array, kind: pa.DataType) -> pa.Array:
    mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(values, kind, mask=mask)


# -- texts ------------------------------------------------------------------------------------------------------------


def split_fields(text: str) -> list[str]:
    """Split the text of several fields at commas outside parentheses and backticks."""
    pieces = _FIELDS.findall(text) if text.strip() else []
    return [piece.strip() for piece in pieces]


def join_fields(fields: Iterable[PartitionField]) -> str:
    """Return the text that `split_fields` and `parse_field` can parse."""
    return ", ".join(map(str, fields))


def parse_field(text: str, schema: TableSchema) -> PartitionField:
    """Parse a column name, ``days(ts)`` or ``truncate(4, name)``, with the column in the schema's spelling.

    A column with exactly this name takes precedence. Raises `SchemaMismatchError` for an unknown column, and
    `InvalidOptionError` for an unknown transform and for an unsupported column type.
    """
    source = schema.find(text)
    call = _CALL.fullmatch(text)
    if source is not None or call is None:
        name = text if source is not None else _one_name(text, text)
        return PartitionField(schema.column(name).name)
    transform, arguments = _SINGULAR.get(call[1].lower(), call[1].lower()), call[2]
    if transform not in get_args(Transform):
        raise InvalidOptionError(
            f"PARTITIONED BY {text}: unknown transform {call[1]!r}; a table is partitioned by columns, by years, "
            "months, days or hours of a column, by truncate(width, column), and by one bucket(n, column)"
        )
    width = 0
    if transform == "truncate":
        number = re.fullmatch(r"([0-9]{1,9})\s*,\s*(.+)", arguments, re.DOTALL)
        if number is None or not int(number[1]):
            raise InvalidOptionError(f"PARTITIONED BY {text}: expected a width above 0 and a column: truncate(4, name)")
        width, arguments = int(number[1]), number[2]
    column = schema.column(_one_name(arguments, text))
    field = PartitionField(column.name, cast("Transform", transform), width)
    field.check(column.type)
    return field


def _one_name(text: str, text_of_field: str) -> str:
    names = parse_names(text)
    if len(names) != 1:
        raise InvalidOptionError(f"PARTITIONED BY {text_of_field}: found {len(names)} columns, expected one")
    return names[0]


def parse_fields(texts: Sequence[str], schema: TableSchema) -> tuple[PartitionField, ...]:
    """Parse fields as `parse_field` does. Raises `InvalidOptionError` also for two fields of one column."""
    fields = tuple(parse_field(text, schema) for text in texts)
    columns = [field.column for field in fields]
    for field in fields:
        if columns.count(field.column) > 1 and any(other.transform != "identity" for other in fields):
            raise InvalidOptionError(
                f"PARTITIONED BY {join_fields(fields)}: column '{field.column}' occurs twice; the finest transform "
                "includes the others, so name it once"
            )
    return fields


TimeUnit = Literal["HOUR", "DAY", "MONTH", "QUARTER", "YEAR"]

ENABLED: Final = "table.auto-partition.enabled"
KEY: Final = "table.auto-partition.key"
TIME_UNIT: Final = "table.auto-partition.time-unit"
NUM_RETENTION: Final = "table.auto-partition.num-retention"
NUM_PRECREATE: Final = "table.auto-partition.num-precreate"
TIME_ZONE: Final = "table.auto-partition.time-zone"
AUTO_PARTITION_PROPERTIES: Final = (ENABLED, KEY, TIME_UNIT, NUM_RETENTION, NUM_PRECREATE, TIME_ZONE)

RETAINED: Final = 7
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_FORMATS: Final[Mapping[TimeUnit, tuple[str, ...]]] = {
    "HOUR": (r"(?P<year>[0-9]{4})(?P<month>[0-9]{2})(?P<day>[0-9]{2})(?P<hour>[0-9]{2})",),
    "DAY": (
        r"(?P<year>[0-9]{4})(?P<month>[0-9]{2})(?P<day>[0-9]{2})",
        r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})",
    ),
    "MONTH": (r"(?P<year>[0-9]{4})(?P<month>[0-9]{2})",),
    "QUARTER": (r"(?P<year>[0-9]{4})(?P<quarter>[1-4])",),
    "YEAR": (r"(?P<year>[0-9]{4})",),
}


@dataclass(frozen=True, slots=True)
class AutoPartition:
    """The rule by which a table's partitions expire."""

    column: str
    """The partition column with the time."""
    place: int
    """Index of the column among the partition columns."""
    unit: TimeUnit
    num_retention: int
    """Number of units retained before the current one. Later units are retained, too."""
    time_zone: str

    def first_retained(self, now_ms: int) -> int:
        """Return the oldest unit, as by `period_at`, that is not expired at ``now_ms``."""
        return period_at(now_ms, self.unit, self.time_zone) - self.num_retention

    def all_expired(self, partitions: Sequence[Sequence[Any]] | None, now_ms: int) -> bool:
        """Return whether all these partitions are expired, given their recorded values; None if unknown."""
        if not partitions:
            return False
        first_retained = self.first_retained(now_ms)
        periods = (period_of(partition[self.place], self.unit) for partition in partitions)
        return all(period is not None and period < first_retained for period in periods)


def period_at(time_ms: int, unit: TimeUnit, time_zone: str) -> int:
    """Return the number of the unit that contains ``time_ms`` in ``time_zone``. Later units have larger numbers."""
    utc = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=time_ms)
    local = utc.astimezone(_zone(time_zone))
    return _number(unit, local.date(), local.hour)


def period_of(value: Any, unit: TimeUnit) -> int | None:
    """Return the number of the unit in a partition value: days since 1970, or a text in the unit's format.

    None if the value contains no unit.
    """
    if isinstance(value, int):  # a DATE; other types have texts here
        return value + _EPOCH_DAY
    if not isinstance(value, str):
        return None
    match = next(filter(None, (re.fullmatch(pattern, value) for pattern in _FORMATS[unit])), None)
    if match is None:
        return None
    part = {name: int(text) for name, text in match.groupdict().items()}
    month = part.get("month", 3 * part.get("quarter", 1) - 2)
    try:
        day, hour = dt.date(part["year"], month, part.get("day", 1)), dt.time(part.get("hour", 0)).hour
    except ValueError:
        return None
    return _number(unit, day, hour)


def _number(unit: TimeUnit, day: dt.date, hour: int) -> int:
    match unit:
        case "HOUR":
            return day.toordinal() * 24 + hour
        case "DAY":
            return day.toordinal()
        case "MONTH":
            return day.year * 12 + day.month - 1
        case "QUARTER":
            return day.year * 4 + (day.month - 1) // 3
        case "YEAR":
            return day.year


def parse_auto_partition(
    properties: Mapping[str, str], schema: TableSchema, partition_by: Sequence[str], *, lake_enabled: bool
) -> AutoPartition | None:
    """Parse the properties; None for a table whose partitions do not expire.

    Raises `InvalidOptionError` for an invalid value and, if enabled, for a column without the time of a partition, and
    for a table without a lake, which would lose its rows.
    """
    is_enabled = values.parse_bool(ENABLED, properties.get(ENABLED, "false"))
    unit = _unit(properties.get(TIME_UNIT, "DAY"))
    num_retention = values.parse_int(NUM_RETENTION, properties.get(NUM_RETENTION, str(RETAINED)), minimum=0)
    time_zone = _require_time_zone(properties.get(TIME_ZONE, "UTC"))
    if values.parse_int(NUM_PRECREATE, properties.get(NUM_PRECREATE, "0"), minimum=0):
        values.reject(NUM_PRECREATE, properties[NUM_PRECREATE], "0: a partition exists with its first row, none waits")
    if not is_enabled:
        return None
    if not partition_by:
        raise InvalidOptionError(
            f"{ENABLED} is true and the table has no partition columns; partition it by time, or leave the property out"
        )
    if not lake_enabled:
        raise InvalidOptionError(
            f"{ENABLED} is true and table.datalake.enabled is false: the rows of an expired partition would be lost "
            "with the hot log; set table.datalake.enabled to true, or use table.log.ttl"
        )
    column = _key_column(properties.get(KEY), schema, partition_by)
    _check_type(column, schema.column(column).type, unit)
    return AutoPartition(column, list(partition_by).index(column), unit, num_retention, time_zone)


def _unit(text: str) -> TimeUnit:
    unit = text.strip().upper()
    if unit not in get_args(TimeUnit):
        values.reject(TIME_UNIT, text, "HOUR, DAY, MONTH, QUARTER or YEAR")
    return cast("TimeUnit", unit)


def _require_time_zone(text: str) -> str:
    name = text.strip()
    try:
        _zone(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        values.reject(TIME_ZONE, text, "a name of the time zone database, such as UTC or Europe/Berlin")
    return name


@lru_cache(maxsize=64)
def _zone(name: str) -> dt.tzinfo:
    return dt.UTC if name == "UTC" else zoneinfo.ZoneInfo(name)


def _key_column(key: str | None, schema: TableSchema, partition_by: Sequence[str]) -> str:
    """Return the partition column with the time. Raises `InvalidOptionError`."""
    columns = ", ".join(partition_by)
    if key is None:
        if len(partition_by) > 1:
            raise InvalidOptionError(
                f"{ENABLED} is true and the table has several partition columns ({columns}); {KEY} must name the one "
                "with the time"
            )
        return partition_by[0]
    column = schema.find(key.strip())
    if column is None or column.name not in partition_by:
        values.reject(KEY, key, f"a partition column, one of {columns}")
    return column.name


def _check_type(column: str, arrow: pa.DataType, unit: TimeUnit) -> None:
    if pa.types.is_date32(arrow):
        if unit != "DAY":
            raise InvalidOptionError(
                f"{TIME_UNIT} is {unit} and partition column '{column}' is a DATE, which names a day; use DAY, or a "
                "STRING column"
            )
    elif not pa.types.is_string(arrow):
        raise InvalidOptionError(
            f"{ENABLED} is true and partition column '{column}' has type {type_name(arrow)}, which does not say when a "
            "partition was; use a DATE, or a STRING such as yyyyMMdd"
        )
