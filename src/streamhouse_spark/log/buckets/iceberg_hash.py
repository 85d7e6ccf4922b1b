"""The bucket of a row by Iceberg's `bucket[N]` transform.

A hot bucket therefore maps to exactly one lake bucket, and tiering needs no shuffle. The hash is murmur3 (x86, 32 bits,
seed 0) over the bytes that the Iceberg specification defines for each type. The bucket is ``(hash & 0x7fffffff) % N``.
The specification gives nulls no bucket: here they go to bucket 0. All hashes are vectorised.
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
    mix_word,
    words_at_every_byte,
)


def iceberg_buckets(column: pa.Array | pa.ChunkedArray, num_buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each row, in ``[0, num_buckets)``; 0 for nulls.

    Raises `TypeError` for an unsupported type, `ValueError` if ``num_buckets`` is below 1.
    """
    if num_buckets < 1:
        raise ValueError(f"num_buckets must be at least 1, not {num_buckets}")
    hasher = _hasher_of(column.type)
    if hasher is None:
        raise TypeError(f"Iceberg has no bucket for type {column.type}")
    return buckets_of(column, lambda chunk: (hasher(chunk) & np.uint32(0x7FFFFFFF)) % np.uint32(num_buckets), of_null=0)


def _hasher_of(data_type: pa.DataType) -> Callable[[pa.Array], UInt32Array] | None:
    """Return the function that hashes an array of the type. Hashes under nulls are arbitrary."""
    is_type = pa.types
    if is_type.is_uint64(data_type):
        return None
    if is_type.is_integer(data_type) or is_type.is_date32(data_type):
        return lambda array: _hash_int64(as_int64(array))
    if is_type.is_timestamp(data_type) and data_type.unit == "us":
        return lambda array: _hash_int64(as_int64(array))
    if is_type.is_decimal128(data_type):
        return _hash_decimals
    if is_type.is_string(data_type) or is_type.is_binary(data_type):
        return lambda array: _hash_byte_strings(*byte_strings(array, np.int32))
    if is_type.is_large_string(data_type) or is_type.is_large_binary(data_type):
        return lambda array: _hash_byte_strings(*byte_strings(array, np.int64))
    return None


# -- murmur3 with seed 0 ----------------------------------------------------------------------------------------------


def _hash_int64(values: Int64Array) -> UInt32Array:
    """Hash integers, dates and timestamps as eight bytes, little endian: a widened column keeps its buckets."""
    hashes = np.empty(len(values), dtype=np.uint32)
    for begin in range(0, len(values), CHUNK_ROWS):
        words = np.ascontiguousarray(values[begin : begin + CHUNK_ROWS], dtype="<i8").view("<u4")
        state = mix_hash(np.zeros(len(words) // 2, dtype=np.uint32), words[0::2])
        hashes[begin : begin + CHUNK_ROWS] = finish(mix_hash(state, words[1::2]), np.uint32(8))
    return hashes


def _hash_byte_strings(starts: Int64Array, lengths: Int64Array, data: npt.NDArray[np.uint8]) -> UInt32Array:
    """Hash ``data[start : start + length]`` for each row."""
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
    # Longest first, so that the rows that still have an i-th word are always a prefix.
    order = np.argsort(-word_counts, kind="stable")
    counts_ascending = word_counts[order][::-1]
    alive = len(starts) - np.searchsorted(counts_ascending, np.arange(count_max), side="right")
    hashes = np.empty(len(starts), dtype=np.uint32)
    hashes[order] = _hash_sorted(starts[order], lengths[order], words, alive.tolist())
    return hashes


def _hash_sorted(starts: Int64Array, lengths: Int64Array, words: UInt32Array, alive: list[int]) -> UInt32Array:
    """Hash rows of which the first ``alive[i]`` have an i-th whole word."""
    state = np.zeros(len(starts), dtype=np.uint32)
    for i, count in enumerate(alive):
        state[:count] = mix_hash(state[:count], words[starts[:count] + 4 * i])
    tail = words[starts + (lengths & ~np.int64(3))] & TAIL_MASKS[lengths & 3]
    return finish(state ^ mix_word(tail), lengths.astype(np.uint32))


# -- decimals ---------------------------------------------------------------------------------------------------------


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
