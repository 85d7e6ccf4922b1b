"""Bucket pruning: the buckets that may have rows of a filter."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa

from streamhouse_spark.config.properties import LakeFormat
from streamhouse_spark.log.buckets.bucketing import buckets_of
from streamhouse_spark.query.predicates import Node
from streamhouse_spark.schema.table_schema import Column


def prune_buckets(node: Node, key: Column | None, num_buckets: int, lake_format: LakeFormat) -> frozenset[int] | None:
    """Return the only buckets that can have rows of the filter, by equality on the bucket key; None for all buckets."""
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
    """Return the value as the column stores it; None if no row can have it."""
    try:
        if pa.types.is_integer(data_type):
            return pa.array([int(value)], data_type) if int(value) == value else None
        if pa.types.is_decimal(data_type):
            return pa.array([decimal.Decimal(value)], pa.decimal256(76, 38)).cast(data_type)
        return pa.array([value], data_type)
    except (pa.ArrowInvalid, OverflowError):
        return None
