"""Keys of maps, each of which a map has once, as Spark requires it: zeros of either sign are one key, NaN is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Indexes: TypeAlias = npt.NDArray[np.int64]


def holds_map(data_type: pa.DataType) -> bool:
    """Return whether the type is a map, or has one inside."""
    return types.is_map(data_type) or any(
        holds_map(data_type.field(number).type) for number in range(data_type.num_fields)
    )


def first_repeated_key(values: pa.ChunkedArray) -> int | None:
    """Return the first row with a map that has a key twice, anywhere inside; None where there is none."""
    before = 0
    for chunk in values.chunks:
        rows = np.concatenate([np.zeros(0, np.int64), *_repeating(chunk)])
        if len(rows):
            return before + int(rows.min())
        before += len(chunk)
    return None


def _repeating(array: pa.Array) -> Iterator[Indexes]:
    """Yield the positions of values with such a map."""
    if not holds_map(array.type):
        return
    if types.is_struct(array.type):
        for child in array.flatten():
            yield from _repeating(child)
        return
    if types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    offsets, is_valid = np.asarray(array.offsets, np.int64), np.asarray(array.is_valid())
    first, last = int(offsets[0]), int(offsets[-1])
    parents = np.repeat(np.arange(len(array)), np.diff(offsets))
    children = [array.items, array.keys] if types.is_map(array.type) else [array.values]
    repeating_rows = [rows for child in children for rows in _repeating(child.slice(first, last - first))]
    if types.is_map(array.type) and len(parents) and int(np.diff(offsets).max()) > 1:
        repeating_rows.append(_repeated(parents, _codes(array.keys.slice(first, last - first))))
    yield from (rows[is_valid[rows]] for rows in (parents[positions] for positions in repeating_rows))


def _repeated(parents: Indexes, codes: Indexes) -> Indexes:
    """Return the positions of keys that their parent has at another position too."""
    order = np.lexsort((codes, parents))
    is_same = (np.diff(parents[order]) == 0) & (np.diff(codes[order]) == 0)
    repeated: Indexes = order[1:][is_same]
    return repeated


def _codes(keys: pa.Array) -> Indexes:
    """Return a number for each key, the same for equal keys alone."""
    if types.is_struct(keys.type):
        codes = np.zeros(len(keys), np.int64)
        for child in keys.flatten():
            codes = _pairs(codes, _codes(child))
        return codes
    if types.is_list(keys.type) or types.is_large_list(keys.type):
        return _codes_of_lists(keys)
    if types.is_floating(keys.type):
        keys = pc.add(keys, pa.scalar(0.0, keys.type))
    encoded: Any = keys.dictionary_encode()
    return np.asarray(encoded.indices.fill_null(-1), np.int64)


def _codes_of_lists(keys: pa.Array) -> Indexes:
    offsets = np.asarray(keys.offsets, np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    of_values = np.append(_codes(keys.values.slice(first, last - first)), -2)
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    codes = np.where(np.asarray(keys.is_valid()), lengths, -1)
    for place in range(int(lengths.max(initial=0))):
        codes = _pairs(codes, of_values[np.where(place < lengths, starts + place, -1)])
    return codes


def _pairs(left: Indexes, right: Indexes) -> Indexes:
    _, codes = np.unique(np.stack([left, right]), axis=1, return_inverse=True)
    return np.asarray(codes, np.int64).reshape(-1)
