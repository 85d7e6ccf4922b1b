"""Pruning of segments and lake files: bounds of each column from their metadata, for the predicate tree."""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from streamhouse_spark.config.properties import LakeFormat
from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.datasource.catalog.scan.pushed_filters import family_of
from streamhouse_spark.lake.model.scan_files import ColumnStatistics, ScanFile
from streamhouse_spark.log.buckets.bucketing import buckets_of as buckets_of_column
from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.metadata_columns import BUCKET, CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET
from streamhouse_spark.query.predicate_tree import ONLY_NULLS, Bounds, Node, exactly, may_match, ordered
from streamhouse_spark.schema.table_schema import Column, TableSchema

METADATA_TYPES: Mapping[str, pa.DataType] = {
    f.name: f.type for f in (CHANGE_TYPE, BUCKET, LOG_OFFSET, COMMIT_TIMESTAMP)
}


def column_types(schema: TableSchema) -> dict[str, pa.DataType]:
    """Return the columns that a filter can use, with their types."""
    return {**METADATA_TYPES, **{column.name: column.type for column in schema.columns}}


def segment_may_match(state: TableState, segment: Segment, offsets: OffsetRange, node: Node) -> bool:
    """Return False only if no row of the segment within the offsets can satisfy the filter."""
    return any(may_match(node, bounds) for bounds in _segment_bounds(state, segment, offsets, node.columns()))


def _segment_bounds(
    state: TableState, segment: Segment, offsets: OffsetRange, asked: frozenset[str]
) -> Iterator[Mapping[str, Bounds]]:
    """Return bounds of parts of the segment's rows, which together are all of them."""
    written = state.schemas[segment.schema_id]
    stats = segment.stats or {}
    bounds = _place_bounds(segment, offsets)
    for column in state.schema.columns:
        if column.name not in asked:
            continue
        there = next((c for c in written.columns if c.id == column.id), None)
        if there is None:
            bounds[column.name] = ONLY_NULLS  # the column was added later
        elif there.name in stats and there.type.equals(column.type):
            bounds[column.name] = stats_bounds(stats[there.name], column.type, segment.num_rows)
    if segment.partitions is None:
        yield bounds
        return
    keys = [_current(state.schema, written, name) for name in state.partition_by]
    for values in segment.partitions:
        exact = {
            column.name: exactly(stored_value(value, column.type))
            for column, value in zip(keys, values, strict=True)
            if column is not None and (value is None or stored_value(value, column.type) is not None)
        }
        yield {**bounds, **exact}


def _current(schema: TableSchema, written: TableSchema, name: str) -> Column | None:
    column = schema.find(name)
    there = written.find(name)
    same = column is not None and there is not None and column.id == there.id and column.type.equals(there.type)
    return column if same else None


def _place_bounds(segment: Segment, offsets: OffsetRange) -> dict[str, Bounds]:
    inside = segment.offsets.intersect(offsets)
    times_us = segment.time_runs[1] * 1000
    return {
        CHANGE_TYPE.name: exactly("insert"),
        BUCKET.name: exactly(segment.bucket),
        LOG_OFFSET.name: Bounds(inside.start, max(inside.start, inside.end - 1), may_be_null=False),
        COMMIT_TIMESTAMP.name: Bounds(int(np.min(times_us)), int(np.max(times_us)), may_be_null=False),
    }


def stats_bounds(stats: Sequence[Any], data_type: pa.DataType, num_rows: int) -> Bounds:
    """Return bounds from ``[min, max, null count]`` of a record. A column with NaN has no such statistics."""
    low, high, nulls = stats
    if low is None:
        return ONLY_NULLS
    low, high = stored_value(low, data_type), stored_value(high, data_type)
    if low is None or high is None:
        return Bounds(may_be_null=bool(nulls), may_have_value=nulls < num_rows)
    return Bounds(ordered(low), ordered(high), may_be_null=bool(nulls), may_have_value=nulls < num_rows)


def stored_value(value: Any, data_type: pa.DataType) -> Any:
    """Return a value of a record's JSON in the form of the predicate tree; None if it cannot be converted."""
    try:
        match family_of(data_type):
            case "number":
                return decimal.Decimal(value) if pa.types.is_decimal(data_type) else int(value)
            case "float":
                return float(value)
            case "binary":
                return bytes.fromhex(value)
            case "string" | "boolean" | "date" | "timestamp" | "timestamp_ntz":
                return value
    except (ValueError, TypeError, ArithmeticError):
        return None
    return None


def file_may_match(file: ScanFile, schema: TableSchema, node: Node) -> bool:
    """Return False only if no row of the lake file can satisfy the filter. Absent metadata allows any value."""
    bounds: dict[str, Bounds] = {}
    if file.bucket is not None:  # null for rows that another engine rewrote
        bounds[BUCKET.name] = replace(exactly(file.bucket), may_be_null=True)
    for name in node.columns():
        column = schema.find(name)
        if column is None:
            continue
        if name in file.partition:
            bounds[name] = exactly(file.partition[name])
        elif name in file.statistics:
            bounds[name] = lake_bounds(file.statistics[name], column.type, file.num_rows)
    return may_match(node, bounds)


def lake_bounds(stats: ColumnStatistics, data_type: pa.DataType, num_rows: int) -> Bounds:
    """Return bounds of a column of a lake file. Lake bounds do not cover NaN, which is above all numbers in Spark."""
    low, high = stats.low, stats.high
    may_be_nan = pa.types.is_floating(data_type) and stats.nan_count != 0
    may_be_null = stats.null_count != 0
    may_have_value = stats.null_count is None or stats.null_count < num_rows
    if low != low or high != high:  # noqa: PLR0124 - a writer that let NaN into its bounds
        low = high = None
    return Bounds(
        None if low is None else ordered(low),
        None if high is None or may_be_nan else ordered(high),
        may_be_null=may_be_null,
        may_have_value=may_have_value,
    )


def buckets_of(node: Node, key: Column | None, num_buckets: int, lake_format: LakeFormat) -> frozenset[int] | None:
    """Return the only buckets that can hold rows of the filter, by equality on the bucket key; None for any."""
    values = node.values_of(key.name) if key is not None else None
    if key is None or values is None:
        return None
    arrays = [array for value in values if value is not None and (array := _key_array(value, key.type)) is not None]
    if None in values:
        arrays.append(pa.nulls(1, key.type))
    return frozenset(int(buckets_of_column(array, num_buckets, lake_format)[0]) for array in arrays)


def _key_array(value: Any, data_type: pa.DataType) -> pa.Array | None:
    """Return the value as the column stores it; None if no row can have it."""
    try:
        if pa.types.is_integer(data_type):
            return pa.array([int(value)], data_type) if int(value) == value else None
        if pa.types.is_decimal(data_type):
            return pa.array([decimal.Decimal(value)], pa.decimal256(76, 38)).cast(data_type)
        if pa.types.is_date32(data_type):
            return pa.array([value], pa.int32()).cast(data_type)
        if pa.types.is_timestamp(data_type):
            return pa.array([value], pa.int64()).cast(data_type)
        return pa.array([value], data_type)
    except (pa.ArrowInvalid, OverflowError):
        return None
