"""The bucket of a row: the same as in the table's lake, so that tiering needs no shuffle.

``table.datalake.format`` selects the hash function when a table is created, even if its lake is enabled later. Both
hashes are murmur3 (x86, 32 bits) and vectorised.

**Iceberg** uses the transform `bucket[N]`. The hash has seed 0 and covers the bytes that the Iceberg specification
defines for each type. The bucket is ``(hash & 0x7fffffff) % N``. The specification defines no bucket for nulls; here it
is bucket 0.

**Paimon** uses its default bucket function. The hash has seed 42 and covers Paimon's binary form of a row with the
columns of the bucket key. The form is an eight-byte word with the null flags, a word per field, and the long values in
field order, padded with zeros to whole words. The word of a field is a short value, or the position and length of a
long value. The bucket is the absolute value of the remainder of the signed hash by the number of buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.config.table_properties import LakeFormat
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.schema.paimon_limits import BUCKET_KEY_COLUMNS_MAX

UInt32Array = npt.NDArray[np.uint32]
Int64Array = npt.NDArray[np.int64]

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF], dtype=np.uint32)
"""Masks of a four-byte word by its number of valid bytes."""
CHUNK_ROWS = 1 << 14
"""Rows hashed at a time, so that their words and hashes stay in the processor's cache."""


def mix_word(word: UInt32Array) -> UInt32Array:
    mixed = word * _C1
    mixed = (mixed << np.uint32(15)) | (mixed >> np.uint32(17))
    return mixed * _C2


def mix_hash(state: UInt32Array, word: UInt32Array) -> UInt32Array:
    state = state ^ mix_word(word)
    state = (state << np.uint32(13)) | (state >> np.uint32(19))
    return state * np.uint32(5) + np.uint32(0xE6546B64)


def finish(state: UInt32Array, length_bytes: UInt32Array | np.uint32) -> UInt32Array:
    state = state ^ length_bytes
    state ^= state >> np.uint32(16)
    state *= np.uint32(0x85EBCA6B)
    state ^= state >> np.uint32(13)
    state *= np.uint32(0xC2B2AE35)
    state ^= state >> np.uint32(16)
    return state


# -- values ----------------------------------------------------------------------------------------------------------


def validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def as_int64(array: pa.Array) -> Int64Array:
    """Return integers, days and microseconds as stored. Values under a null are arbitrary."""
    width_bits = array.type.bit_width
    signed = not pa.types.is_unsigned_integer(array.type)
    dtype = np.dtype(f"{'i' if signed else 'u'}{width_bits // 8}")
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype=np.int64)
    values = np.frombuffer(data, dtype=dtype, count=array.offset + len(array))[array.offset :]
    return values.astype(np.int64, copy=False)


def words_at_every_byte(data: npt.NDArray[np.uint8]) -> UInt32Array:
    """Return a view whose value at index i is the four bytes that start at i, little endian, padded with zeros."""
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    view: UInt32Array = np.ndarray((len(data) + 5,), dtype="<u4", buffer=padded.data, strides=(1,))
    return view


def _is_byte_string(data_type: pa.DataType) -> bool:
    is_type = pa.types
    is_large = is_type.is_large_string(data_type) or is_type.is_large_binary(data_type)
    return bool(is_large or is_type.is_string(data_type) or is_type.is_binary(data_type))


def byte_strings(array: pa.Array) -> tuple[Int64Array, Int64Array, npt.NDArray[np.uint8]]:
    """Return start and length of each value, and the bytes that they refer to."""
    _, offset_buffer, data_buffer = array.buffers()
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    offset_dtype = np.int64 if is_large else np.int32
    if len(array) == 0 or offset_buffer is None:
        empty = np.zeros(len(array), dtype=np.int64)
        return empty, empty, np.zeros(0, dtype=np.uint8)
    offsets = np.frombuffer(offset_buffer, dtype=offset_dtype, count=array.offset + len(array) + 1)[array.offset :]
    first, last = int(offsets[0]), int(offsets[-1])
    starts = offsets.astype(np.int64) - first
    if data_buffer is None or last == first:
        return starts[:-1], np.diff(starts), np.zeros(0, dtype=np.uint8)
    return starts[:-1], np.diff(starts), np.frombuffer(data_buffer, dtype=np.uint8)[first:last]


# -- Iceberg -----------------------------------------------------------------------------------------------------------


def iceberg_buckets(column: pa.Array | pa.ChunkedArray, num_buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each row, in ``[0, num_buckets)``; 0 for nulls.

    Raises `TypeError` for an unsupported type, `ValueError` if ``num_buckets`` is below 1.
    """
    if num_buckets < 1:
        raise ValueError(f"num_buckets is {num_buckets}, expected at least 1")
    hasher = _hasher_of(column.type)
    if hasher is None:
        raise TypeError(f"Iceberg has no bucket for type {column.type}")
    buckets = np.empty(len(column), dtype=np.int32)
    begin = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        part = buckets[begin : begin + len(chunk)]
        part[:] = (hasher(chunk) & np.uint32(0x7FFFFFFF)) % np.uint32(num_buckets)
        if chunk.null_count:
            part[~validity(chunk)] = 0
        begin += len(chunk)
    return buckets


def _hasher_of(data_type: pa.DataType) -> Callable[[pa.Array], UInt32Array] | None:
    """Return the function that hashes an array of the type. Hashes under nulls are arbitrary."""
    is_type = pa.types
    if is_type.is_uint64(data_type):
        return None
    is_microseconds = is_type.is_timestamp(data_type) and data_type.unit == "us"
    if is_type.is_integer(data_type) or is_type.is_date32(data_type) or is_microseconds:
        return _hash_integers
    if is_type.is_decimal128(data_type):
        return _hash_decimals
    return _hash_byte_strings if _is_byte_string(data_type) else None


def _hash_integers(array: pa.Array) -> UInt32Array:
    """Hash integers, dates and timestamps as eight bytes, little endian: a widened column keeps its buckets."""
    values = as_int64(array)
    hashes = np.empty(len(values), dtype=np.uint32)
    for begin in range(0, len(values), CHUNK_ROWS):
        words = np.ascontiguousarray(values[begin : begin + CHUNK_ROWS], dtype="<i8").view("<u4")
        state = mix_hash(np.zeros(len(words) // 2, dtype=np.uint32), words[0::2])
        hashes[begin : begin + CHUNK_ROWS] = finish(mix_hash(state, words[1::2]), np.uint32(8))
    return hashes


def _hash_byte_strings(array: pa.Array) -> UInt32Array:
    starts, lengths, data = byte_strings(array)
    words = words_at_every_byte(data)
    hashes = np.empty(len(starts), dtype=np.uint32)
    for begin in range(0, len(starts), CHUNK_ROWS):
        chunk = slice(begin, begin + CHUNK_ROWS)
        hashes[chunk] = _hash_chunk(starts[chunk], lengths[chunk], words)
    return hashes


def _hash_chunk(starts: Int64Array, lengths: Int64Array, words: UInt32Array) -> UInt32Array:
    word_counts = lengths >> 2
    count_min, count_max = int(word_counts.min()), int(word_counts.max())
    if count_min == count_max:
        return _hash_sorted(starts, lengths, words, [len(starts)] * count_max)
    # Longest first, so that the rows with an i-th word are always a prefix.
    order = np.argsort(-word_counts, kind="stable")
    counts_ascending = word_counts[order][::-1]
    alive = len(starts) - np.searchsorted(counts_ascending, np.arange(count_max), side="right")
    hashes = np.empty(len(starts), dtype=np.uint32)
    hashes[order] = _hash_sorted(starts[order], lengths[order], words, alive.tolist())
    return hashes


def _hash_sorted(starts: Int64Array, lengths: Int64Array, words: UInt32Array, alive: list[int]) -> UInt32Array:
    """Hash values. The first ``alive[i]`` values have an i-th whole word."""
    state = np.zeros(len(starts), dtype=np.uint32)
    for i, count in enumerate(alive):
        state[:count] = mix_hash(state[:count], words[starts[:count] + 4 * i])
    tail = words[starts + (lengths & ~np.int64(3))] & TAIL_MASKS[lengths & 3]
    return finish(state ^ mix_word(tail), lengths.astype(np.uint32))


def _hash_decimals(array: pa.Array) -> UInt32Array:
    """Hash decimals as the shortest two's complement of their unscaled value, big endian."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype=np.uint32)
    halves = np.frombuffer(data, dtype="<u8", count=2 * (array.offset + len(array)))[2 * array.offset :]
    hashes = np.empty(len(array), dtype=np.uint32)
    for begin in range(0, len(array), CHUNK_ROWS):
        rows = halves[2 * begin : 2 * (begin + CHUNK_ROWS)]
        # Reversing all 16 bytes of each little endian value gives its big endian form.
        big_endian = np.ascontiguousarray(rows.view(np.uint8).reshape(-1, 16)[:, ::-1])
        lengths = _shortest_lengths(big_endian)
        ends = np.arange(1, len(big_endian) + 1, dtype=np.int64) * 16
        hashes[begin : begin + CHUNK_ROWS] = _hash_chunk(
            ends - lengths, lengths, words_at_every_byte(big_endian.reshape(-1))
        )
    return hashes


def _shortest_lengths(big_endian: npt.NDArray[np.uint8]) -> Int64Array:
    """Return the number of significant bytes of each 16-byte value, including its sign bit."""
    sign_byte = np.where(big_endian[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    significant = (big_endian ^ sign_byte) != 0
    first = np.where(significant.any(axis=1), significant.argmax(axis=1), 15)
    leading = np.take_along_axis(big_endian, first[:, None], axis=1)[:, 0]
    needs_sign_byte = (leading ^ sign_byte[:, 0]) >= 0x80
    lengths: Int64Array = 16 - first.astype(np.int64) + needs_sign_byte
    return lengths


# -- Paimon ------------------------------------------------------------------------------------------------------------

DECIMAL_PRECISION_MAX = 18
"""Largest precision for which Paimon's Java and Python libraries use the same bytes. Above it, -128 has one byte in
Java and two bytes in Python.
"""
_SHORT_BYTES_MAX = 7
"""Values of up to this many bytes are stored in their word."""
_NO_WORDS: Final = np.zeros(0, np.uint32)


def is_paimon_bucketable(data_type: pa.DataType) -> bool:
    is_type = pa.types
    return (
        (is_type.is_timestamp(data_type) and data_type.unit == "us")
        or _fixed_width_words(pa.nulls(0, data_type)) is not None
        or _is_byte_string(data_type)
    )


def paimon_buckets(columns: Sequence[pa.Array | pa.ChunkedArray], num_buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each row, in ``[0, num_buckets)``, also for null fields.

    Raises `TypeError` for a type that is not `is_paimon_bucketable` and for more than `BUCKET_KEY_COLUMNS_MAX` columns,
    `ValueError` if ``num_buckets`` is below 1 or there are no columns.
    """
    if num_buckets < 1 or not columns:
        raise ValueError(f"num_buckets is {num_buckets} with {len(columns)} columns, expected at least 1 of each")
    unable = [str(column.type) for column in columns if not is_paimon_bucketable(column.type)]
    if unable or len(columns) > BUCKET_KEY_COLUMNS_MAX:
        raise TypeError(f"Paimon has no bucket for {len(columns)} columns, or for type {', '.join(unable)}")
    buckets = np.empty(len(columns[0]), dtype=np.int32)
    for begin in range(0, len(buckets), CHUNK_ROWS):
        fields = [_Field.of(_one_chunk(column.slice(begin, CHUNK_ROWS))) for column in columns]
        hashes = _hash_rows(fields).view(np.int32).astype(np.int64)
        buckets[begin : begin + CHUNK_ROWS] = np.abs(np.fmod(hashes, num_buckets))
    return buckets


def _hash_rows(fields: Sequence[_Field]) -> UInt32Array:
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
    """One field of some rows. The words of the fields are called slots; long values follow the slots.

    The slot of a long value contains ``low`` and the value's position.
    """

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
        fixed = _fixed_width_words(array)
        if fixed is not None:
            slots = np.where(is_null, 0, fixed).astype("<i8").view("<u4")
            return cls(is_null, slots[0::2].copy(), slots[1::2].copy(), zeros, zeros, zeros, _NO_WORDS)
        starts, lengths, data = byte_strings(array)
        lengths = np.where(is_null, 0, lengths)
        words = words_at_every_byte(data)
        is_short = lengths <= _SHORT_BYTES_MAX
        marked = (lengths.astype(np.uint32) | np.uint32(0x80)) << np.uint32(24)
        low = np.where(is_short, _word(words, starts, lengths, 0), lengths.astype(np.uint32))
        high = np.where(is_short, (_word(words, starts, lengths, 1) & TAIL_MASKS[3]) | marked, np.uint32(0))
        low, high = np.where(is_null, np.uint32(0), low), np.where(is_null, np.uint32(0), high)
        tail_bytes = np.where(is_short, 0, lengths)
        return cls(is_null, low, high, (tail_bytes + 7) // 8 * 2, starts, tail_bytes, words)

    def slot(self, end: Int64Array) -> tuple[UInt32Array, UInt32Array]:
        """Return the two halves of the field's slot. A long value starts at ``end``."""
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


def _fixed_width_words(array: pa.Array) -> Int64Array | None:
    """Return the slots of a type whose values always fit into a slot, arbitrary under nulls. None for other types."""
    is_type, data_type = pa.types, array.type
    if is_type.is_int64(data_type):
        return as_int64(array)
    if is_type.is_signed_integer(data_type) or is_type.is_date32(data_type):
        # Without sign extension, so the hash of a number depends on its type.
        return as_int64(array) & np.int64((1 << data_type.bit_width) - 1)
    if is_type.is_decimal128(data_type) and data_type.precision <= DECIMAL_PRECISION_MAX:
        return _unscaled_decimals(array)
    return None


def _unscaled_decimals(array: pa.Array) -> Int64Array:
    """Return the unscaled values of decimals of up to 18 digits."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype=np.int64)
    halves = np.frombuffer(data, dtype="<i8", count=2 * (array.offset + len(array)))
    return np.ascontiguousarray(halves[2 * array.offset :: 2])


def _word(words: UInt32Array, starts: Int64Array, lengths: Int64Array, i: int) -> UInt32Array:
    """Return the i-th four bytes of each value, with zeros after its end."""
    left = np.clip(lengths - 4 * i, 0, 4)
    # Values that have ended read index 0, because their position may be out of bounds.
    word: UInt32Array = words[np.where(left > 0, starts + 4 * i, 0)] & TAIL_MASKS[left]
    return word


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])


# -- both --------------------------------------------------------------------------------------------------------------


def buckets_of(column: pa.Array | pa.ChunkedArray, num_buckets: int, lake_format: LakeFormat) -> npt.NDArray[np.int32]:
    """Return `row_buckets` for a bucket key of one column."""
    return row_buckets([column], num_buckets, lake_format)


def row_buckets(
    columns: Sequence[pa.Array | pa.ChunkedArray], num_buckets: int, lake_format: LakeFormat
) -> npt.NDArray[np.int32]:
    """Return the bucket of each row, in ``[0, num_buckets)``, for a bucket key of one or, with Paimon, several columns.

    Raises `TypeError` for a type that cannot be a bucket key, `ValueError` if ``num_buckets`` is below 1.
    """
    if lake_format == "paimon":
        return paimon_buckets(columns, num_buckets)
    if len(columns) != 1:
        raise TypeError(f"found {len(columns)} columns, expected one: an Iceberg bucket key has one column")
    return iceberg_buckets(columns[0], num_buckets)
