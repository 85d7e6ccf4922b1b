"""Which of some keys are among many others, told without hashing the many: by eight bytes of each, taken once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

HEAD_BYTES = 8


class KeyHeads:
    """Many keys, each once, ascending. Of each the first bytes behind those that all have in common are a number.

    Keys that are asked for are compared with those of the same number only, byte by byte.
    """

    def __init__(self, keys: pa.BinaryArray) -> None:
        """``keys`` are one at least."""
        self._keys = keys
        self._common = _common(keys[0].as_py(), keys[len(keys) - 1].as_py())
        self._heads = _heads(keys, len(self._common))

    def have(self, keys: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """Which of the keys, in any order, are among these."""
        heads = _heads(keys, len(self._common))
        lows = np.searchsorted(self._heads, heads, "left")
        found: npt.NDArray[np.bool_] = self._heads[np.minimum(lows, len(self._heads) - 1)] == heads
        if self._common:
            found &= pc.starts_with(keys, pattern=self._common).to_numpy(zero_copy_only=False)
        if found.any():
            alike = self._keys.take(pa.array(self._places(np.unique(heads[found]))))
            asked = keys.filter(pa.array(found))
            found[found] = pc.is_in(asked, value_set=alike).to_numpy(zero_copy_only=False)
        return found

    def _places(self, heads: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Where the keys of these numbers, which are different ones, lie."""
        lows = np.searchsorted(self._heads, heads, "left")
        counts = np.searchsorted(self._heads, heads, "right") - lows
        firsts = np.cumsum(counts) - counts
        places: npt.NDArray[np.int64] = np.arange(int(counts.sum())) + np.repeat(lows - firsts, counts)
        return places


def _common(first: bytes, last: bytes) -> bytes:
    """What both begin with, and so do all keys between."""
    differ = (place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    return first[: next(differ, min(len(first), len(last)))]


def _heads(keys: pa.BinaryArray, skipped: int) -> npt.NDArray[np.uint64]:
    """Bytes behind the first ``skipped`` of each key as a number, zeros behind its end, in the order of the keys."""
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, keys.offset + len(keys) + 1)[keys.offset :].astype(np.int64)
    data = np.zeros(1, np.uint8)
    if data_buffer is not None and data_buffer.size:
        data = np.frombuffer(data_buffer, np.uint8)
    heads = np.zeros(len(keys), np.uint64)
    for place in range(skipped, skipped + HEAD_BYTES):
        at = offsets[:-1] + place
        found = np.where(at < offsets[1:], data[np.minimum(at, len(data) - 1)], np.uint8(0))
        heads = (heads << np.uint64(8)) | found
    return heads
