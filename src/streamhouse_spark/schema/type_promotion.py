"""Type promotion: columns of an older type cast to the column's current type. All such casts happen here.

Nested fields are matched by id, while Arrow's own cast of a struct matches by name and returns null for a missing name.
Vectorised: leaf arrays are reused or cast; nulls and the lengths of arrays and maps do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from streamhouse_spark.schema.nested_fields import count_fields
from streamhouse_spark.schema.variant import is_struct

ColumnCast = Callable[[pa.Array], pa.Array]
Ids = Sequence[int | None]
"""Ids of the nested fields of a type, see `streamhouse_spark.schema.nested_fields`. None marks a stored field that is
not read, and a target field that reads as null.
"""

_Left = Iterator[int | None]


def make_cast(before: pa.DataType, before_ids: Ids, after: pa.DataType, after_ids: Ids) -> ColumnCast:
    """Return the function that casts arrays of the type ``before`` to the type ``after``.

    Both have the same shape, except for struct fields, their order, and widened plain types.
    """
    return _make_cast(before, iter(before_ids), after, iter(after_ids)) or _cast_to(after)


def _make_cast(before: pa.DataType, before_ids: _Left, after: pa.DataType, after_ids: _Left) -> ColumnCast | None:
    """Return the cast function; None if a plain cast, or none, is sufficient."""
    types = pa.types
    if is_struct(before) and is_struct(after):
        return _struct(before, before_ids, after, after_ids)
    if types.is_list(before) and types.is_list(after):
        inner = _make_cast(before.value_type, before_ids, after.value_type, after_ids)
        return None if inner is None else _list(inner, after)
    if types.is_map(before) and types.is_map(after):
        key = _make_cast(before.key_type, before_ids, after.key_type, after_ids) or _cast_to(after.key_type)
        item = _make_cast(before.item_type, before_ids, after.item_type, after_ids)
        return None if item is None else _map(key, item, after)
    return None


def _struct(before: pa.DataType, before_ids: _Left, after: pa.DataType, after_ids: _Left) -> ColumnCast | None:
    stored = {}
    for place, child in enumerate(before):
        own, inner = next(before_ids), _field_positions(before_ids, child.type)
        if own is not None:
            stored[own] = place, child.type, inner
    parts: list[tuple[int, ColumnCast] | None] = []
    is_same = before.num_fields == after.num_fields
    for place, child in enumerate(after):
        own, child_ids = next(after_ids), _field_positions(after_ids, child.type)
        if own is None or own not in stored:
            parts.append(None)
            is_same = False
            continue
        at, kind, inner = stored[own]
        child_cast = _make_cast(kind, iter(inner), child.type, iter(child_ids))
        is_same = is_same and child_cast is None and at == place and before.field(at).name == child.name
        parts.append((at, child_cast or _cast_to(child.type)))
    return None if is_same else _struct_of(parts, after)


def _field_positions(ids: _Left, data_type: pa.DataType) -> list[int | None]:
    return [next(ids) for _ in range(count_fields(data_type))]


def _struct_of(parts: Sequence[tuple[int, ColumnCast] | None], after: pa.DataType) -> ColumnCast:
    fields = list(after)

    def cast_struct(array: pa.Array) -> pa.Array:
        children = [
            pa.nulls(len(array), child.type) if part is None else part[1](array.field(part[0]))
            for part, child in zip(parts, fields, strict=True)
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    return cast_struct


def _list(inner: ColumnCast, after: pa.DataType) -> ColumnCast:
    def cast_list(array: pa.Array) -> pa.Array:
        offsets, first, last = _own_offsets(array)
        values = inner(array.values.slice(first, last - first))
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(offsets, values, type=after, mask=mask)

    return cast_list


def _map(key: ColumnCast, item: ColumnCast, after: pa.DataType) -> ColumnCast:
    def cast_map(array: pa.Array) -> pa.Array:
        offsets, first, last = _own_offsets(array)
        keys, items = (values.slice(first, last - first) for values in (array.keys, array.items))
        mask = array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(offsets, key(keys), item(items), type=after, mask=mask)

    return cast_map


def _own_offsets(array: pa.Array) -> tuple[pa.Array, int, int]:
    """Return the offsets of an array or map rebased to 0, and the original first and last one."""
    if not len(array):
        return pa.array(np.zeros(1, np.int32)), 0, 0
    offsets = array.offsets.to_numpy()
    return pa.array(offsets - offsets[0]), int(offsets[0]), int(offsets[-1])


def _cast_to(after: pa.DataType) -> ColumnCast:
    return lambda array: array if array.type.equals(after) else array.cast(after)
