"""The rows of a batch by their key: which come first, which last, which are deletions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.forks import cached_property
from streamhouse_spark.keys.key_codec import as_numbers

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """At most one row for each key of a batch, in the order of the keys: nulls where ``there`` is false."""

    columns: tuple[pa.Array, ...]
    there: Bools


@dataclass(frozen=True)
class KeyedBatch:
    """Upserts and deletes of one batch, grouped by key; within a key in the order in which they were written.

    ``columns`` are all columns of the table, sorted so. Rows ``[starts[k], ends[k])`` are of key k.
    """

    keys: pa.BinaryArray
    """Each key once, ascending."""
    columns: tuple[pa.Array, ...]
    deleted: Bools
    """Which rows delete their key; of these only the key columns count."""
    starts: Places
    inserted: Bools | None = None
    """Which keys an operation inserts, so that no other row may have them; None where rows take the place of others."""

    @classmethod
    def of(cls, keys: pa.BinaryArray, columns: Sequence[pa.Array], deleted: Bools) -> KeyedBatch:
        """``keys`` are those of `streamhouse_spark.keys.key_codec`, one for each row."""
        order, is_first = sorted_places(keys)
        starts = np.flatnonzero(is_first)
        places = pa.array(order)
        taken = tuple(column.take(places) for column in columns)
        return cls(keys.take(pa.array(order[starts])), taken, deleted[order], starts)

    def __len__(self) -> int:
        return len(self.starts)

    def has(self, keys: pa.BinaryArray) -> Bools:
        """Which of some keys the batch has."""
        mine, others = self._numbers, as_numbers(keys)
        if mine is None or others is None:
            found: Bools = pc.is_in(keys, value_set=self.keys).to_numpy(zero_copy_only=False)
            return found
        there: Bools = mine[np.minimum(np.searchsorted(mine, others), len(mine) - 1)] == others
        return there

    @cached_property
    def _numbers(self) -> npt.NDArray[np.uint64] | None:
        return as_numbers(self.keys)

    @cached_property
    def ends(self) -> Places:
        return np.append(self.starts[1:], len(self.deleted))[: len(self.starts)]

    @cached_property
    def key_of_row(self) -> Places:
        return np.repeat(np.arange(len(self)), self.ends - self.starts)

    @cached_property
    def has_deletion(self) -> Bools:
        """Which keys the batch deletes, even where it writes them again."""
        return np.logical_or.reduceat(self.deleted, self.starts) if len(self) else np.zeros(0, np.bool_)

    @cached_property
    def active(self) -> Bools:
        """Which rows count: upserts behind the last deletion of their key."""
        if not self.deleted.any():
            return np.ones(len(self.deleted), np.bool_)
        place = np.arange(len(self.deleted))
        last_deletion = np.maximum.reduceat(np.where(self.deleted, place, -1), self.starts)
        return place > last_deletion[self.key_of_row]

    @cached_property
    def has_active(self) -> Bools:
        return ~self.deleted[self.ends - 1] if len(self) else np.zeros(0, np.bool_)


def sorted_places(keys: pa.BinaryArray) -> tuple[Places, Bools]:
    """Places in the order of the keys, equal ones as they came, and which of them are the first of their key."""
    numbers = as_numbers(keys)
    if numbers is not None:
        order: Places = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        differs: Bools = ordered[1:] != ordered[:-1]
    else:
        order = pc.sort_indices(keys).to_numpy().astype(np.int64)  # stable
        taken = keys.take(pa.array(order))
        differs = pc.not_equal(taken.slice(1), taken.slice(0, max(0, len(keys) - 1))).to_numpy(zero_copy_only=False)
    return order, np.concatenate([np.ones(min(1, len(keys)), np.bool_), differs])
