"""Paimon's bucket of a row for a bucket key of several columns: `paimon_hash` with more than one field per row.

The binary form of such a row is an eight-byte word with the null flags, a word per field, and then, in field order, the
values that do not fit into their word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.config.paimon_limits import BUCKET_KEY_COLUMNS_MAX
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.log.buckets.murmur import (
    CHUNK_ROWS,
    TAIL_MASKS,
    Int64Array,
    UInt32Array,
    as_int64,
    byte_strings,
    finish,
    mix_hash,
    validity,
    words_at_every_byte,
)
from streamhouse_spark.log.buckets.paimon_hash import (
    SHORT_BYTES_MAX,
    buckets_of_hashes,
    fixed_width_words,
    is_paimon_bucketable,
)

_NO_WORDS: Final = np.zeros(0, np.uint32)


def paimon_row_buckets(columns: Sequence[pa.Array | pa.ChunkedArray], num_buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each row, in ``[0, num_buckets)``, also for null fields.

    Raises `TypeError` for a type that is not bucketable and for more than `BUCKET_KEY_COLUMNS_MAX` columns,
    `ValueError` if ``num_buckets`` is below 1 or there are no columns.
    """
    if num_buckets < 1 or not columns:
        raise ValueError(
            f"num_buckets is {num_buckets}, and there are {len(columns)} columns: expected at least 1 each"
        )
    unable = [str(column.type) for column in columns if not is_paimon_bucketable(column.type)]
    if unable or len(columns) > BUCKET_KEY_COLUMNS_MAX:
        raise TypeError(f"a Paimon bucket cannot be taken of {len(columns)} columns, or of type {', '.join(unable)}")
    buckets = np.empty(len(columns[0]), dtype=np.int32)
    for begin in range(0, len(buckets), CHUNK_ROWS):
        fields = [_Field.of(_one_chunk(column.slice(begin, CHUNK_ROWS))) for column in columns]
        buckets[begin : begin + CHUNK_ROWS] = buckets_of_hashes(_hashes(fields), num_buckets)
    return buckets


def _hashes(fields: Sequence[_Field]) -> UInt32Array:
    num_rows = len(fields[0].is_null)
    nulls = np.zeros(num_rows, np.uint32)
    for place, field in enumerate(fields):
        nulls |= field.is_null.astype(np.uint32) << np.uint32(8 + place)
    state = mix_hash(mix_hash(np.full(num_rows, 42, np.uint32), nulls), np.zeros(num_rows, np.uint32))
    end = np.full(num_rows, 8 + 8 * len(fields), np.int64)
    for field in fields:
        low, high = field.slot(end)
        state = mix_hash(mix_hash(state, low), high)
        end += 4 * field.num_words
    for field in fields:
        state = field.mixed(state)
    return finish(state, end.astype(np.uint32))


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of some rows. For a value after the slots, ``low`` is in its slot, next to its position."""

    is_null: npt.NDArray[np.bool_]
    low: UInt32Array
    high: UInt32Array
    num_words: Int64Array
    """Number of four-byte words after the slots."""
    starts: Int64Array
    """Index of each value's first word in ``words``."""
    lengths: Int64Array
    """Length of each value in bytes, without padding."""
    words: UInt32Array

    @classmethod
    def of(cls, array: pa.Array) -> _Field:
        is_null = ~validity(array)
        is_type = pa.types
        zeros = np.zeros(len(array), np.int64)
        if is_type.is_timestamp(array.type):
            millis, rest = np.divmod(np.where(is_null, 0, as_int64(array)), 1000)
            nanos, lengths = (rest * 1000).astype(np.uint32), np.where(is_null, 0, 8)
            words = words_at_every_byte(np.ascontiguousarray(millis, "<i8").view(np.uint8))
            starts = 8 * np.arange(len(array), dtype=np.int64)
            return cls(is_null, nanos, nanos, lengths // 4, starts, lengths, words)
        fixed = fixed_width_words(array)
        if fixed is not None:
            slots = np.where(is_null, 0, fixed).astype("<i8").view("<u4")
            return cls(is_null, slots[0::2].copy(), slots[1::2].copy(), zeros, zeros, zeros, _NO_WORDS)
        is_large = is_type.is_large_string(array.type) or is_type.is_large_binary(array.type)
        starts, lengths, data = byte_strings(array, np.int64 if is_large else np.int32)
        lengths = np.where(is_null, 0, lengths)
        words = words_at_every_byte(data)
        is_short = lengths <= SHORT_BYTES_MAX
        marked = (lengths.astype(np.uint32) | np.uint32(0x80)) << np.uint32(24)
        low = np.where(is_short, _word(words, starts, lengths, 0), lengths.astype(np.uint32))
        high = np.where(is_short, (_word(words, starts, lengths, 1) & TAIL_MASKS[3]) | marked, np.uint32(0))
        low, high = np.where(is_null, np.uint32(0), low), np.where(is_null, np.uint32(0), high)
        tail_bytes = np.where(is_short, 0, lengths)
        return cls(is_null, low, high, (tail_bytes + 7) // 8 * 2, starts, tail_bytes, words)

    def slot(self, end: Int64Array) -> tuple[UInt32Array, UInt32Array]:
        """Return the two halves of the field's word; its value after the slots starts at ``end``."""
        return self.low, np.where(self.num_words > 0, end.astype(np.uint32), self.high)

    def mixed(self, state: UInt32Array) -> UInt32Array:
        """Return the hash state after the field's words."""
        left = np.flatnonzero(self.num_words)
        i = 0
        while len(left):
            state[left] = mix_hash(state[left], _word(self.words, self.starts[left], self.lengths[left], i))
            i += 1
            left = left[self.num_words[left] > i]
        return state


def _word(words: UInt32Array, starts: Int64Array, lengths: Int64Array, i: int) -> UInt32Array:
    """Return the i-th four bytes of each value, with zeros after its end."""
    left = np.clip(lengths - 4 * i, 0, 4)
    word: UInt32Array = words[np.where(left > 0, starts + 4 * i, 0)] & TAIL_MASKS[left]
    return word


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])
