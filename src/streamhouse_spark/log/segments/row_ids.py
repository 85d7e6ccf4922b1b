"""Identities of rows of a table without a primary key: where a row lies, in one number of 64 bits. Pure.

Spark takes a row's identity in columns that are never null. A row with a place in the log is told by its bucket and its
offset, in a number from 0 on. Rows that were in the lake before it was the table's, or whose files another engine
wrote, have none: such a row is told by its file, as the place of that among all files of a lake snapshot, and its
position there, in a number below `NO_PLACE`. So these identities mean something beside that snapshot alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from streamhouse_spark.core.offset_ranges import OffsetRuns

_OFFSET_BITS: Final = 47
OFFSETS_MAX: Final = 1 << _OFFSET_BITS
"""Offsets of a bucket that identities can tell: 140 trillion, beside 65,536 buckets."""
NO_PLACE: Final = -1
"""The identity of rows that cannot be told."""
_POSITION_BITS: Final = 38
POSITIONS_MAX: Final = 1 << _POSITION_BITS
"""Rows of a file that identities can tell: 274 billion."""
FILES_MAX: Final = 1 << 24
"""Files of a lake snapshot whose rows identities can tell."""

Int64Array = npt.NDArray[np.int64]


def row_ids(bucket: int, offsets: Int64Array) -> Int64Array:
    """Return the identities of rows of a bucket. Raises `ValueError` for an offset beyond `OFFSETS_MAX`."""
    if len(offsets) and int(offsets.max()) >= OFFSETS_MAX:
        raise ValueError(f"offset {int(offsets.max())} of bucket {bucket} is beyond what a row's identity can tell")
    return (np.int64(bucket) << _OFFSET_BITS) | offsets


def first_row_id(bucket: int) -> int:
    """Return the identity of the row at offset 0 of a bucket; those of its other rows follow."""
    return bucket << _OFFSET_BITS


def file_row_ids(place: int, positions: Int64Array) -> Int64Array:
    """Return the identities of rows of the lake file with this place among all of its snapshot.

    Raises `ValueError` for a place or a position that an identity cannot tell.
    """
    if place >= FILES_MAX or (len(positions) and int(positions.max()) >= POSITIONS_MAX):
        raise ValueError(f"rows of file {place} of a lake snapshot are beyond what a row's identity can tell")
    return (NO_PLACE - 1) - ((np.int64(place) << _POSITION_BITS) | positions)


def places_of(ids: Int64Array) -> dict[int, OffsetRuns]:
    """Return bucket → offsets of the rows of these identities, in any order; one that is there twice counts once.
    Those of rows that are told by their files are left out.
    """
    return _group_by_high_part(np.unique(ids[ids > NO_PLACE]), _OFFSET_BITS)


def file_places_of(ids: Int64Array) -> dict[int, OffsetRuns]:
    """Return place of a lake file → positions of the rows that are told by their files, as `places_of` does."""
    return _group_by_high_part(np.unique((NO_PLACE - 1) - ids[ids < NO_PLACE]), _POSITION_BITS)


def _group_by_high_part(ids: Int64Array, bits: int) -> dict[int, OffsetRuns]:
    """Return the high part of ascending numbers → their low parts, which have so many bits."""
    groups, numbers = ids >> bits, ids & ((1 << bits) - 1)
    firsts = np.flatnonzero(np.diff(groups, prepend=-1))
    parts = np.split(numbers, firsts[1:]) if len(ids) else []
    return {int(groups[first]): OffsetRuns.of(part) for first, part in zip(firsts, parts, strict=True)}
