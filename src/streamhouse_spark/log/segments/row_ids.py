"""Row ids of a log table: the position of a row as one 64-bit number. Pure.

Spark identifies rows by columns that are never null. A row with a log position is identified by bucket and offset, as a
number from 0 on. Adopted rows, and rows in files of another engine, have none. They are identified by the index of
their file in a lake snapshot and the position in the file, as a number below `NO_PLACE`. Such ids are valid with that
snapshot only.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from streamhouse_spark.core.offset_ranges import OffsetSet

_OFFSET_BITS: Final = 47
OFFSETS_MAX: Final = 1 << _OFFSET_BITS
"""Offsets per bucket that fit into a row id: 140 trillion, with 65,536 buckets."""
NO_PLACE: Final = -1
"""The id of rows that cannot be identified."""
_POSITION_BITS: Final = 38
POSITIONS_MAX: Final = 1 << _POSITION_BITS
"""Rows per file that fit into a row id: 274 billion."""
FILES_MAX: Final = 1 << 24
"""Files of a lake snapshot that fit into a row id."""

Int64Array = npt.NDArray[np.int64]


def row_ids(bucket: int, offsets: Int64Array) -> Int64Array:
    """Return the ids of rows of a bucket. Raises `ValueError` for an offset of `OFFSETS_MAX` or more."""
    if len(offsets) and int(offsets.max()) >= OFFSETS_MAX:
        raise ValueError(f"offset {int(offsets.max())} of bucket {bucket} is beyond what a row's identity can tell")
    return (np.int64(bucket) << _OFFSET_BITS) | offsets


def first_row_id(bucket: int) -> int:
    """Return the id of the row at offset 0 of a bucket; the ids of its other rows follow."""
    return bucket << _OFFSET_BITS


def file_row_ids(place: int, positions: Int64Array) -> Int64Array:
    """Return the ids of rows of the lake file with index ``place`` in its snapshot.

    Raises `ValueError` for an index or a position that does not fit.
    """
    if place >= FILES_MAX or (len(positions) and int(positions.max()) >= POSITIONS_MAX):
        raise ValueError(f"rows of file {place} of a lake snapshot are beyond what a row's identity can tell")
    return (NO_PLACE - 1) - ((np.int64(place) << _POSITION_BITS) | positions)


def offsets_by_bucket(ids: Int64Array) -> dict[int, OffsetSet]:
    """Return bucket → offsets of the rows with these ids, in any order and with duplicates removed.

    Ids of rows that are identified by file are skipped.
    """
    return _group_by_high_part(np.unique(ids[ids > NO_PLACE]), _OFFSET_BITS)


def positions_by_file(ids: Int64Array) -> dict[int, OffsetSet]:
    """Return index of a lake file → positions of the rows that are identified by file, as `offsets_by_bucket` does."""
    return _group_by_high_part(np.unique((NO_PLACE - 1) - ids[ids < NO_PLACE]), _POSITION_BITS)


def _group_by_high_part(ids: Int64Array, bits: int) -> dict[int, OffsetSet]:
    """Return the high part of ascending numbers → their low parts of ``bits`` bits."""
    groups, numbers = ids >> bits, ids & ((1 << bits) - 1)
    firsts = np.flatnonzero(np.diff(groups, prepend=-1))
    parts = np.split(numbers, firsts[1:]) if len(ids) else []
    return {int(groups[first]): OffsetSet.of(part) for first, part in zip(firsts, parts, strict=True)}
