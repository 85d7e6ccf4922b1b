"""The properties of a Paimon table that a task needs to write its files, and Paimon's binary form of single values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pypaimon.common.json_util import JSON
from pypaimon.schema.data_types import DataField
from pypaimon.schema.table_schema import TableSchema as PaimonSchema
from pypaimon.table.row.generic_row import GenericRow, GenericRowDeserializer, GenericRowSerializer
from pypaimon.utils.file_store_path_factory import canonical_data_file_path

from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import to_python
from streamhouse_spark.errors import LakeMismatchError
from streamhouse_spark.lake.paimon.schema import UNAWARE_BUCKETS, file_schema
from streamhouse_spark.lake.paimon.table_binding import store_of
from streamhouse_spark.lake.parquet.file_writer import PartitionKey, writer_options

PATH_PART_BYTES_MAX = 200
TEXT_STATISTICS_CHARS_MAX = 16
"""Longer texts are truncated in statistics, as is Paimon's default."""


@dataclass(frozen=True)
class PaimonFileSpec:
    """The properties of the Paimon table that a task needs, sent as JSON. All files of a round share them."""

    schema: PaimonSchema
    data_location: str
    """Location of the table, which contains its data files."""
    planned_ms: int = 0
    """Time of the store at which the round was planned."""
    planned_on: str | None = None
    """The manifest list of the snapshot that the round was planned on, whose name is unique."""
    sequence_offset_gaps: Mapping[int, int] = field(default_factory=dict)
    """Gaps of a primary-key table; see `streamhouse_spark.lake.paimon.merge_tree.sequence_offset_gaps`."""

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "paimon",
            "schema": JSON.to_json(self.schema),
            "data_location": self.data_location,
            "planned_ms": self.planned_ms,
            "planned_on": self.planned_on,
            "sequence_offset_gaps": {str(bucket): gap for bucket, gap in self.sequence_offset_gaps.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            PaimonSchema.from_json(value["schema"]),
            value["data_location"],
            value["planned_ms"],
            value["planned_on"],
            {int(bucket): gap for bucket, gap in value["sequence_offset_gaps"].items()},
        )

    @cached_property
    def file_schema(self) -> pa.Schema:
        return file_schema(self.schema)

    @cached_property
    def partition_fields(self) -> list[DataField]:
        by_name = {field.name: field for field in self.schema.fields}
        return [by_name[name] for name in self.schema.partition_keys]

    @cached_property
    def partition_parts(self) -> Sequence[_Part]:
        return [_Part(field) for field in self.partition_fields]

    @property
    def schema_id(self) -> int:
        return int(self.schema.id)

    @property
    def spec_id(self) -> int:
        return 0

    @property
    def file_prefix(self) -> str:
        return "data-"

    @property
    def writer_options(self) -> Mapping[str, Any]:
        return writer_options()

    @property
    def num_buckets(self) -> int:
        """`UNAWARE_BUCKETS` for a table without a bucket key."""
        return int(self.schema.options["bucket"])

    def bucket_of(self, bucket: int) -> int:
        """Return Paimon's bucket for a bucket of the log."""
        return 0 if self.num_buckets == UNAWARE_BUCKETS else bucket

    def directory(self, key: PartitionKey, bucket: int) -> str:
        """Return Paimon's own folder, or a shorter name if a value exceeds the length of folder names."""
        inside = self.canonical_location(key, bucket, "").removeprefix(self.data_location).strip("/")
        return "/".join([self.data_location, *(_shorten(part) for part in inside.split("/"))])

    def canonical_location(self, key: PartitionKey, bucket: int, name: str) -> str:
        """Return the location where readers expect a file whose manifest entry has no path."""
        values = tuple(row.values[0] for row in self.partition(key))
        path: str = canonical_data_file_path(self._store, values, self.bucket_of(bucket), name)
        return path

    def partition(self, key: PartitionKey) -> list[GenericRow]:
        """Return each value of a partition as a separate row."""
        return [
            GenericRow([decode_field(value, field)], [field])
            for value, field in zip(key, self.partition_fields, strict=True)
        ]

    def statistics(self, footer: pq.FileMetaData) -> Mapping[str, Mapping[int, Any]]:
        """Return bounds and null counts of the columns that have them in all row groups, if Paimon's readers support
        them.

        Excludes floating-point columns, because their bounds do not cover NaN.
        """
        statistics: dict[str, dict[int, Any]] = {"null_counts": {}, "lower_bounds": {}, "upper_bounds": {}}
        by_name = {field.name: field for field in self.schema.fields}
        for index in range(footer.num_columns):
            described = footer.schema.column(index)
            field = by_name.get(described.path) if described.path == described.name else None  # None for nested fields
            bounds = _bounds(footer, index, field) if field is not None else None
            if field is None or bounds is None:
                continue
            low, high, null_count = bounds
            statistics["null_counts"][field.id] = null_count
            statistics["lower_bounds"][field.id] = encode_field(low, field)
            statistics["upper_bounds"][field.id] = encode_field(high, field)
        return statistics

    @cached_property
    def _store(self) -> Any:
        return store_of(self.schema, self.data_location, None)


@dataclass(frozen=True, slots=True)
class _Part:
    """The `PartitionPart` of Paimon."""

    field: DataField

    @property
    def source(self) -> str:
        return str(self.field.name)

    @property
    def is_bucket(self) -> bool:
        return False

    def derived(self, column: pa.Array) -> pa.Array:
        return column

    def encoded(self, value: pa.Scalar) -> bytes | None:
        return encoded_scalar(value, self.field, "partition")


def encoded_scalar(value: pa.Scalar, field: DataField, role: str) -> bytes | None:
    """Encode a key or partition value as a Paimon binary row. Returns None for null.

    Raises `LakeMismatchError` for a date or time that Paimon's Python library does not support. Tables of older
    versions of this package may contain such values.
    """
    try:
        return encode_field(value.as_py(), field)
    except (OverflowError, ValueError) as error:
        raise LakeMismatchError(
            f"column '{field.name}' of the {role} has the value {to_python(value)}, but Paimon's Python library "
            "supports only the years 1 to 9999; delete the rows with it (write them into a table with an Iceberg lake "
            "first, if you need them), and the next round continues"
        ) from error


def encode_field(value: Any, field: DataField) -> bytes | None:
    """Return Paimon's binary row of one field, or None for null."""
    if value is None:
        return None
    data: bytes = GenericRowSerializer.to_bytes(GenericRow([value], [field]))
    return data


def decode_field(data: bytes | None, field: DataField) -> Any:
    return None if data is None else GenericRowDeserializer.from_bytes(data, [field]).values[0]


def _shorten(part: str) -> str:
    return part.encode()[:PATH_PART_BYTES_MAX].decode(errors="ignore")


def _bounds(footer: pq.FileMetaData, index: int, field: DataField) -> tuple[Any, Any, int] | None:
    """Return minimum, maximum and number of nulls of a column, or None if one of them is unknown."""
    if not str(field.type).startswith(("TINYINT", "SMALLINT", "INT", "BIGINT", "DATE", "TIMESTAMP", "STRING")):
        return None
    lows, highs, null_count = [], [], 0
    for group in range(footer.num_row_groups):
        column = footer.row_group(group).column(index)
        statistics = column.statistics
        if statistics is None or not statistics.has_null_count:
            return None
        null_count += statistics.null_count
        if statistics.null_count == column.num_values:
            continue
        if not statistics.has_min_max:
            return None
        try:
            lows.append(statistics.min)
            highs.append(statistics.max)
        except (OverflowError, ValueError):  # before the year 1 or after 9999
            return None
    if not lows:
        return None, None, null_count
    low, high = min(lows), max(highs)
    if not isinstance(high, str):
        return low, high, null_count
    upper = _upper_text_bound(high)
    return None if upper is None else (low[:TEXT_STATISTICS_CHARS_MAX], upper, null_count)


def _upper_text_bound(text: str) -> str | None:
    """Return a short text that is not below this one, or None if there is none."""
    if len(text) <= TEXT_STATISTICS_CHARS_MAX:
        return text
    prefix = text[:TEXT_STATISTICS_CHARS_MAX]
    while prefix:
        following = ord(prefix[-1]) + 1
        if following == 0xD800:  # surrogates are not characters
            following = 0xE000
        if following <= 0x10FFFF:
            return prefix[:-1] + chr(following)
        prefix = prefix[:-1]
    return None
