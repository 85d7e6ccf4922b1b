"""Partitioning: partition fields, partition evolution, and expiry of partitions.

A partition field is a column, or a transform of a column ("hidden partitioning") such as ``days(ts)``. Timestamps are
in UTC. Source: Iceberg table specification, "Partition Transforms".

A change of the partitioning creates a new schema id with the same columns. The schema id of a segment therefore
determines its partition columns, and a plan with an outdated partitioning is recognised by its schema id.

With ``table.auto-partition.*``, a partition expires if the hour, day, month, quarter or year in its column is more than
``num-retention`` units before the current unit. A value without such a unit, including null, never expires. Expiry
affects log retention only: rows of expired partitions are read, written and tiered like all other rows.
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

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import join_names, parse_bool, parse_int, parse_names, reject
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.table_schema import TableSchema

Transform = Literal["identity", "years", "months", "days", "hours", "truncate"]
PARTITION_FIELDS: Final = "partition.fields"

_UNITS: Final[Mapping[str, str]] = {"years": "Y", "months": "M", "days": "D", "hours": "h"}
"""Time transform → numpy unit."""
_HOUR_MICROS: Final = 3_600_000_000
_INT32: Final = (-(1 << 31), (1 << 31) - 1)
_SINGULAR: Final = {"year": "years", "month": "months", "day": "days", "hour": "hours", "date": "days"}
_SHORT: Final = {"years": "year", "months": "month", "days": "day", "hours": "hour", "truncate": "trunc"}
_CALL: Final = re.compile(r"\s*([A-Za-z_]+)\s*\(\s*(.*?)\s*\)\s*", re.DOTALL)
_FIELDS: Final = re.compile(r"\s*((?:`(?:[^`]|``)*`|\((?:`(?:[^`]|``)*`|[^()`])*\)|[^,`()])+)\s*(?:,|\Z)")
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
class PartitionField:
    """A partition field: a column and a transform."""

    column: str
    transform: Transform = "identity"
    width: int = 0
    """Width of ``truncate`` in characters, bytes or integers; 0 for other transforms."""

    def __str__(self) -> str:
        """Return the text of the field in ``PARTITIONED BY``, which `parse_field` can parse."""
        column = join_names([self.column])
        if self.transform == "identity":
            return column
        return f"{self.transform}({f'{self.width}, ' if self.width else ''}{column})"

    @property
    def suffix(self) -> str:
        """Iceberg's suffix for names of partition values, as in ``ts_day``; empty for a plain column."""
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
                raise _unsupported_type_error(self, column_type, "strings, binary, or integers")
        elif self.transform == "hours" and not pa.types.is_timestamp(column_type):
            raise _unsupported_type_error(self, column_type, "a timestamp")
        elif not temporal:
            raise _unsupported_type_error(self, column_type, "a date or a timestamp")

    def values(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return the partition value of each row; null for null.

        Years, months, days and hours since 1970 are int32, rounded down. ``truncate`` retains the column's type, except
        for shorter integers, which become int32.
        """
        if self.transform == "identity":
            return column
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([self.values(chunk) for chunk in column.chunks], type=self.value_type(column.type))
        if self.transform == "truncate":
            return self._truncate(column)
        return _mask_nulls(_units_since_1970(column, _UNITS[self.transform]).astype(np.int32), column, pa.int32())

    def value_type(self, column_type: pa.DataType) -> pa.DataType:
        """Return the type of `values` for a column of this type."""
        is_short = self.transform == "truncate" and pa.types.is_integer(column_type) and column_type.bit_width < 64
        return pa.int32() if is_short or self.transform in _UNITS else column_type

    def range_of(self, value: int, column_type: pa.DataType) -> tuple[int, int] | None:
        """Return the half-open range of days or microseconds that a time transform maps to this partition value.

        Returns None for other transforms, and for a range that the type does not hold.
        """
        # The smallest and the largest number of hours also contain all clipped times.
        if self.transform not in _UNITS or not _INT32[0] < value < _INT32[1]:
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
        # The result wraps around below the smallest integer, as in Iceberg's Java library.
        return _mask_nulls((values - np.mod(values, self.width)).astype(kind.to_pandas_dtype()), column, kind)


def _unsupported_type_error(field: PartitionField, column_type: pa.DataType, expected: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"PARTITIONED BY {field}: column '{field.column}' has type {type_name(column_type)}, expected {expected}"
    )


def _units_since_1970(column: pa.Array, unit: str) -> npt.NDArray[np.int64]:
    """Return whole units since 1970, rounded down; 0 for null. Hours are clipped to 32 bits, as in the lake."""
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
    """Join fields to a text that `split_fields` and `parse_field` can parse."""
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
            f"PARTITIONED BY {text}: unknown transform {call[1]!r}, expected a column, years, months, days or hours of "
            "a column, truncate(width, column), or at most one bucket(n, column)"
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
    """Parse fields as `parse_field` does. Also raises `InvalidOptionError` for two fields of one column."""
    fields = tuple(parse_field(text, schema) for text in texts)
    columns = [field.column for field in fields]
    for field in fields:
        if columns.count(field.column) > 1 and any(other.transform != "identity" for other in fields):
            raise InvalidOptionError(
                f"PARTITIONED BY {join_fields(fields)}: column '{field.column}' occurs twice; keep the finest "
                "transform, which includes the others"
            )
    return fields


@dataclass(frozen=True, slots=True)
class FormerPartitioning:
    """A replaced partitioning of a table."""

    schema_id: int
    """Id of the last schema with this partitioning."""
    columns: tuple[str, ...]
    """The partition columns."""
    fields: str
    """All partition fields, joined by `join_fields`, with the column names of that schema."""

    def parsed(self, schemas: Mapping[int, TableSchema]) -> tuple[PartitionField, ...]:
        """Parse all partition fields."""
        return parse_fields(split_fields(self.fields), schemas[self.schema_id])

    def to_json(self) -> list[Any]:
        return [self.schema_id, list(self.columns), self.fields]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> FormerPartitioning:
        schema_id, columns, fields = data
        return cls(schema_id, tuple(columns), fields)


@dataclass(frozen=True, slots=True)
class SetPartitioning:
    """Change the partition fields of new rows. Older versions of this package reject the action."""

    schema_id: int
    """Id of the new schema, which has the same columns."""
    columns: tuple[str, ...]
    """The partition columns."""
    fields: str
    """All partition fields if a field has a transform, else empty."""

    def to_json(self) -> dict[str, Any]:
        columns = list(self.columns)
        return {"type": "partitioning", "schema_id": self.schema_id, "columns": columns, "fields": self.fields}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SetPartitioning:
        return cls(data["schema_id"], tuple(data["columns"]), data["fields"])

    def changes(
        self, schemas: Mapping[int, TableSchema], schema: TableSchema, properties: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the fields of a `TableState` that the action changes, with their new values."""
        other_properties = {name: text for name, text in properties.items() if name != PARTITION_FIELDS}
        return {
            "schema_id": self.schema_id,
            "schemas": {**schemas, self.schema_id: schema},
            "partition_by": self.columns,
            "properties": {**other_properties, PARTITION_FIELDS: self.fields} if self.fields else other_properties,
        }


def former_partitioning(schema_id: int, columns: tuple[str, ...], properties: Mapping[str, str]) -> FormerPartitioning:
    """Return the current partitioning of a table, which a new partitioning replaces."""
    fields = properties.get(PARTITION_FIELDS) or join_fields(PartitionField(name) for name in columns)
    return FormerPartitioning(schema_id, columns, fields)


def partition_columns_at(
    former_partitionings: Sequence[FormerPartitioning], current_columns: tuple[str, ...], schema_id: int
) -> tuple[str, ...]:
    """Return the partition columns of segments with this schema id. The oldest partitioning comes first."""
    return next((spec.columns for spec in former_partitionings if schema_id <= spec.schema_id), current_columns)


@dataclass(frozen=True, slots=True)
class AutoPartition:
    """The rule by which the partitions of a table expire."""

    column: str
    """The partition column that contains the time."""
    place: int
    """Index of the column among the partition columns."""
    unit: TimeUnit
    num_retention: int
    """Number of units retained before the current unit. Later units are retained, too."""
    time_zone: str

    def first_retained(self, now_ms: int) -> int:
        """Return the `period_at` number of the oldest unit that is not expired at ``now_ms``."""
        return period_at(now_ms, self.unit, self.time_zone) - self.num_retention

    def all_expired(self, partitions: Sequence[Sequence[Any]] | None, now_ms: int) -> bool:
        """Return whether all partitions are expired, given their partition values; None means unknown partitions."""
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
    """Return the `period_at` number of a partition value; None if the value contains no such unit.

    The value is days since 1970, or a string in one of the unit's `_FORMATS`.
    """
    if isinstance(value, int):  # a DATE
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
    """Parse the properties ``table.auto-partition.*``; None if partitions do not expire.

    Raises `InvalidOptionError` for an invalid value. If expiry is enabled, it also raises the error for a column that
    contains no time, and for a table without a lake, which would lose its rows.
    """
    is_enabled = parse_bool(ENABLED, properties.get(ENABLED, "false"))
    unit = _unit(properties.get(TIME_UNIT, "DAY"))
    num_retention = parse_int(NUM_RETENTION, properties.get(NUM_RETENTION, str(RETAINED)), minimum=0)
    time_zone = _require_time_zone(properties.get(TIME_ZONE, "UTC"))
    if parse_int(NUM_PRECREATE, properties.get(NUM_PRECREATE, "0"), minimum=0):
        reject(NUM_PRECREATE, properties[NUM_PRECREATE], "0, because partitions are created with their first row")
    if not is_enabled:
        return None
    if not partition_by:
        raise InvalidOptionError(
            f"{ENABLED} is true and the table has no partition columns; partition the table by time, or leave the "
            "property out"
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
        reject(TIME_UNIT, text, "HOUR, DAY, MONTH, QUARTER or YEAR")
    return cast("TimeUnit", unit)


def _require_time_zone(text: str) -> str:
    name = text.strip()
    try:
        _zone(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        reject(TIME_ZONE, text, "a name of the time zone database, such as UTC or Europe/Berlin")
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
                f"{ENABLED} is true and the table has several partition columns ({columns}); set {KEY} to the column "
                "with the time"
            )
        return partition_by[0]
    column = schema.find(key.strip())
    if column is None or column.name not in partition_by:
        reject(KEY, key, f"a partition column, one of {columns}")
    return column.name


def _check_type(column: str, arrow: pa.DataType, unit: TimeUnit) -> None:
    if pa.types.is_date32(arrow):
        if unit != "DAY":
            raise InvalidOptionError(
                f"{TIME_UNIT} is {unit} and partition column '{column}' is a DATE, expected DAY; use DAY, or a STRING "
                "column"
            )
    elif not pa.types.is_string(arrow):
        raise InvalidOptionError(
            f"{ENABLED} is true and partition column '{column}' has type {type_name(arrow)}, expected a DATE, or a "
            "STRING such as yyyyMMdd"
        )
