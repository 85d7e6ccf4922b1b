"""Tablet values: rows of the table, each prefixed with the id of the schema that wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core import arrow_chunking
from streamhouse_spark.core.fork_safety import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.keys.keyed_batch import KeyedRows
from streamhouse_spark.kv.row_codec import PackedStrings, RowCodec
from streamhouse_spark.schema.evolution import cast_of_column
from streamhouse_spark.schema.table_schema import Column, TableSchema

_SCHEMA_ID = np.dtype("<u4")


class UnknownSchemaError(Exception):
    """A value was written by a newer schema than the known ones: refresh the table's state."""


@dataclass(frozen=True)
class LookedUpValues:
    """The values found for some keys, concatenated; absent values have no bytes."""

    data: bytes
    lengths: arrow_chunking.Sizes

    @classmethod
    def of(cls, values: Sequence[bytes | None], lengths: arrow_chunking.Sizes | None = None) -> Self:
        """Concatenate values, whose ``lengths`` may be known. They must be less than 2 GiB."""
        return cls(b"".join(filter(None, values)), arrow_chunking.value_lengths(values) if lengths is None else lengths)

    @cached_property
    def exists(self) -> npt.NDArray[np.bool_]:
        return self.lengths > 0  # a value is never empty

    @cached_property
    def existing(self) -> PackedStrings:
        """The existing values."""
        lengths = self.lengths[self.exists]
        ends = np.cumsum(lengths)
        return PackedStrings(np.frombuffer(self.data, np.uint8), ends - lengths, ends)

    def binary(self) -> pa.BinaryArray:
        """Return all values in one array; absent ones have no bytes."""
        offsets = np.zeros(len(self.lengths) + 1, np.int32)
        np.cumsum(self.lengths, out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        return pa.BinaryArray.from_buffers(pa.binary(), len(self.lengths), buffers)


def to_bytes_list(values: pa.BinaryArray) -> list[bytes]:
    """Return the values of an array without nulls."""
    byte_strings: list[bytes] = values.to_numpy(zero_copy_only=False).tolist()
    return byte_strings


class ValueFormat:
    """Encodes rows of a table's latest schema, and decodes rows of any of its schemas as the latest."""

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
        """Return the same as `pack`, in one array."""
        return self._codec(self._schema_id).pack(columns, first=self._first)

    def repack(self, stored: LookedUpValues, rows: KeyedRows) -> pa.BinaryArray:
        """Return stored values as `pack` encodes them now: values of older schemas differ. Values of absent rows are
        undefined.
        """
        ids = stored.existing.read_fixed(_SCHEMA_ID)
        return stored.binary() if bool((ids == self._schema_id).all()) else self.pack_array(rows.columns)

    def unpack(self, values: Sequence[bytes | None], columns: Sequence[Column] | None = None) -> KeyedRows:
        """Return the rows with the columns ``columns`` of the latest schema, all by default; nulls
        for absent values.
        """
        return self.unpack_stored(LookedUpValues.of(values), columns)

    def unpack_stored(self, stored: LookedUpValues, projection: Sequence[Column] | None = None) -> KeyedRows:
        """Do the same as `unpack` for `LookedUpValues`."""
        columns = self._columns(stored.existing, self.schema.columns if projection is None else projection)
        exists = stored.exists
        if not exists.all():
            places = pa.array(np.cumsum(exists) - 1, mask=~exists)
            columns = [column.take(places) for column in columns]
        return KeyedRows(tuple(columns), exists)

    def unpack_all(
        self, values: Sequence[bytes | None], projection: Sequence[Column] | None = None
    ) -> tuple[list[pa.ChunkedArray], npt.NDArray[np.bool_]]:
        """Do the same as `unpack` for any number of bytes: return chunked columns, and which values exist."""
        projection = self.schema.columns if projection is None else projection
        parts = [
            self.unpack(values[start:end], projection) for start, end in arrow_chunking.cut_binaries_by_size(values)
        ]
        columns = [
            arrow_chunking.concat_columns((part.columns[place] for part in parts), column.type)
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
