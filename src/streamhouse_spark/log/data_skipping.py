"""Data skipping: finds the buckets and segments that may have rows that match a filter."""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from streamhouse_spark.config.table_properties import LakeFormat
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.expressions.predicates import ONLY_NULLS, Bounds, Node, constant_bounds, may_match
from streamhouse_spark.log.bucketing import buckets_of
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.metadata_columns import BUCKET, CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET
from streamhouse_spark.log.segments.statistics import decode_stored_value, stats_bounds
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.partitioning import partition_columns_at
from streamhouse_spark.schema.table_schema import Column, TableSchema


def prune_buckets(node: Node, key: Column | None, num_buckets: int, lake_format: LakeFormat) -> frozenset[int] | None:
    """Return the buckets that may have matching rows, if the filter fixes the bucket key; None for all buckets."""
    values = node.values_of(key.name) if key is not None else None
    if key is None or values is None:
        return None
    arrays = [array for value in values if value is not None and (array := _key_array(value, key.type)) is not None]
    if None in values:
        arrays.append(pa.nulls(1, key.type))
    if not arrays:
        return frozenset()
    return frozenset(buckets_of(pa.concat_arrays(arrays), num_buckets, lake_format).tolist())


def _key_array(value: Any, data_type: pa.DataType) -> pa.Array | None:
    """Return the value as an array of the column's type; None if no row can have the value."""
    try:
        if pa.types.is_integer(data_type):
            return pa.array([int(value)], data_type) if int(value) == value else None
        if pa.types.is_decimal(data_type):
            return pa.array([decimal.Decimal(value)], pa.decimal256(76, 38)).cast(data_type)
        return pa.array([value], data_type)
    except (pa.ArrowInvalid, OverflowError):
        return None


def segment_may_match(state: TableState, segment: Segment, offsets: OffsetRange, node: Node) -> bool:
    """Return False only if no row of the segment within the offsets can match the filter."""
    columns = node.columns()
    bounds = _bounds(state, segment, offsets, columns)
    if not may_match(node, bounds):
        return False
    names = partition_columns_at(state.former_partitionings, state.partition_by, segment.schema_id)
    if segment.partitions is None or not columns.intersection(names):
        return True
    partitions = _partitions(state, segment, names, segment.partitions)
    return any(may_match(node, {**bounds, **exact}) for exact in partitions)


def _bounds(state: TableState, segment: Segment, offsets: OffsetRange, columns: frozenset[str]) -> dict[str, Bounds]:
    written = state.schemas[segment.schema_id]
    stats = segment.stats or {}
    bounds = _metadata_bounds(segment, offsets)
    if not state.primary_key and not segment.updated:  # otherwise change types differ by row
        bounds[CHANGE_TYPE.name] = constant_bounds("insert")
    for column in state.schema.columns:
        if column.name not in columns:
            continue
        written_column = next((c for c in written.columns if c.id == column.id), None)
        if written_column is None:
            bounds[column.name] = ONLY_NULLS  # the column was added later
        elif written_column.name in stats and written_column.type.equals(column.type):
            bounds[column.name] = stats_bounds(stats[written_column.name], column.type, segment.num_rows)
    return bounds


def _partitions(
    state: TableState, segment: Segment, names: tuple[str, ...], partitions: tuple[tuple[Any, ...], ...]
) -> Iterator[Mapping[str, Bounds]]:
    """Yield the values of each partition that has rows in the segment.

    ``names`` are the partition columns of the segment.
    """
    written = state.schemas[segment.schema_id]
    keys = [_map_to_current(state.schema, written, name) for name in names]
    for values in partitions:
        yield {
            column.name: constant_bounds(decode_stored_value(value, column.type))
            for column, value in zip(keys, values, strict=True)
            if column is not None and (value is None or decode_stored_value(value, column.type) is not None)
        }


def _map_to_current(schema: TableSchema, written: TableSchema, name: str) -> Column | None:
    column = schema.find(name)
    written_column = written.find(name)
    if column is None or written_column is None or column.id != written_column.id:
        return None
    return column if column.type.equals(written_column.type) else None


def _metadata_bounds(segment: Segment, offsets: OffsetRange) -> dict[str, Bounds]:
    inside = segment.offsets.intersect(offsets)
    times_us = segment.time_runs[1] * 1000
    return {
        BUCKET.name: constant_bounds(segment.bucket),
        LOG_OFFSET.name: Bounds(inside.start, max(inside.start, inside.end - 1), may_be_null=False),
        COMMIT_TIMESTAMP.name: Bounds(int(np.min(times_us)), int(np.max(times_us)), may_be_null=False),
    }
