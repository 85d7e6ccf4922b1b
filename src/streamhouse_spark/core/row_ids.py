"""Identities of rows of a table without a primary key: bucket and offset in one number of 64 bits. Pure.

Spark takes a row's identity in columns that are never null, and some rows have no place in the log: those that were in
the lake before it was the table's, or whose files another engine wrote. They get a number that names no row.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from streamhouse_spark.core.offset_runs import OffsetRuns

_OFFSET_BITS: Final = 47
OFFSETS_MAX: Final = 1 << _OFFSET_BITS
"""Offsets of a bucket that identities can tell: 140 trillion, beside 65,536 buckets."""
NO_PLACE: Final = -1
"""The identity of rows without a place in the log."""

Int64Array = npt.NDArray[np.int64]


def row_ids(bucket: int, offsets: Int64Array) -> Int64Array:
    """Return the identities of rows of a bucket. Raises `ValueError` for an offset beyond `OFFSETS_MAX`."""
    if len(offsets) and int(offsets.max()) >= OFFSETS_MAX:
        raise ValueError(f"offset {int(offsets.max())} of bucket {bucket} is beyond what a row's identity can tell")
    return (np.int64(bucket) << _OFFSET_BITS) | offsets


def first_row_id(bucket: int) -> int:
    """Return the identity of the row at offset 0 of a bucket; those of its other rows follow."""
    return bucket << _OFFSET_BITS


def places_of(ids: Int64Array) -> dict[int, OffsetRuns]:
    """Return bucket → offsets of the rows of these identities, in any order; one that is there twice counts once.
    None of them is `NO_PLACE`.
    """
    found = np.unique(ids)
    buckets, offsets = found >> _OFFSET_BITS, found & (OFFSETS_MAX - 1)
    firsts = np.flatnonzero(np.diff(buckets, prepend=-1))
    parts = np.split(offsets, firsts[1:]) if len(found) else []
    return {int(buckets[first]): OffsetRuns.of(part) for first, part in zip(firsts, parts, strict=True)}
