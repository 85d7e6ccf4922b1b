"""The type VARIANT: a value of any shape, such as a JSON document, in the binary form of Spark and Parquet.

In Arrow a column of it is a struct of two binaries that are never null: ``value``, and ``metadata`` with the names of
all fields of objects. Spark tells it from other structs by metadata of the second field. Here its type alone tells it,
because fields of all other structs of a table may be null. A null of SQL is a null struct; a null of JSON is a value.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

VALUE: Final = "value"
METADATA: Final = "metadata"
VARIANT: Final = pa.struct(
    [
        pa.field(VALUE, pa.binary(), nullable=False),
        pa.field(METADATA, pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""Spark's own Arrow form of a variant."""
_VERSION: Final = 1
_VERSION_MASK: Final = 0x0F
_BINARIES: Final = (pa.binary(), pa.large_binary(), pa.binary_view())


def is_variant(data_type: pa.DataType) -> bool:
    """Tell whether a type of a table is VARIANT, whether its field is marked or not."""
    return bool(data_type.equals(VARIANT))


def is_marked(data_type: pa.DataType) -> bool:
    """Tell whether an Arrow type of a user's is VARIANT: two binaries, the second of which Spark has marked."""
    if not has_its_fields(data_type):
        return False
    marks = data_type.field(METADATA).metadata or {}
    return bool(marks.get(b"variant") == b"true")


def has_its_fields(data_type: pa.DataType) -> bool:
    """Tell whether a type is a struct of the two binaries, in any order, and of nothing else."""
    if not pa.types.is_struct(data_type) or {field.name for field in data_type} != {VALUE, METADATA}:
        return False
    return data_type.num_fields == 2 and all(field.type in _BINARIES for field in data_type)


def is_struct(data_type: pa.DataType) -> bool:
    """Tell whether a type of a table is a struct with fields of its own, which a variant has not."""
    return pa.types.is_struct(data_type) and not is_variant(data_type)


def holds_variant(data_type: pa.DataType) -> bool:
    """Tell whether a type is VARIANT, or has it inside."""
    if is_variant(data_type):
        return True
    return any(holds_variant(data_type.field(place).type) for place in range(data_type.num_fields))


def as_variant(array: pa.StructArray) -> pa.StructArray:
    """Return a struct array with the fields of a variant as one of the type, none of whose parts is null: Arrow's
    Parquet writer takes no null in them, also where the whole is null. Raises ``pa.ArrowInvalid`` for a value that is
    too large.
    """
    parts = [array.field(array.type.get_field_index(field.name)).cast(field.type).fill_null(b"") for field in VARIANT]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=array.is_null() if array.null_count else None)


def with_whole_parts(rows: pa.Table) -> pa.Table:
    """Return the rows with variants as `as_variant` makes them, for Parquet files."""
    for place, field in enumerate(rows.schema):
        if is_variant(field.type) and rows.column(place).null_count:
            chunks = [as_variant(chunk) for chunk in rows.column(place).chunks]
            rows = rows.set_column(place, field, pa.chunked_array(chunks, field.type))
    return rows


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows cast to a schema. Arrow's own cast refuses a null in the parts of a variant, also where the whole
    is null, as it is in the column of nulls that Arrow makes.
    """
    return with_whole_parts(rows).cast(schema)


def first_malformed(values: pa.ChunkedArray) -> int | None:
    """Return the first row with a variant that no reader could read: a part is null or empty, or the metadata has
    another version than 1. None if there is none.
    """
    row = 0
    for chunk in values.chunks:
        metadata = _first_bytes(chunk, METADATA)
        wrong = ((metadata & _VERSION_MASK) != _VERSION) | (_first_bytes(chunk, VALUE) < 0)
        if chunk.null_count:
            wrong &= chunk.is_valid().to_numpy(zero_copy_only=False)
        if wrong.any():
            return row + int(np.argmax(wrong))
        row += len(chunk)
    return None


def _first_bytes(array: pa.StructArray, name: str) -> npt.NDArray[np.int16]:
    """Return the first byte of each value of a field, -1 where it is null or has none."""
    part = array.field(name)
    first_bytes = np.full(len(part), -1, np.int16)
    offsets, data = part.buffers()[1:]
    if offsets is None or data is None or not len(part):
        return first_bytes
    bounds = np.frombuffer(offsets, np.int32, len(part) + 1, part.offset * 4)
    is_nonempty = bounds[1:] > bounds[:-1]
    if part.null_count:
        is_nonempty &= pc.is_valid(part).to_numpy(zero_copy_only=False)
    first_bytes[is_nonempty] = np.frombuffer(data, np.uint8)[bounds[:-1][is_nonempty]]
    return first_bytes
