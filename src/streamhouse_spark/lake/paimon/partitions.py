"""Partition pruning of a Paimon table, to skip manifests that cannot match a filter."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pypaimon.manifest.schema.manifest_file_meta import ManifestFileMeta
from pypaimon.table.row.generic_row import GenericRow

from streamhouse_spark.query.predicates import Bounds, Node, constant_bounds, may_match, to_comparable, to_plan_value
from streamhouse_spark.schema.table_schema import Column, TableSchema

_UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, struct.error)


class PartitionFilter:
    """A filter restricted to partition columns.

    It selects all files of a partition or none, removed files and files merged by key included.
    """

    def __init__(self, node: Node, names: Mapping[int, str], schema: TableSchema) -> None:
        """``names`` maps field ids to columns of ``schema``."""
        self._node = node
        self._columns = {i: column for i, name in names.items() if (column := schema.find(name)) is not None}
        self._results: dict[tuple[Any, ...], bool] = {}

    def may_match_manifest(self, manifest: ManifestFileMeta) -> bool:
        """Return False only if none of the manifest's files is in a partition that can match the filter."""
        stats = manifest.partition_stats
        bounds: dict[str, Bounds] = {}
        for i, field in enumerate(stats.min_values.fields):
            column = self._columns.get(field.id)
            if column is None:
                continue
            try:
                low, high = stats.min_values.get_field(i), stats.max_values.get_field(i)
                num_nulls = (stats.null_counts or [])[i]
            except _UNREADABLE:
                continue
            if _are_reliable(column, low, high):
                low, high = to_comparable(to_plan_value(low)), to_comparable(to_plan_value(high))
                bounds[column.name] = Bounds(low, high, may_be_null=num_nulls != 0)
        return may_match(self._node, bounds)

    def test(self, partition: GenericRow) -> bool:
        """Return False only if no row of the partition can match the filter. The name is pypaimon's."""
        values = tuple(partition.values)
        if values not in self._results:
            columns = (
                (self._columns.get(field.id), value) for field, value in zip(partition.fields, values, strict=True)
            )
            bounds = {
                column.name: constant_bounds(to_plan_value(value)) for column, value in columns if column is not None
            }
            self._results[values] = may_match(self._node, bounds)
        return self._results[values]


def _are_reliable(column: Column, low: Any, high: Any) -> bool:
    """Return whether bounds hold for all values. pypaimon's may not hold next to NaN, and missing ones say too
    little.
    """
    return low is not None and high is not None and not pa.types.is_floating(column.type)
