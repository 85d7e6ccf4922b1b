"""Bin packing of splits into groups, one per Spark partition."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.catalog.scan.input_splits import ArrowSplit, ParquetSplit
from streamhouse_spark.read.split_planning import TARGET_BYTES_MAX, align_to_changes, pack_neighbours

BUCKET_SPREAD_MAX = 4
"""Maximum cores per bucket at which groups of single buckets are accepted."""


@dataclass(frozen=True, slots=True)
class Groups:
    native: tuple[tuple[ParquetSplit, ...], ...]
    hot: tuple[tuple[ArrowSplit, ...], ...]
    native_buckets: tuple[int | None, ...]
    hot_buckets: tuple[int | None, ...]
    is_keyed: bool
    """Whether every group belongs to one bucket and every bucket has a group, so that Spark can join and aggregate by
    the key without a shuffle.
    """


def can_be_keyed(
    native: Sequence[ParquetSplit], hot: Sequence[ArrowSplit], *, num_buckets: int, parallelism: int
) -> bool:
    """Return whether grouping by bucket is possible and uses enough of the cores."""
    units: list[ParquetSplit | ArrowSplit] = [*native, *hot]
    if any(unit.bucket is None for unit in units):
        return False
    is_small = sum(unit.size_bytes for unit in units) <= TARGET_BYTES_MAX
    return is_small or num_buckets * BUCKET_SPREAD_MAX >= parallelism


def are_of_one_bucket(native: Sequence[ParquetSplit], hot: Sequence[ArrowSplit]) -> bool:
    """Return whether all splits belong to the same bucket."""
    units: list[ParquetSplit | ArrowSplit] = [*native, *hot]
    return len({unit.bucket for unit in units}) <= 1


def pack(
    native: Sequence[ParquetSplit], hot: Sequence[ArrowSplit], target_bytes: int, native_target_bytes: int
) -> Groups:
    """Pack neighbouring splits into groups of about equal size."""
    native_groups = tuple(tuple(group) for group in pack_neighbours(native, native_target_bytes)) if native else ()
    hot_groups = tuple(tuple(group) for group in _pack_arrow_splits(hot, target_bytes))
    return Groups(native_groups, hot_groups, (None,) * len(native_groups), (None,) * len(hot_groups), is_keyed=False)


def pack_by_bucket(
    native: Sequence[ParquetSplit], hot: Sequence[ArrowSplit], target_bytes: int, num_buckets: int
) -> Groups:
    """Pack splits into groups of one bucket each. A bucket without rows gets an empty native group, which starts no
    Python task.
    """
    native_groups: list[tuple[ParquetSplit, ...]] = []
    hot_groups: list[tuple[ArrowSplit, ...]] = []
    native_buckets: list[int | None] = []
    hot_buckets: list[int | None] = []
    for bucket in range(num_buckets):
        files = [unit for unit in native if unit.bucket == bucket]
        pieces = [unit for unit in hot if unit.bucket == bucket]
        empty: list[list[ParquetSplit]] = [] if pieces else [[]]
        for files_together in pack_neighbours(files, target_bytes) if files else empty:
            native_groups.append(tuple(files_together))
            native_buckets.append(bucket)
        for pieces_together in _pack_arrow_splits(pieces, target_bytes):
            hot_groups.append(tuple(pieces_together))
            hot_buckets.append(bucket)
    return Groups(tuple(native_groups), tuple(hot_groups), tuple(native_buckets), tuple(hot_buckets), is_keyed=True)


def _pack_arrow_splits(hot: Sequence[ArrowSplit], target_bytes: int) -> list[list[ArrowSplit]]:
    return align_to_changes(pack_neighbours(hot, target_bytes), lambda unit: unit.piece) if hot else []


def limit_splits(
    native: Sequence[ParquetSplit], hot: Sequence[ArrowSplit], limit: int
) -> tuple[Sequence[ParquetSplit], Sequence[ArrowSplit]]:
    """Return the first splits that are certain to hold ``limit`` rows, or all. Splits with an inexact row count do not
    count.
    """
    rows = 0
    for count, unit in enumerate(native, start=1):
        rows += unit.num_rows if unit.is_exact else 0
        if rows >= limit:
            return native[:count], ()
    rows = 0
    for count, unit_ in enumerate(hot, start=1):
        rows += unit_.num_rows if unit_.is_exact else 0
        if rows >= limit:
            return (), hot[:count]
    return native, hot


def groups_to_json(groups: Groups) -> dict[str, Any]:
    """Return the groups as JSON for Java, without the scan tasks of hot groups."""
    native, hot = itertools.chain(*groups.native), itertools.chain(*groups.hot)
    units: list[ParquetSplit | ArrowSplit] = [*native, *hot]
    return {
        "native": [
            {"bucket": bucket, "files": [unit.to_json() for unit in group]}
            for bucket, group in zip(groups.native_buckets, groups.native, strict=True)
        ],
        "hot": [{"bucket": bucket} for bucket in groups.hot_buckets],
        "rows": sum(unit.num_rows for unit in units),
        "bytes": sum(unit.size_bytes for unit in units),
        "keyed": groups.is_keyed,
    }
