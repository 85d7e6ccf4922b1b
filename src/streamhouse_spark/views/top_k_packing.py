"""The first values of groups as bytes, one value of a tablet for each group, and back. Vectorised both ways."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.kv.row_codec import Packed, RowCodec
from streamhouse_spark.kv.value_codec import bytes_of
from streamhouse_spark.views.ivm.min_max import ROOM, TopKGroups, TopKState

_COUNT = pa.int64()


class TopKCodec:
    """Packs the first values of groups, whose lists have these types.

    A group is a row: its numbers of rows and of room, and of each list the values, their counts, and the number of rows
    behind them. Values of a fixed width, and counts, lie there as Arrow has them, the others as lists.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = tuple(types)
        of_list = [kind for value_type in types for kind in (_cell_type(value_type), pa.binary(), _COUNT)]
        self._codec = RowCodec([_COUNT, _COUNT, *of_list])

    def pack(self, firsts: TopKGroups) -> list[bytes]:
        """Return the bytes of each group."""
        columns = [pa.array(firsts.rows), pa.array(firsts.room)]
        for first in firsts.lists:
            columns += [_to_cells(first.values, first.lengths), _to_cells(pa.array(first.counts), first.lengths)]
            columns.append(pa.array(first.overflow))
        return bytes_of(self._codec.pack(columns))

    def unpack(self, packed: Sequence[bytes | None]) -> TopKGroups:
        """Return the groups; those without bytes have no rows."""
        is_present = np.fromiter((value is not None for value in packed), np.bool_, len(packed))
        columns = self._codec.unpack(Packed.of([value for value in packed if value is not None]))
        rows, room = (_scatter(column, is_present) for column in columns[:2])
        lists = []
        for kind, (cells, counts, overflow) in zip(self._types, _chunk_in_threes(columns[2:]), strict=True):
            values, _ = _flatten_cells(cells, kind)
            numbers, lengths = _flatten_cells(counts, _COUNT)
            lengths_of_all = np.zeros(len(packed), np.int64)
            lengths_of_all[is_present] = lengths
            lists.append(TopKState(values, _to_int64(numbers), lengths_of_all, _scatter(overflow, is_present)))
        return TopKGroups(rows, np.where(is_present, room, ROOM), tuple(lists))


def _chunk_in_threes(columns: Sequence[pa.Array]) -> list[tuple[pa.Array, pa.Array, pa.Array]]:
    return [(columns[i], columns[i + 1], columns[i + 2]) for i in range(0, len(columns), 3)]


def _is_fixed_width(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal128(kind)) and not pa.types.is_boolean(kind)


def _cell_type(kind: pa.DataType) -> pa.DataType:
    return pa.binary() if _is_fixed_width(kind) else pa.list_(kind)


def _to_cells(values: pa.Array, lengths: npt.NDArray[np.int64]) -> pa.Array:
    """Return the values of each group as one value."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if not _is_fixed_width(values.type):
        return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), values)
    width = values.type.bit_width // 8
    data = values.buffers()[1]
    data = pa.py_buffer(b"") if data is None else data.slice(values.offset * width, len(values) * width)
    offsets = pa.py_buffer((ends * width).astype(np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [None, offsets, data])


def _flatten_cells(cells: pa.Array, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the values of all groups, and how many each has."""
    offsets = np.frombuffer(cells.buffers()[1], np.int32, cells.offset + len(cells) + 1)[cells.offset :]
    lengths: npt.NDArray[np.int64] = np.diff(offsets).astype(np.int64)
    if not _is_fixed_width(kind):
        return cells.flatten(), lengths
    width = kind.bit_width // 8
    size = int(lengths.sum()) // width
    data = cells.buffers()[2]
    data = pa.py_buffer(b"") if data is None else data.slice(int(offsets[0]), size * width)
    return pa.Array.from_buffers(kind, size, [None, data]), lengths // width


def _to_int64(values: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = values.to_numpy().astype(np.int64)
    return numbers


def _scatter(column: pa.Array, is_present: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the numbers of the groups that are there, 0 for the others."""
    numbers = np.zeros(len(is_present), np.int64)
    numbers[is_present] = _to_int64(column)
    return numbers
