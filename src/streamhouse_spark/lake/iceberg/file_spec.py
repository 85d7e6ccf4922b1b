"""The properties of the Iceberg table that a task needs to write its data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DateType, PrimitiveType, TimestampType, TimestamptzType

from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import scalar_to_ticks
from streamhouse_spark.errors import LakeMismatchError
from streamhouse_spark.lake.iceberg.schema import (
    PartitionPaths,
    file_schema,
    partition_record,
    partition_types,
    to_own_field,
)
from streamhouse_spark.lake.parquet.file_writer import PartitionKey, writer_options
from streamhouse_spark.schema.partitioning import PartitionField

PATH_PART_CHARS_MAX = 150

_TIMES: Final = (DateType, TimestampType, TimestamptzType)
_WITHOUT_BOUNDS: Final = (MetricModeTypes.NONE, MetricModeTypes.COUNTS)


@dataclass(frozen=True)
class IcebergFileSpec:
    """The properties of the Iceberg table that a task needs, sent as JSON. All files of a round share them."""

    schema: Schema
    spec: PartitionSpec
    data_location: str
    properties: Mapping[str, str]
    planned_ms: int
    """Time of the store at which the round was planned."""
    snapshot_id: int | None = None
    """The snapshot that was current at that time."""

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "iceberg",
            "schema": self.schema.model_dump_json(),
            "spec": self.spec.model_dump_json(),
            "data_location": self.data_location,
            "properties": dict(self.properties),
            "planned_ms": self.planned_ms,
            "snapshot_id": self.snapshot_id,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> IcebergFileSpec:
        return cls(
            Schema.model_validate_json(value["schema"]),
            PartitionSpec.model_validate_json(value["spec"]),
            value["data_location"],
            value["properties"],
            value["planned_ms"],
            value["snapshot_id"],
        )

    @cached_property
    def file_schema(self) -> pa.Schema:
        return file_schema(self.schema)

    @cached_property
    def partition_types(self) -> list[PrimitiveType]:
        return partition_types(self.spec, self.schema)

    def field_ids(self, names: Sequence[str]) -> list[int]:
        return [self.schema.find_field(name, case_sensitive=False).field_id for name in names]

    @cached_property
    def partition_parts(self) -> Sequence[_Part]:
        fields = zip(self.spec.fields, self.partition_types, strict=True)
        name_of = self.schema.find_column_name
        return [_Part.of(field, name_of(field.source_id) or "", kind) for field, kind in fields]

    @property
    def schema_id(self) -> int:
        return self.schema.schema_id

    @property
    def spec_id(self) -> int:
        return self.spec.spec_id

    @property
    def file_prefix(self) -> str:
        return ""

    @property
    def writer_options(self) -> Mapping[str, Any]:
        level = self.properties.get("write.parquet.compression-level")
        codec = self.properties.get("write.parquet.compression-codec", "zstd")
        try:
            if codec.lower() != "uncompressed" and not pa.Codec.is_available(codec.lower()):
                raise ValueError("unknown")
            return writer_options(codec.lower(), int(level) if level else None)
        except ValueError as error:
            raise LakeMismatchError(
                f"the lake table at {self.data_location} requests Parquet compression {codec[:60]!r} with level "
                f"{(level or '')[:60]!r}, which is not supported; set write.parquet.compression-codec "
                "to zstd, and unset write.parquet.compression-level"
            ) from error

    def directory(self, key: PartitionKey, bucket: int) -> str:  # noqa: ARG002 - it is in the key
        if not key:
            return self.data_location
        record = partition_record(self.spec, self.schema, key)
        path = PartitionPaths(self.spec).partition_to_path(record, self.schema)
        # Values are already escaped. Only their length may exceed the limit of a file system.
        return "/".join([self.data_location, *(part[:PATH_PART_CHARS_MAX] for part in path.split("/"))])

    def statistics(self, footer: pq.FileMetaData) -> Mapping[str, Mapping[int, Any]]:
        plan = compute_statistics_plan(self.schema, dict(self.properties))
        field_ids = parquet_path_to_id_mapping(self.schema)
        # pyiceberg reads bounds as Python values, and Python's dates and times cover only the years 1 to 9999.
        times = {
            field_id: column.iceberg_type
            for field_id, column in plan.items()
            if isinstance(column.iceberg_type, _TIMES) and column.mode.type not in _WITHOUT_BOUNDS
        }
        plan |= {field_id: replace(plan[field_id], mode=MetricsMode(MetricModeTypes.COUNTS)) for field_id in times}
        statistics = data_file_statistics_from_parquet_metadata(footer, plan, field_ids)
        bounds = {i: (a.min_as_bytes(), a.max_as_bytes()) for i, a in statistics.column_aggregates.items()}
        for index in range(footer.num_columns):
            field_id = field_ids[footer.schema.column(index).path]
            if field_id in times and (ticks := _tick_bounds(footer, index)) is not None:
                bounds[field_id] = (to_bytes(times[field_id], ticks[0]), to_bytes(times[field_id], ticks[1]))
        return {
            "column_sizes": dict(statistics.column_sizes),
            "value_counts": dict(statistics.value_counts),
            "null_value_counts": dict(statistics.null_value_counts),
            "nan_value_counts": dict(statistics.nan_value_counts),
            "lower_bounds": {i: low for i, (low, _) in bounds.items() if low is not None},
            "upper_bounds": {i: high for i, (_, high) in bounds.items() if high is not None},
        }


def _tick_bounds(footer: pq.FileMetaData, index: int) -> tuple[int, int] | None:
    """Return the minimum and maximum date or timestamp of a column as integers, or None if unknown."""
    lows, highs = [], []
    for group in range(footer.num_row_groups):
        column = footer.row_group(group).column(index)
        statistics = column.statistics if column.is_stats_set else None
        if statistics is not None and statistics.has_null_count and statistics.null_count == column.num_values:
            continue
        if statistics is None or not statistics.has_min_max:
            return None
        lows.append(statistics.min_raw)
        highs.append(statistics.max_raw)
    return (min(lows), max(highs)) if lows else None


@dataclass(frozen=True, slots=True)
class _Part:
    """The `PartitionPart` of Iceberg."""

    source: str
    is_bucket: bool
    type: PrimitiveType
    own: PartitionField

    @classmethod
    def of(cls, field: IcebergField, source: str, kind: PrimitiveType) -> _Part:
        """Raise `LakeMismatchError` for a transform that streamhouse tables do not support."""
        is_bucket = isinstance(field.transform, BucketTransform)
        own = PartitionField(source) if is_bucket else to_own_field(field.transform, source)
        if own is None:
            raise LakeMismatchError(
                f"the lake table is partitioned by {field.transform}({source}), which is not supported; remove the "
                "field from its partition spec with the engine that added it"
            )
        return cls(source, is_bucket, kind, own)

    def derived(self, column: pa.Array) -> pa.Array:
        return self.own.values(column)

    def encoded(self, value: pa.Scalar) -> bytes | None:
        ticks = scalar_to_ticks(value)
        return None if ticks is None else to_bytes(self.type, ticks)
