"""Data skipping: whether a lake file can match a filter, by its metadata."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from streamhouse_spark.lake.model.scan_files import ColumnStatistics, ScanFile
from streamhouse_spark.log.segments.metadata_columns import BUCKET
from streamhouse_spark.query.predicates import Bounds, Node, constant_bounds, may_match, to_comparable
from streamhouse_spark.schema.table_schema import TableSchema


def file_may_match(file: ScanFile, schema: TableSchema, node: Node) -> bool:
    """Return False only if no row of the lake file can match the filter. Missing metadata matches anything."""
    bounds: dict[str, Bounds] = {}
    if file.bucket is not None:  # null for rows that another engine rewrote
        bounds[BUCKET.name] = replace(constant_bounds(file.bucket), may_be_null=True)
    for name in node.columns():
        column = schema.find(name)
        if column is None:
            continue
        if name in file.partition:
            bounds[name] = constant_bounds(file.partition[name])
        elif name in file.statistics:
            bounds[name] = column_bounds(file.statistics[name], column.type, file.num_rows)
    return may_match(node, bounds)


def column_bounds(stats: ColumnStatistics, data_type: pa.DataType, num_rows: int) -> Bounds:
    """Return the bounds of a column of a lake file. Lake bounds exclude NaN, which Spark orders above all numbers."""
    low, high = stats.low, stats.high
    if low != low or high != high:  # noqa: PLR0124 - a writer that let NaN into its bounds
        low = high = None
    return Bounds(
        None if low is None else to_comparable(low),
        None if high is None else to_comparable(high),
        may_be_null=stats.null_count != 0,
        may_have_value=stats.null_count is None or stats.null_count < num_rows,
        may_be_nan=pa.types.is_floating(data_type) and stats.nan_count != 0,
    )
