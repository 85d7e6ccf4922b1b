"""A range of a changelog as what it makes of its keys: what a union read lays over older rows. Pure.

The rows of a bucket at the end of the range are those at its start whose keys the range does not name, and `Tail.rows`.
Memory is bounded by the range, not by the bucket.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import as_numbers, encode_keys
from streamhouse_spark.keys.keyed_batch import sorted_places

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tail:
    keys: KeySet
    """Every key that the range changes."""
    rows: pa.Table
    """The rows that it leaves there, in the order of their keys, without the change column."""

    @classmethod
    def of(cls, changes: Iterable[pa.RecordBatch], schema: pa.Schema, key_places: Sequence[int]) -> Tail:
        """The changes in the order of the log: the change column first, then the columns of ``schema``.

        ``key_places`` say where the primary key stands in the schema.
        """
        batches = list(changes)
        if not batches:
            return cls(KeySet(pa.array([], pa.binary())), schema.empty_table())
        types, *columns = pa.Table.from_batches(batches).columns
        kinds = types.to_numpy()
        after = np.flatnonzero(kinds != np.int8(ChangeType.UPDATE_BEFORE))
        keys = encode_keys([_one_chunk(columns[place].take(pa.array(after))) for place in key_places])
        order, is_first = sorted_places(keys)
        starts = np.flatnonzero(is_first)
        last = after[order[np.append(starts[1:], len(order)) - 1]] if len(starts) else after
        kept = pa.array(last[kinds[last] != np.int8(ChangeType.DELETE)])
        rows = pa.Table.from_arrays([column.take(kept) for column in columns], schema=schema)
        return cls(KeySet(keys.take(pa.array(order[starts]))), rows)


class KeySet:
    """Keys of `streamhouse_spark.keys.key_codec`, to ask whether rows have one of them."""

    def __init__(self, keys: pa.BinaryArray) -> None:
        """``keys`` ascend."""
        self._keys = keys
        self._numbers = as_numbers(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def reaches(self, low: bytes, high: bytes) -> bool:
        """Whether a key lies between two beginnings of keys, those that begin with ``high`` included."""
        place = bisect_left(range(len(self._keys)), low, key=lambda i: self._keys[i].as_py())
        return place < len(self._keys) and self._keys[place].as_py()[: len(high)] <= high

    def holds(self, keys: pa.BinaryArray) -> Bools:
        """For each of these keys whether it is one of the set."""
        if not len(self._keys) or not len(keys):
            return np.zeros(len(keys), np.bool_)
        numbers = None if self._numbers is None else as_numbers(keys)
        if self._numbers is None or numbers is None:
            found: Bools = pc.is_in(keys, value_set=self._keys).to_numpy(zero_copy_only=False)
            return found
        if len(numbers) > len(self._numbers) and (numbers[1:] >= numbers[:-1]).all():
            return _marked(numbers, self._numbers)
        places = np.searchsorted(self._numbers, numbers)
        places[places == len(self._numbers)] = 0
        same: Bools = self._numbers[places] == numbers
        return same

    def find(self, keys: pa.BinaryArray) -> tuple[Bools, npt.NDArray[np.int64]]:
        """As `holds`, and for those that are in the set where they stand there."""
        if self._numbers is None and len(self._keys) and len(keys):
            found = pc.index_in(keys, value_set=self._keys).fill_null(-1).to_numpy().astype(np.int64)
            return found >= 0, found[found >= 0]
        held = self.holds(keys)
        numbers = as_numbers(keys.filter(pa.array(held)))
        if self._numbers is None or numbers is None:
            return held, np.zeros(0, np.int64)
        return held, np.searchsorted(self._numbers, numbers)


def _marked(numbers: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> Bools:
    """Which of many ascending numbers are among a few."""
    first = np.searchsorted(numbers, wanted, side="left")
    behind = np.searchsorted(numbers, wanted, side="right")
    steps = np.zeros(len(numbers) + 1, np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, behind, -1)
    return np.cumsum(steps[:-1]) > 0


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.nulls(0, column.type) if not chunks else column.combine_chunks()
