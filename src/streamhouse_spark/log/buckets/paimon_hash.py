"""The bucket of a row by Paimon's default bucket function, for tables with a Paimon lake.

The hash is murmur3 (x86, 32 bits, seed 42) over Paimon's binary form of a row with the bucket key as its only field.
The bucket is the absolute value of the remainder of the signed hash by the number of buckets. The binary form has an
eight-byte word for nulls, and a word with a short value or with position and length of a longer one. The longer value
follows, padded with zeros to whole words. All hashes are vectorised.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.log.buckets.murmur import (
    CHUNK_ROWS,
    TAIL_MASKS,
    Int64Array,
    UInt32Array,
    as_int64,
    buckets_of,
    byte_strings,
    finish,
    mix_hash,
    words_at_every_byte,
)

DECIMAL_PRECISION_MAX = 18
"""Largest precision on which Paimon's own libraries agree: above it, -128 has one byte in Java, the shortest form, and
two in Python.
"""
SHORT_BYTES_MAX = 7
"""Values of up to this many bytes are stored in their word."""
_VALUE_OFFSET = 16
"""Position of a longer value, after the two words."""


def is_paimon_bucketable(data_type: pa.DataType) -> bool:
    return _hasher_of(data_type) is not None


def paimon_buckets(column: pa.Array | pa.ChunkedArray, num_buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each row, in ``[0, num_buckets)``, also for nulls.

    Raises `TypeError` for a type that is not `is_paimon_bucketable`, `ValueError` if ``num_buckets`` is below 1.
    """
    if num_buckets < 1:
        raise ValueError(f"num_buckets must be at least 1, not {num_buckets}")
    hasher = _hasher_of(column.type)
    if hasher is None:
        raise TypeError(f"a Paimon bucket cannot be taken of type {column.type}")
    of_null = int(buckets_of_hashes(_hash_null(), num_buckets)[0])
    return buckets_of(column, lambda chunk: buckets_of_hashes(hasher(chunk), num_buckets), of_null=of_null)


def buckets_of_hashes(hashes: UInt32Array, num_buckets: int) -> Int64Array:
    """Apply Paimon's default bucket function to the hashes."""
    buckets: Int64Array = np.abs(np.fmod(hashes.view(np.int32).astype(np.int64), num_buckets))
    return buckets


def _hasher_of(data_type: pa.DataType) -> Callable[[pa.Array], UInt32Array] | None:
    """Return the function that hashes an array of the type. Hashes under nulls are arbitrary."""
    is_type = pa.types
    if is_type.is_timestamp(data_type) and data_type.unit == "us":
        return lambda array: _hash_timestamps(as_int64(array))
    if fixed_width_words(pa.nulls(0, data_type)) is not None:
        return _hash_fixed
    if is_type.is_string(data_type) or is_type.is_binary(data_type):
        return lambda array: _hash_byte_strings(*byte_strings(array, np.int32))
    if is_type.is_large_string(data_type) or is_type.is_large_binary(data_type):
        return lambda array: _hash_byte_strings(*byte_strings(array, np.int64))
    return None


def fixed_width_words(array: pa.Array) -> Int64Array | None:
    """Return the words of fields whose values always fit into them, arbitrary under nulls. None for other types."""
    is_type, data_type = pa.types, array.type
    if is_type.is_int64(data_type):
        return as_int64(array)
    if is_type.is_signed_integer(data_type) or is_type.is_date32(data_type):
        # Without sign extension: the rest of the word is zeros, so the hash of a number depends on its type.
        return as_int64(array) & np.int64((1 << data_type.bit_width) - 1)
    if is_type.is_decimal128(data_type) and data_type.precision <= DECIMAL_PRECISION_MAX:
        return _unscaled_decimals(array)
    return None


def _hash_fixed(array: pa.Array) -> UInt32Array:
    values = fixed_width_words(array)
    assert values is not None
    return _hash_words(values)


def _unscaled_decimals(array: pa.Array) -> Int64Array:
    """Return the values of decimals of up to 18 digits: their lower half."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype=np.int64)
    halves = np.frombuffer(data, dtype="<i8", count=2 * (array.offset + len(array)))
    return np.ascontiguousarray(halves[2 * array.offset :: 2])


# -- murmur3 with seed 42 ---------------------------------------------------------------------------------------------


def _begin(num_rows: int, first_word: int = 0) -> UInt32Array:
    """Return the hash state after the word of null flags."""
    state = mix_hash(np.full(num_rows, 42, dtype=np.uint32), np.full(num_rows, first_word, dtype=np.uint32))
    return mix_hash(state, np.zeros(num_rows, dtype=np.uint32))


def _hash_null() -> UInt32Array:
    state, zero = _begin(1, 0x100), np.zeros(1, dtype=np.uint32)
    return finish(mix_hash(mix_hash(state, zero), zero), np.uint32(_VALUE_OFFSET))


def _hash_words(values: Int64Array) -> UInt32Array:
    """Hash rows whose field is these eight bytes, little endian."""
    hashes = np.empty(len(values), dtype=np.uint32)
    for begin in range(0, len(values), CHUNK_ROWS):
        part = values[begin : begin + CHUNK_ROWS]
        hashes[begin : begin + CHUNK_ROWS] = finish(_with(_begin(len(part)), part), np.uint32(_VALUE_OFFSET))
    return hashes


def _with(state: UInt32Array, values: Int64Array) -> UInt32Array:
    words = np.ascontiguousarray(values, dtype="<i8").view("<u4")
    return mix_hash(mix_hash(state, words[0::2]), words[1::2])


def _hash_timestamps(micros: Int64Array) -> UInt32Array:
    """Hash timestamps: nanoseconds of the millisecond with the position of the milliseconds, then the milliseconds."""
    hashes = np.empty(len(micros), dtype=np.uint32)
    for begin in range(0, len(micros), CHUNK_ROWS):
        millis, rest = np.divmod(micros[begin : begin + CHUNK_ROWS], 1000)
        state = _with(_begin(len(millis)), rest * 1000 + (_VALUE_OFFSET << 32))
        hashes[begin : begin + CHUNK_ROWS] = finish(_with(state, millis), np.uint32(_VALUE_OFFSET + 8))
    return hashes


def _hash_byte_strings(starts: Int64Array, lengths: Int64Array, data: npt.NDArray[np.uint8]) -> UInt32Array:
    """Hash rows whose field is ``data[start : start + length]``."""
    words = words_at_every_byte(data)
    hashes = np.empty(len(starts), dtype=np.uint32)
    for begin in range(0, len(starts), CHUNK_ROWS):
        chunk = slice(begin, begin + CHUNK_ROWS)
        hashes[chunk] = _hash_chunk(starts[chunk], lengths[chunk], words)
    return hashes


def _hash_chunk(starts: Int64Array, lengths: Int64Array, words: UInt32Array) -> UInt32Array:
    is_short = lengths <= SHORT_BYTES_MAX
    num_words = np.where(is_short, 0, (lengths + 7) // 8 * 2)
    # Longest first, so that the rows that still have an i-th word are always a prefix.
    order = np.argsort(-num_words, kind="stable")
    starts, lengths, num_words, is_short = starts[order], lengths[order], num_words[order], is_short[order]
    low = np.where(is_short, _word(words, starts, lengths, 0), lengths.astype(np.uint32))
    high = np.where(is_short, _short_end(words, starts, lengths), np.uint32(_VALUE_OFFSET))
    state = mix_hash(mix_hash(_begin(len(starts)), low), high)
    alive = len(starts) - np.searchsorted(num_words[::-1], np.arange(int(num_words[0])), side="right")
    for i, count in enumerate(alive.tolist()):
        state[:count] = mix_hash(state[:count], _word(words, starts[:count], lengths[:count], i))
    hashes = np.empty(len(starts), dtype=np.uint32)
    hashes[order] = finish(state, (_VALUE_OFFSET + 4 * num_words).astype(np.uint32))
    return hashes


def _word(words: UInt32Array, starts: Int64Array, lengths: Int64Array, i: int) -> UInt32Array:
    """Return the i-th four bytes of each value, with zeros after its end."""
    left = np.clip(lengths - 4 * i, 0, 4)
    # Values that have ended read index 0, because their position may be out of bounds.
    word: UInt32Array = words[np.where(left > 0, starts + 4 * i, 0)] & TAIL_MASKS[left]
    return word


def _short_end(words: UInt32Array, starts: Int64Array, lengths: Int64Array) -> UInt32Array:
    """Return bytes four to six of a short value, and its length with the flag of a short value."""
    marked = np.clip(lengths, 0, SHORT_BYTES_MAX).astype(np.uint32) | np.uint32(0x80)
    word: UInt32Array = (_word(words, starts, lengths, 1) & TAIL_MASKS[3]) | (marked << np.uint32(24))
    return word
