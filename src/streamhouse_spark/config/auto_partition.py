"""``table.auto-partition.*``: expiry of partitions whose rows need not remain in the hot log. Pure.

A partition is *expired* if the hour, day, month, quarter or year in its column is more than ``num-retention`` units
before now, in one time zone. A value without a time unit, including null, never expires. Expiry affects log retention
only: rows of expired partitions are read, written and tiered like all others.
"""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, cast, get_args

import pyarrow as pa

from streamhouse_spark.core import option_parsing as values
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.table_schema import TableSchema

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
