"""Merges a changelog range by key.

A union read combines the result with older rows: the rows of a bucket at the end of the range are its rows at the start
whose keys are not in the range, and `MergedChangelog.rows`. Memory is bounded by the range, not by the bucket. A lake
whose readers merge by key gets `LatestChanges`, which include deletions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import combine_chunks, take_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import as_numbers, encode_keys, key_numbers
from streamhouse_spark.keys.keyed_batch import sort_by_key

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LatestChanges:
    """The last change of each key, in key order."""

    rows: pa.Table
    """The rows without the change column. The row of a deletion is the deleted row."""
    deleted: Bools
    places: Places
    """Index of each change in the range."""

    @classmethod
    def of(cls, changes: Iterable[pa.RecordBatch], schema: pa.Schema, key_indexes: Sequence[int]) -> LatestChanges:
        """Merge changes in log order: the change column first, then the columns of ``schema``.

        ``key_indexes`` are the indexes of the primary key columns in the schema.
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
    """Find the last change of each key, without before-images of updates.

    Returns the keys of all changes but before-images, the index in them of one change per key, in key order, and the
    index of each key's last change in ``kinds``.
    """
    is_after = pa.array(kinds != np.int8(ChangeType.UPDATE_BEFORE))
    keys = encode_keys([combine_chunks(column.filter(is_after)) for column in key])
    order, is_first = sort_by_key(keys)
    starts = np.flatnonzero(is_first)
    ends = np.append(starts[1:], len(order))[: len(starts)]
    return keys, order[starts], np.flatnonzero(is_after)[order[ends - 1]]


Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MergedChangelog:
    keys: KeySet
    """Every key that the range changes, ascending."""
    rows: pa.Table
    """The rows of these keys at the end of the range, without the change column."""

    @property
    def size_bytes(self) -> int:
        return self.keys.size_bytes + int(self.rows.nbytes)

    @classmethod
    def of(
        cls, changes: Iterable[pa.RecordBatch], schema: pa.Schema, key_indexes: Sequence[int], *, sort: bool = False
    ) -> MergedChangelog:
        """Merge changes in log order: the change column first, then the columns of ``schema``.

        ``key_indexes`` are the indexes of the primary key columns in the schema. With ``sort`` the rows are in key
        order, otherwise in the order of their last changes, which is cheaper.
        """
        batches = list(changes)
        if not batches:
            return cls(KeySet(pa.array([], pa.binary())), schema.empty_table())
        types, *columns = pa.Table.from_batches(batches).columns
        kinds = types.to_numpy()
        keys, of_each, last = find_last_per_key(kinds, [columns[index] for index in key_indexes])
        retained = last[kinds[last] != np.int8(ChangeType.DELETE)]
        all_rows = pa.Table.from_arrays(columns, schema=schema)
        rows = take_rows(all_rows, retained, distinct=True) if sort else all_rows.filter(_mask(retained, len(kinds)))
        return cls(KeySet(keys.take(pa.array(of_each))), rows)


class KeySet:
    """A set of keys of `keys.key_codec`, for membership tests."""

    def __init__(self, keys: pa.BinaryArray) -> None:
        """Create a set of ascending keys."""
        self._keys = keys
        self._numbers = as_numbers(keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def size_bytes(self) -> int:
        return int(self._keys.nbytes) + (0 if self._numbers is None else int(self._numbers.nbytes))

    def reaches(self, low: bytes, high: bytes) -> bool:
        """Return whether a key lies between two key prefixes, including keys that start with ``high``."""
        place = bisect_left(range(len(self._keys)), low, key=lambda i: self._keys[i].as_py())
        return place < len(self._keys) and self._keys[place].as_py()[: len(high)] <= high

    def _near(self, keys: pa.BinaryArray) -> tuple[int, pa.BinaryArray]:
        """Return the set's keys between the least and the greatest of ``keys``, and the index of the first of them."""
        bounds = pc.min_max(keys).as_py()
        first, length = _count_span(self._keys, bounds["min"], bounds["max"])
        return first, self._keys.slice(first, length)

    def holds(self, keys: pa.BinaryArray) -> Bools:
        """Return whether each of ``keys`` is in the set."""
        if not len(self._keys) or not len(keys):
            return np.zeros(len(keys), np.bool_)
        numbers = None if self._numbers is None else as_numbers(keys)
        if self._numbers is None or numbers is None:
            is_member: Bools = pc.is_in(keys, value_set=self._near(keys)[1]).to_numpy(zero_copy_only=False)
            return is_member
        return _is_member(numbers, self._numbers)

    def holds_keys_of(self, columns: Sequence[pa.Array]) -> Bools:
        """Return whether the key of each row is in the set. The columns have no nulls."""
        numbers = None if self._numbers is None else key_numbers(columns)
        if self._numbers is None or numbers is None:
            return self.holds(encode_keys(columns))
        return _is_member(numbers, self._numbers)

    def find(self, columns: Sequence[pa.Array]) -> tuple[Bools, npt.NDArray[np.int64]]:
        """Return the result of `holds_keys_of`, and for each key in the set its index in the set."""
        held = self.holds_keys_of(columns)
        if not held.any():
            return held, np.zeros(0, np.int64)
        chosen = pa.array(np.flatnonzero(held))
        keys = encode_keys([column.take(chosen) for column in columns])
        numbers = None if self._numbers is None else as_numbers(keys)
        if self._numbers is not None and numbers is not None:
            return held, np.searchsorted(self._numbers, numbers)
        first, near = self._near(keys)
        return held, pc.index_in(keys, value_set=near).to_numpy().astype(np.int64) + first


def _is_member(numbers: Numbers, members: Numbers) -> Bools:
    """Return whether each of ``numbers`` is in the ascending, distinct ``members``."""
    if not len(numbers):
        return np.zeros(0, np.bool_)
    if len(numbers) > len(members) and (numbers[1:] >= numbers[:-1]).all():
        return _mark_numbers(numbers, members)
    places = np.searchsorted(members, numbers)
    places[places == len(members)] = 0
    same: Bools = members[places] == numbers
    return same


def _mask(places: npt.NDArray[np.int64], length: int) -> pa.BooleanArray:
    mask = np.zeros(length, np.bool_)
    mask[places] = True
    return pa.array(mask)


def _mark_numbers(numbers: Numbers, members: Numbers) -> Bools:
    """Return whether each of many ascending numbers is one of a few ``members``."""
    members = members[np.searchsorted(members, numbers[0]) : np.searchsorted(members, numbers[-1], side="right")]
    first = np.searchsorted(numbers, members, side="left")
    mask = np.zeros(len(numbers), np.bool_)
    place = first[numbers[first] == members]
    while len(place):  # one iteration per duplicate key, which only other writers of the lake can cause
        mask[place] = True
        place = place[place + 1 < len(numbers)] + 1
        place = place[numbers[place] == numbers[place - 1]]
    return mask


def _count_span(keys: pa.BinaryArray, low: bytes, high: bytes) -> tuple[int, int]:
    """Return the index of the first ascending key from ``low`` to ``high``, inclusive, and the number of such keys."""
    places = range(len(keys))
    first = bisect_left(places, low, key=lambda i: keys[i].as_py())
    return first, bisect_right(places, high, key=lambda i: keys[i].as_py()) - first
