"""Groups the rows of a batch by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.keys.key_codec import as_numbers

HEAD_BYTES = 8


class KeyPrefixIndex:
    """An index of distinct keys by a number: the eight bytes of each key after the prefix that all keys share.

    Tested keys are compared byte by byte only with keys of the same number.
    """

    def __init__(self, keys: pa.BinaryArray) -> None:
        """Create an index of one or more ascending keys."""
        self._keys = keys
        self._common = _common_prefix(keys[0].as_py(), keys[len(keys) - 1].as_py())
        self._heads = _heads(keys, len(self._common))

    def contains(self, keys: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """Return whether each of ``keys`` is in the index."""
        heads = _heads(keys, len(self._common))
        lows = np.searchsorted(self._heads, heads, "left")
        mask: npt.NDArray[np.bool_] = self._heads[np.minimum(lows, len(self._heads) - 1)] == heads
        if self._common:
            mask &= pc.starts_with(keys, pattern=self._common).to_numpy(zero_copy_only=False)
        if mask.any():
            alike = self._keys.take(pa.array(self._places(np.unique(heads[mask]))))
            candidates = keys.filter(pa.array(mask))
            mask[mask] = pc.is_in(candidates, value_set=alike).to_numpy(zero_copy_only=False)
        return mask

    def _places(self, heads: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the indexes of the keys with these distinct numbers."""
        lows = np.searchsorted(self._heads, heads, "left")
        counts = np.searchsorted(self._heads, heads, "right") - lows
        firsts = np.cumsum(counts) - counts
        places: npt.NDArray[np.int64] = np.arange(int(counts.sum())) + np.repeat(lows - firsts, counts)
        return places


def _common_prefix(first: bytes, last: bytes) -> bytes:
    """Return the prefix that the first and the last key share, and therefore all keys between them."""
    differ = (place for place, (low, high) in enumerate(zip(first, last, strict=False)) if low != high)
    return first[: next(differ, min(len(first), len(last)))]


def _heads(keys: pa.BinaryArray, skipped: int) -> npt.NDArray[np.uint64]:
    """Return eight bytes of each key, after the first ``skipped`` bytes, as a number. Short keys end with zeros."""
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, keys.offset + len(keys) + 1)[keys.offset :].astype(np.int64)
    data = np.zeros(1, np.uint8)
    if data_buffer is not None and data_buffer.size:
        data = np.frombuffer(data_buffer, np.uint8)
    heads = np.zeros(len(keys), np.uint64)
    for place in range(skipped, skipped + HEAD_BYTES):
        at = offsets[:-1] + place
        next_byte = np.where(at < offsets[1:], data[np.minimum(at, len(data) - 1)], np.uint8(0))
        heads = (heads << np.uint64(8)) | next_byte
    return heads


Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


class RowsTooLargeError(ValueError):
    """The rows of one key exceed the size of an array. The caller adds the table and the key."""

    def __init__(self, row: int, num_bytes: int) -> None:
        super().__init__(f"the rows of the key of row {row} have {num_bytes} bytes")
        self.row = row
        self.num_bytes = num_bytes


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """One row per key of a batch, in key order. All columns are null if ``exists`` is false."""

    columns: tuple[pa.Array, ...]
    exists: Bools


@dataclass(frozen=True)
class KeyedBatch:
    """The upserts and deletes of one batch, grouped by key. The rows of a key keep their order.

    Rows ``[starts[k], ends[k])`` belong to key k.
    """

    keys: pa.BinaryArray
    """The distinct keys, ascending."""
    columns: tuple[arrow_rows.Column, ...]
    """All columns of the table; chunked in a batch that is larger than a slice, see `slice_for_cast`."""
    deleted: Bools
    """Whether each row deletes its key. Such a row uses only the key columns."""
    starts: Places
    inserted: Bools | None = None
    """Whether each key is inserted, so that a stored row with the key is an error; None for upserts."""

    @classmethod
    def of(
        cls,
        keys: pa.BinaryArray,
        columns: Sequence[arrow_rows.Column],
        deleted: Bools,
        places: Places | None = None,
    ) -> KeyedBatch:
        """Group rows by ``keys``: one key per row, encoded by `keys.key_codec`.

        ``places`` are the indexes of the rows in the columns; the default is all rows.
        """
        order, is_first = sort_by_key(keys)
        starts = np.flatnonzero(is_first)
        in_order = places is None and bool((order == np.arange(len(order))).all())  # avoids a copy
        rows = order if places is None else places[order]
        sorted_columns = tuple(c if in_order else arrow_rows.take_values(c, rows, distinct=True) for c in columns)
        return cls(keys.take(pa.array(order[starts])), sorted_columns, deleted[rows], starts)

    def __len__(self) -> int:
        return len(self.starts)

    def pieces(self, old_bytes: Places) -> Iterator[tuple[int, KeyedBatch]]:
        """Yield parts of the batch whose arrays fit into a slice together with the stored rows.

        A part has whole keys, and comes with the number of its first key. ``old_bytes`` has the size of each key's
        stored row. Raises `RowsTooLargeError` if the rows of a single key are too large.
        """
        num_bytes = sum(int(column.nbytes) for column in self.columns) + int(old_bytes.sum())
        if num_bytes <= arrow_rows.SLICE_BYTES_MAX or not len(self):
            yield 0, self._slice(0, len(self))
            return
        of_rows = sum(
            (arrow_rows.estimate_row_bytes(c) for c in self.columns), start=np.zeros(len(self.deleted), np.int64)
        )
        sizes = np.add.reduceat(of_rows, self.starts) + old_bytes
        if (largest := int(sizes.max())) > arrow_rows.KEY_ROWS_BYTES_MAX:
            raise RowsTooLargeError(int(self.starts[np.argmax(sizes)]), largest)
        for first, last in arrow_rows.cut_by_size(sizes):
            yield first, self._slice(first, last)

    def _slice(self, first: int, last: int) -> KeyedBatch:
        if first == 0 and last == len(self) and all(isinstance(column, pa.Array) for column in self.columns):
            return self
        start, end = (int(self.starts[first]), int(self.ends[last - 1])) if last > first else (0, 0)
        columns = tuple(arrow_rows.combine_chunks(column.slice(start, end - start)) for column in self.columns)
        inserted = None if self.inserted is None else self.inserted[first:last]
        keys, starts = self.keys.slice(first, last - first), self.starts[first:last] - start
        return KeyedBatch(keys, columns, self.deleted[start:end], starts, inserted)

    def has(self, keys: pa.BinaryArray) -> Bools:
        """Return whether each of ``keys`` is in the batch. The index of the batch is computed once."""
        if not len(self):
            return np.zeros(len(keys), np.bool_)
        mine, other_numbers = self._numbers, as_numbers(keys)
        if mine is None or other_numbers is None:
            return self._heads.contains(keys)
        is_member: Bools = mine[np.minimum(np.searchsorted(mine, other_numbers), len(mine) - 1)] == other_numbers
        return is_member

    @cached_property
    def _numbers(self) -> npt.NDArray[np.uint64] | None:
        return as_numbers(self.keys)

    @cached_property
    def _heads(self) -> KeyPrefixIndex:
        return KeyPrefixIndex(self.keys)

    @cached_property
    def ends(self) -> Places:
        return np.append(self.starts[1:], len(self.deleted))[: len(self.starts)]

    @cached_property
    def key_of_row(self) -> Places:
        return np.repeat(np.arange(len(self)), self.ends - self.starts)

    @cached_property
    def has_deletion(self) -> Bools:
        """Whether the batch deletes each key, even if a later row writes it again."""
        return np.logical_or.reduceat(self.deleted, self.starts) if len(self) else np.zeros(0, np.bool_)

    @cached_property
    def active(self) -> Bools:
        """Whether each row is an upsert after the last deletion of its key."""
        if not self.deleted.any():
            return np.ones(len(self.deleted), np.bool_)
        place = np.arange(len(self.deleted))
        last_deletion = np.maximum.reduceat(np.where(self.deleted, place, -1), self.starts)
        return place > last_deletion[self.key_of_row]

    @cached_property
    def has_active(self) -> Bools:
        return ~self.deleted[self.ends - 1] if len(self) else np.zeros(0, np.bool_)


def sort_by_key(keys: pa.BinaryArray) -> tuple[Places, Bools]:
    """Return row indexes in key order, stable for equal keys, and whether each row is the first of its key."""
    numbers = as_numbers(keys)
    if numbers is not None:
        order: Places = np.argsort(numbers)  # several times faster than a stable sort
        ordered = numbers[order]
        differs: Bools = ordered[1:] != ordered[:-1]
        if not differs.all():
            order = np.argsort(numbers, kind="stable")  # equal keys must stay in row order
    else:
        order = pc.sort_indices(keys).to_numpy().astype(np.int64)  # stable
        sorted_keys = keys.take(pa.array(order))
        differs = pc.not_equal(sorted_keys.slice(1), sorted_keys.slice(0, max(0, len(keys) - 1))).to_numpy(
            zero_copy_only=False
        )
    return order, np.concatenate([np.ones(min(1, len(keys)), np.bool_), differs])
