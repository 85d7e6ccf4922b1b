"""Partition pruning of an Iceberg table, to skip manifests that cannot match a filter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from pyiceberg import types as ice
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.lake.file_skipping import column_bounds
from streamhouse_spark.lake.iceberg.schema import bucket_of, to_own_field
from streamhouse_spark.lake.model.scan_files import ColumnStatistics
from streamhouse_spark.query.predicates import Node, constant_bounds, may_match
from streamhouse_spark.schema.partition_fields import PartitionField
from streamhouse_spark.schema.table_schema import Column, TableSchema

_WIDTHS_BYTES: Mapping[type[ice.IcebergType], tuple[int, ...]] = {
    ice.IntegerType: (4,),
    ice.LongType: (4, 8),
    ice.FloatType: (4,),
    ice.DoubleType: (4, 8),
    ice.DateType: (4,),
    ice.TimestampType: (8,),
    ice.TimestamptzType: (8,),
}


@dataclass(frozen=True, slots=True)
class BucketFilter:
    """The requested buckets, and how a partition determines its bucket; see `bucket_of`."""

    buckets: frozenset[int]
    num_buckets: int
    source_id: int | None

    def excludes(self, file: DataFile, spec: PartitionSpec) -> bool:
        bucket = bucket_of(spec, file.partition, self.num_buckets, self.source_id)
        return bucket is not None and bucket not in self.buckets


class PartitionFilter:
    """A filter restricted to partition columns and buckets.

    A partition by years, months, days or hours may also hold moments of its neighbours: engines have rounded times
    before 1970 differently. ``truncate`` partitions are ignored.
    """

    def __init__(
        self,
        node: Node,
        names: Mapping[int, str],
        schema: TableSchema,
        metadata: TableMetadata,
        buckets: BucketFilter | None = None,
    ) -> None:
        """``names`` maps field ids to columns of ``schema``."""
        self._node = node
        self._buckets = buckets
        self._specs = metadata.specs()
        self._types = field_types(metadata)
        self._columns = {i: column for i, name in names.items() if (column := schema.find(name)) is not None}
        self._results: dict[tuple[Any, ...], bool] = {}

    def may_match_manifest(self, manifest: ManifestFile) -> bool:
        """Return False only if none of the manifest's files is in a partition that can match the filter."""
        spec, summaries = self._specs[manifest.partition_spec_id], manifest.partitions or []
        if len(summaries) != len(spec.fields):
            return True
        bounds = {}
        for position, field_id, column, part in self._parts(spec):
            summary = summaries[position]
            field_type = self._types[field_id] if part.transform == "identity" else ice.IntegerType()
            low, high = (decode_bound(field_type, b) for b in (summary.lower_bound, summary.upper_bound))
            stats = ColumnStatistics(
                *_project_column(part, low, high, column),
                null_count=0 if summary.contains_null is False else None,
                nan_count=0 if summary.contains_nan is False else None,
            )
            bounds[column.name] = column_bounds(stats, column.type, num_rows=1)
        return may_match(self._node, bounds)

    def test(self, file: DataFile) -> bool:
        """Return False only if no row of the data file's partition can match the filter."""
        spec = self._specs[file.spec_id]
        if self._buckets is not None and self._buckets.excludes(file, spec):
            return False
        partition = tuple(file.partition[position] for position in range(len(spec.fields)))
        key = (file.spec_id, *partition)
        if key not in self._results:
            bounds = {}
            for position, _, column, part in self._parts(spec):
                value = partition[position]
                if part.transform == "identity" or value is None:
                    bounds[column.name] = constant_bounds(value)
                else:
                    stats = ColumnStatistics(*_project_column(part, value, value, column), null_count=0, nan_count=0)
                    bounds[column.name] = column_bounds(stats, column.type, num_rows=1)
            self._results[key] = may_match(self._node, bounds)
        return self._results[key]

    def _parts(self, spec: PartitionSpec) -> Iterator[tuple[int, int, Column, PartitionField]]:
        """Yield position, field and column of partition fields that are a column or one of its times."""
        for position, part in enumerate(spec.fields):
            column = self._columns.get(part.source_id)
            own_part = to_own_field(part.transform, column.name) if column is not None else None
            if column is not None and own_part is not None and own_part.transform != "truncate":
                yield position, part.source_id, column, own_part


def _project_column(part: PartitionField, low: Any, high: Any, column: Column) -> tuple[Any, Any]:
    """Return the bounds of a column from those of its partitions; None if they imply nothing."""
    if part.transform == "identity":
        return low, high
    first = part.range_of(low - 1, column.type) if low is not None else None
    last = part.range_of(high + 1, column.type) if high is not None else None
    return (first[0] if first else None), (last[1] - 1 if last else None)


def field_types(metadata: TableMetadata) -> dict[int, ice.IcebergType]:
    """Return the latest type of each field that the table has or had."""
    types = {f.field_id: f.field_type for schema in metadata.schemas for f in schema.fields}
    types.update((f.field_id, f.field_type) for f in metadata.schema().fields)
    return types


def decode_bound(field_type: ice.IcebergType, data: bytes | None) -> Any:
    """Decode a bound, or return None if it was written for another type of the column or cannot be read.

    A bound of a type that was widened since has the narrower type.
    """
    widths = _WIDTHS_BYTES.get(type(field_type))
    if data is None or (widths is not None and len(data) not in widths):
        return None
    try:
        return from_bytes(cast("ice.PrimitiveType", field_type), data)
    except (ValueError, TypeError, ArithmeticError, LookupError):
        return None
