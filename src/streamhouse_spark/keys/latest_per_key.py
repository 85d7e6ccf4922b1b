"""The latest change per key of a changelog range, deletions included. Pure.

Used for lakes whose readers merge by key: deletions are written instead of searching rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.arrow_chunking import combine_chunks, take_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.keys.keyed_batch import sort_by_key

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LatestChanges:
    """One row per key, in key order."""

    rows: pa.Table
    """Rows without the change column; a deletion has the deleted row."""
    deleted: Bools
    places: Places
    """Index of each change in the range."""

    @classmethod
    def of(cls, changes: Iterable[pa.RecordBatch], schema: pa.Schema, key_indexes: Sequence[int]) -> LatestChanges:
        """Take the changes in log order: the change column first, then the columns of ``schema``.

        ``key_indexes`` are the indexes of the primary key columns in the schema. Memory is bounded by the range.
        """
        batches = list(changes)
        if not batches:
            return cls(schema.empty_table(), np.zeros(0, np.bool_), np.zeros(0, np.int64))
        types, *columns = pa.Table.from_batches(batches).columns
        kinds = types.to_numpy()
        _, _, places = find_last_per_key(kinds, [columns[index] for index in key_indexes])
        rows = take_rows(pa.Table.from_arrays(columns, schema=schema), places, distinct=True)
        return cls(rows, kinds[places] == np.int8(ChangeType.DELETE), places)


def find_last_per_key(kinds: npt.NDArray[np.int8], key: Sequence[pa.ChunkedArray]) -> tuple[pa.Array, Places, Places]:
    """Find the last change of each key; before-images of updates are ignored.

    Returns the keys of the other changes, the index among these of one change per key, ascending by key, and the
    indexes of the last changes.
    """
    is_after = pa.array(kinds != np.int8(ChangeType.UPDATE_BEFORE))
    keys = encode_keys([combine_chunks(column.filter(is_after)) for column in key])
    order, is_first = sort_by_key(keys)
    starts = np.flatnonzero(is_first)
    ends = np.append(starts[1:], len(order))[: len(starts)]
    return keys, order[starts], np.flatnonzero(is_after)[order[ends - 1]]
