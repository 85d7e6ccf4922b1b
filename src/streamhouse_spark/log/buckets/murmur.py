"""Vectorised murmur3 (x86, 32 bits), and column values as its input words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
    """Return a view with the four bytes from i on at index i, little endian, padded with zeros at the end."""
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    view: UInt32Array = np.ndarray((len(data) + 5,), dtype="<u4", buffer=padded.data, strides=(1,))
    return view


def byte_strings(array: pa.Array, offset_dtype: npt.DTypeLike) -> tuple[Int64Array, Int64Array, npt.NDArray[np.uint8]]:
    """Return start and length of each value, and the bytes that they refer to (only those that the array uses)."""
    _, offset_buffer, data_buffer = array.buffers()
    if len(array) == 0 or offset_buffer is None:
        empty = np.zeros(len(array), dtype=np.int64)
        return empty, empty, np.zeros(0, dtype=np.uint8)
    offsets = np.frombuffer(offset_buffer, dtype=offset_dtype, count=array.offset + len(array) + 1)[array.offset :]
    first, last = int(offsets[0]), int(offsets[-1])
    starts = offsets.astype(np.int64) - first
    if data_buffer is None or last == first:
        return starts[:-1], np.diff(starts), np.zeros(0, dtype=np.uint8)
    return starts[:-1], np.diff(starts), np.frombuffer(data_buffer, dtype=np.uint8)[first:last]


def buckets_of(
    column: pa.Array | pa.ChunkedArray, buckets: Callable[[pa.Array], npt.NDArray[Any]], *, of_null: int
) -> npt.NDArray[np.int32]:
    """Return the bucket of each row; ``buckets`` computes those of a chunk, arbitrary under nulls."""
    row_buckets = np.empty(len(column), dtype=np.int32)
    position = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        part = row_buckets[position : position + len(chunk)]
        part[:] = buckets(chunk)
        if chunk.null_count:
            part[~validity(chunk)] = of_null
        position += len(chunk)
    return row_buckets
