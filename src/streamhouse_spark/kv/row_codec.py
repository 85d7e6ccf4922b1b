"""Encoding of rows as bytes for tablets, vectorized over Arrow arrays in both directions.

A row is ``[null bits][fixed-width columns][u32 length of each other column][their bytes]``, packed, little endian.
Nested columns are encoded recursively. A struct is a row. A list is ``[u32 count][u32 length of each
element][elements]``; each element is a row of one column. A map is a list of entries. A null value is zero or has no
bytes, so equal rows have equal bytes. Floats are equal if their bits are. A tablet's value is a row prefixed with the
id of the schema that wrote it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.keys.keyed_batch import KeyedRows
from streamhouse_spark.schema.evolution import cast_of_column
from streamhouse_spark.schema.table_schema import Column, TableSchema

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_LENGTH = np.dtype("<u4")
_SCHEMA_ID = np.dtype("<u4")


@dataclass(frozen=True, slots=True)
class PackedStrings:
    """Byte strings in one buffer, in order and without overlap. String i is ``data[starts[i]:ends[i]]``."""

    data: Bytes
    starts: Int64Array
    ends: Int64Array

    @classmethod
    def of(cls, values: Sequence[bytes]) -> PackedStrings:
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        ends = np.cumsum(lengths)
        return cls(np.frombuffer(b"".join(values), np.uint8), ends - lengths, ends)

    def __len__(self) -> int:
        return len(self.starts)

    def skip_bytes(self, num_bytes: int) -> PackedStrings:
        """Return each string without its first ``num_bytes`` bytes."""
        return PackedStrings(self.data, self.starts + num_bytes, self.ends)

    def select(self, chosen: npt.NDArray[Any]) -> PackedStrings:
        return PackedStrings(self.data, self.starts[chosen], self.ends[chosen])

    def read_fixed(self, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the value of ``dtype`` at the start of each string."""
        if not len(self):
            return np.empty(0, dtype)
        width = dtype.itemsize
        return np.lib.stride_tricks.sliding_window_view(self.data, width)[self.starts].reshape(-1).view(dtype)


class RowCodec:
    """Encodes rows of these column types. Their order is part of the storage format."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = list(types)
        self._fixed = {i: dtype for i, t in enumerate(types) if (dtype := _fixed_dtype(t)) is not None}
        self._cells = {i: _cell_codec(t) for i, t in enumerate(types) if i not in self._fixed}
        fields: list[tuple[Any, ...]] = [("null", "u1", ((len(types) + 7) // 8,))]
        fields += [(f"c{i}", dtype) for i, dtype in self._fixed.items()]
        fields += [(f"l{i}", _LENGTH) for i in self._cells]
        self._header = np.dtype(fields)

    # -- packing --------------------------------------------------------------------------------------------------

    def pack(self, columns: Sequence[pa.Array], *, first: bytes = b"") -> pa.BinaryArray:
        """Return the bytes of each row, prefixed with ``first``. Their total must stay below 2 GiB."""
        num_rows = len(columns[0])
        header = np.zeros(num_rows, self._header)
        cells: list[pa.Array] = []
        for i, column in enumerate(columns):
            if column.null_count:
                header["null"][:, i >> 3] |= _bits(column.is_null()) << np.uint8(i & 7)
            if i in self._fixed:
                header[f"c{i}"] = _fixed_values(column, self._fixed[i])
            else:
                cell = self._cells[i].pack(column)
                header[f"l{i}"] = np.diff(_offsets(cell))
                cells.append(cell)
        width = self._header.itemsize
        parts = [_repeat_bytes(first, num_rows)] if first else []
        parts.append(_fixed_size(header, width))
        return parts[0] if len(parts) + len(cells) == 1 else pc.binary_join_element_wise(*parts, *cells, _empty())

    # -- unpacking ------------------------------------------------------------------------------------------------

    def unpack(self, rows: PackedStrings, indexes: Sequence[int] | None = None) -> list[pa.Array]:
        """Return the columns at ``indexes``; by default all columns."""
        header = rows.read_fixed(self._header)
        spans = self._spans(rows, header)
        columns = []
        for i in range(len(self._types)) if indexes is None else indexes:
            null = (header["null"][:, i >> 3] >> np.uint8(i & 7)) & np.uint8(1)
            if i in self._fixed:
                values = _fixed_array(header[f"c{i}"].copy(), self._types[i])  # the copy is aligned
                columns.append(_with_nulls(values, null) if null.any() else values)
            else:
                columns.append(self._cells[i].unpack(spans[i], null.astype(np.bool_)))
        return columns

    def _spans(self, rows: PackedStrings, header: npt.NDArray[Any]) -> dict[int, PackedStrings]:
        """Return the byte spans of each variable-width column."""
        spans = {}
        start = rows.starts + self._header.itemsize
        for i in self._cells:
            end = start + header[f"l{i}"]
            spans[i] = PackedStrings(rows.data, start, end)
            start = end
        return spans


# -- cells: columns without fixed width -------------------------------------------------------------------------------


class _Cell(ABC):
    """Encodes one variable-width column."""

    def __init__(self, data_type: pa.DataType) -> None:
        self._type = data_type

    @abstractmethod
    def pack(self, column: pa.Array) -> pa.BinaryArray:
        """Return the bytes of each value. A null has no bytes."""

    @abstractmethod
    def unpack(self, cells: PackedStrings, null: npt.NDArray[np.bool_]) -> pa.Array:
        """Return the values of the bytes."""


class _Bytes(_Cell):
    """Stores strings and binaries unchanged."""

    def pack(self, column: pa.Array) -> pa.BinaryArray:
        values = column.view(pa.binary()) if pa.types.is_string(column.type) else column
        return values.fill_null(b"") if values.null_count else values

    def unpack(self, cells: PackedStrings, null: npt.NDArray[np.bool_]) -> pa.Array:
        bounds = np.empty(2 * len(cells) + 1, np.int32)
        bounds[0:-1:2], bounds[1::2] = cells.starts, cells.ends
        bounds[-1] = bounds[-2] if len(cells) else 0
        with_gaps = pa.BinaryArray.from_buffers(
            pa.binary(), 2 * len(cells), [None, pa.py_buffer(bounds), pa.py_buffer(cells.data)]
        )
        values = with_gaps.take(pa.array(np.arange(0, 2 * len(cells), 2), mask=null if null.any() else None))
        return values.view(self._type)


class _Struct(_Cell):
    """Encodes a struct as a row of its fields."""

    def __init__(self, data_type: pa.StructType) -> None:
        super().__init__(data_type)
        self._rows = RowCodec([field.type for field in data_type])

    def pack(self, column: pa.StructArray) -> pa.BinaryArray:
        packed = self._rows.pack(column.flatten())
        return _empty_nulls(packed, column) if column.null_count else packed

    def unpack(self, cells: PackedStrings, null: npt.NDArray[np.bool_]) -> pa.Array:
        if not null.any():
            return pa.StructArray.from_arrays(self._rows.unpack(cells), fields=list(self._type))
        non_null = pa.StructArray.from_arrays(self._rows.unpack(cells.select(~null)), fields=list(self._type))
        return non_null.take(pa.array(np.cumsum(~null) - 1, mask=null))


class _List(_Cell):
    """Encodes a list as its count, the length of each element, and the elements as rows of one column."""

    def __init__(self, data_type: pa.ListType) -> None:
        super().__init__(data_type)
        self._elements = RowCodec([data_type.value_type])

    def pack(self, column: pa.ListArray) -> pa.BinaryArray:
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        elements = self._elements.pack([column.flatten()])
        ends = _offsets(elements).astype(np.int64)
        lengths = np.diff(ends).astype(_LENGTH)
        packed = pc.binary_join_element_wise(
            _fixed_size(counts.astype(_LENGTH), _LENGTH.itemsize),
            _slices(pa.py_buffer(lengths), bounds * _LENGTH.itemsize),
            _slices(elements.buffers()[2], ends[bounds]),
            _empty(),
        )
        return _empty_nulls(packed, column) if column.null_count else packed

    def unpack(self, cells: PackedStrings, null: npt.NDArray[np.bool_]) -> pa.Array:
        elements, counts = self._element_spans(cells.select(~null))
        all_counts = np.zeros(len(null), np.int32)
        all_counts[~null] = counts
        bounds = np.concatenate([np.zeros(1, np.int32), np.cumsum(all_counts, dtype=np.int32)])
        values = self._elements.unpack(elements)[0]
        mask = pa.array(null) if null.any() else None
        return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), values, type=self._type, mask=mask)

    @staticmethod
    def _element_spans(cells: PackedStrings) -> tuple[PackedStrings, Int64Array]:
        counts = cells.read_fixed(_LENGTH).astype(np.int64)
        counts_end = np.cumsum(counts)
        row = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(int(counts_end[-1]) if len(counts_end) else 0) - (counts_end - counts)[row]  # within its list
        at = cells.starts[row] + _LENGTH.itemsize * (place + 1)
        lengths = PackedStrings(cells.data, at, at + _LENGTH.itemsize).read_fixed(_LENGTH).astype(np.int64)
        before = np.cumsum(lengths) - lengths
        first = before[np.minimum(counts_end - counts, max(len(before) - 1, 0))] if len(before) else counts_end
        starts = (cells.starts + _LENGTH.itemsize * (counts + 1) - first)[row] + before
        return PackedStrings(cells.data, starts, starts + lengths), counts


class _Map(_Cell):
    """Encodes a map as the list of its entries."""

    def __init__(self, data_type: pa.MapType) -> None:
        super().__init__(data_type)
        entry = pa.struct([pa.field("key", data_type.key_type, nullable=False), pa.field("value", data_type.item_type)])
        self._list_type = pa.list_(entry)
        self._entries = _List(self._list_type)

    def pack(self, column: pa.MapArray) -> pa.BinaryArray:
        entries = pa.StructArray.from_arrays([column.keys, column.items], fields=list(self._list_type.value_type))
        validity, offsets = column.buffers()[:2]
        lists = pa.Array.from_buffers(
            self._list_type, len(column), [validity, offsets], column.null_count, column.offset, [entries]
        )
        return self._entries.pack(lists)

    def unpack(self, cells: PackedStrings, null: npt.NDArray[np.bool_]) -> pa.Array:
        lists = self._entries.unpack(cells, null)
        keys, items = lists.values.flatten()
        entries = pa.StructArray.from_arrays([keys, items], fields=[self._type.key_field, self._type.item_field])
        validity, offsets = lists.buffers()[:2]
        return pa.Array.from_buffers(
            self._type, len(lists), [validity, offsets], lists.null_count, lists.offset, [entries]
        )


def _cell_codec(data_type: pa.DataType) -> _Cell:
    if pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        return _Bytes(data_type)
    if pa.types.is_struct(data_type):
        return _Struct(data_type)
    if pa.types.is_list(data_type):
        return _List(data_type)
    if pa.types.is_map(data_type):
        return _Map(data_type)
    raise TypeError(f"type {data_type} has no encoding in tablets")


# -- fixed-width columns ----------------------------------------------------------------------------------------------


def _fixed_dtype(data_type: pa.DataType) -> np.dtype[Any] | None:
    if pa.types.is_boolean(data_type):
        return np.dtype("u1")
    if pa.types.is_decimal128(data_type):
        return np.dtype("V16")
    if pa.types.is_signed_integer(data_type) or pa.types.is_date32(data_type) or pa.types.is_timestamp(data_type):
        return np.dtype(f"<i{data_type.bit_width // 8}")
    if pa.types.is_floating(data_type):
        return np.dtype(f"<f{data_type.bit_width // 8}")
    return None


def _fixed_values(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if pa.types.is_boolean(column.type):
        return _bits(column)
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), dtype)
    values = np.frombuffer(data, dtype, column.offset + len(column))[column.offset :]
    if not column.null_count:
        return values
    values = values.copy()
    values[_bits(column.is_null()).view(np.bool_)] = np.zeros(1, dtype)[0]
    return values


def _fixed_array(values: npt.NDArray[Any], data_type: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(data_type):
        return pa.array(values.view(np.bool_))
    return pa.Array.from_buffers(data_type, len(values), [None, pa.py_buffer(values)], 0)


def _with_nulls(values: pa.Array, null: npt.NDArray[np.uint8]) -> pa.Array:
    validity = np.packbits(null == 0, bitorder="little")
    return pa.Array.from_buffers(values.type, len(values), [pa.py_buffer(validity), values.buffers()[1]])


# -- Arrow ------------------------------------------------------------------------------------------------------------


def _bits(flags: pa.BooleanArray) -> npt.NDArray[np.uint8]:
    values = flags.fill_null(False) if flags.null_count else flags
    bits: npt.NDArray[np.uint8] = values.to_numpy(zero_copy_only=False).view(np.uint8)
    return bits


def _offsets(array: pa.BinaryArray) -> npt.NDArray[np.int32]:
    return np.frombuffer(array.buffers()[1], np.int32, array.offset + len(array) + 1)[array.offset :]


def _fixed_size(values: npt.NDArray[Any], width: int) -> pa.BinaryArray:
    """Return the bytes of each fixed-width value."""
    return _slices(pa.py_buffer(np.ascontiguousarray(values)), np.arange(0, (len(values) + 1) * width, width))


def _repeat_bytes(value: bytes, count: int) -> pa.BinaryArray:
    return _slices(pa.py_buffer(value * count), np.arange(0, (count + 1) * len(value), len(value)))


@cache
def _empty() -> pa.Scalar:
    """Return the empty value. It is created on first use, because Arrow's first conversion of a value loads pandas."""
    return pa.scalar(b"", pa.binary())


def _slices(data: pa.Buffer | None, bounds: npt.NDArray[Any]) -> pa.BinaryArray:
    offsets = bounds.astype(np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(offsets), data or pa.py_buffer(b"")]
    )


def _empty_nulls(packed: pa.BinaryArray, column: pa.Array) -> pa.BinaryArray:
    """Return the byte strings, with empty strings for nulls of the column."""
    return pc.if_else(column.is_valid(), packed, _empty())


class UnknownSchemaError(Exception):
    """A value was written with a later schema than the state has: refresh the table's state."""


@dataclass(frozen=True)
class LookedUpValues:
    """The values of some keys, concatenated. Absent values have no bytes."""

    data: bytes
    lengths: arrow_rows.Sizes

    @classmethod
    def of(cls, values: Sequence[bytes | None], lengths: arrow_rows.Sizes | None = None) -> Self:
        """Concatenate values of less than 2 GiB. ``lengths`` are given if the caller knows them."""
        return cls(b"".join(filter(None, values)), arrow_rows.value_lengths(values) if lengths is None else lengths)

    @cached_property
    def exists(self) -> npt.NDArray[np.bool_]:
        return self.lengths > 0  # a value is never empty

    @cached_property
    def existing(self) -> PackedStrings:
        lengths = self.lengths[self.exists]
        ends = np.cumsum(lengths)
        return PackedStrings(np.frombuffer(self.data, np.uint8), ends - lengths, ends)

    def binary(self) -> pa.BinaryArray:
        """Return all values in one array. Absent values have no bytes."""
        offsets = np.zeros(len(self.lengths) + 1, np.int32)
        np.cumsum(self.lengths, out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        return pa.BinaryArray.from_buffers(pa.binary(), len(self.lengths), buffers)


def to_bytes_list(values: pa.BinaryArray) -> list[bytes]:
    """Return the values of an array without nulls."""
    byte_strings: list[bytes] = values.to_numpy(zero_copy_only=False).tolist()
    return byte_strings


class ValueCodec:
    """Encodes rows of a table's latest schema. Decodes rows of all its schemas to rows of the latest schema."""

    def __init__(self, schemas: Mapping[int, TableSchema], schema_id: int) -> None:
        self._schemas = schemas
        self._schema_id = schema_id
        self._codecs: dict[int, RowCodec] = {}
        self._first = np.array(schema_id, _SCHEMA_ID).tobytes()

    @property
    def schema(self) -> TableSchema:
        return self._schemas[self._schema_id]

    def pack(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """Return the value of each row, given all columns of the latest schema. Equal rows have equal values."""
        return to_bytes_list(self.pack_array(columns))

    def pack_array(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """Return the result of `pack` as one array."""
        return self._codec(self._schema_id).pack(columns, first=self._first)

    def repack(self, stored: LookedUpValues, rows: KeyedRows) -> pa.BinaryArray:
        """Return stored values in the encoding of the latest schema. Values of absent rows are undefined."""
        ids = stored.existing.read_fixed(_SCHEMA_ID)
        return stored.binary() if bool((ids == self._schema_id).all()) else self.pack_array(rows.columns)

    def unpack(self, values: Sequence[bytes | None], columns: Sequence[Column] | None = None) -> KeyedRows:
        """Return the rows with these columns of the latest schema, by default all. Absent values become nulls."""
        return self.unpack_stored(LookedUpValues.of(values), columns)

    def unpack_stored(self, stored: LookedUpValues, projection: Sequence[Column] | None = None) -> KeyedRows:
        """Return the result of `unpack` for `LookedUpValues`."""
        columns = self._columns(stored.existing, self.schema.columns if projection is None else projection)
        exists = stored.exists
        if not exists.all():
            places = pa.array(np.cumsum(exists) - 1, mask=~exists)
            columns = [column.take(places) for column in columns]
        return KeyedRows(tuple(columns), exists)

    def unpack_all(
        self, values: Sequence[bytes | None], projection: Sequence[Column] | None = None
    ) -> tuple[list[pa.ChunkedArray], npt.NDArray[np.bool_]]:
        """Return chunked columns, and whether each value exists. Unlike `unpack`, the values may exceed 2 GiB."""
        projection = self.schema.columns if projection is None else projection
        parts = [self.unpack(values[start:end], projection) for start, end in arrow_rows.cut_binaries_by_size(values)]
        columns = [
            arrow_rows.concat_columns((part.columns[place] for part in parts), column.type)
            for place, column in enumerate(projection)
        ]
        return columns, np.concatenate([np.zeros(0, np.bool_), *(part.exists for part in parts)])

    def _columns(self, rows: PackedStrings, projection: Sequence[Column]) -> list[pa.Array]:
        schema_ids = rows.read_fixed(_SCHEMA_ID)
        parts, places = [], []
        for schema_id in np.unique(schema_ids).tolist():
            chosen = np.flatnonzero(schema_ids == schema_id)
            places.append(chosen)
            parts.append(
                self._unpack_schema(schema_id, rows.select(chosen).skip_bytes(_SCHEMA_ID.itemsize), projection)
            )
        if not parts:
            return [pa.nulls(0, column.type) for column in projection]
        if len(parts) == 1:
            return parts[0]
        order = pa.array(np.argsort(np.concatenate(places)))
        return [pa.concat_arrays(column).take(order) for column in zip(*parts, strict=True)]

    def _unpack_schema(self, schema_id: int, rows: PackedStrings, projection: Sequence[Column]) -> list[pa.Array]:
        if schema_id not in self._schemas:
            raise UnknownSchemaError
        written = self._schemas[schema_id].columns
        place_of = {column.id: place for place, column in enumerate(written)}
        indexes = [place_of[column.id] for column in projection if column.id in place_of]
        column_values = dict(zip(indexes, self._codec(schema_id).unpack(rows, indexes), strict=True))
        return [
            cast_of_column(written[place], column)(column_values[place])
            if (place := place_of.get(column.id)) is not None
            else pa.nulls(len(rows), column.type)
            for column in projection
        ]

    def _codec(self, schema_id: int) -> RowCodec:
        codec = self._codecs.get(schema_id)
        if codec is None:
            types = [column.type for column in self._schemas[schema_id].columns]
            codec = self._codecs[schema_id] = RowCodec(types)
        return codec
