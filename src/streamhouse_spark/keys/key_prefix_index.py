"""Membership tests of a few keys in many, without hashing the many: by an eight-byte prefix of each, computed once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

HEAD_BYTES = 8


class KeyPrefixIndex:
    """Distinct ascending keys, with the bytes of each after the common prefix as a number.

    Keys to test are compared byte by byte only with those of the same number.
    """

    def __init__(self, keys: pa.BinaryArray) -> None:
        """``keys`` must be ascending, and at least one."""
        self._keys = keys
        self._common = _common_prefix(keys[0].as_py(), keys[len(keys) - 1].as_py())
        self._heads = _heads(keys, len(self._common))

    def contains(self, keys: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """Return which of ``keys``, in any order, are in the set."""
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
        """Return the indexes of the keys with these numbers, which are distinct."""
        lows = np.searchsorted(self._heads, heads, "left")
        counts = np.searchsorted(self._heads, heads, "right") - lows
        firsts = np.cumsum(counts) - counts
        places: npt.NDArray[np.int64] = np.arange(int(counts.sum())) + np.repeat(lows - firsts, counts)
        return places


def _common_prefix(first: bytes, last: bytes) -> bytes:
    """Return the common prefix of the first and the last key, and so of all keys between them."""
    differ = (place for place, (low, high) in enumerate(zip(first, last, strict=False)) if low != high)
    return first[: next(differ, min(len(first), len(last)))]


def _heads(keys: pa.BinaryArray, skipped: int) -> npt.NDArray[np.uint64]:
    """Return eight bytes of each key after the first ``skipped`` ones as a number, padded with zeros, in key order."""
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
