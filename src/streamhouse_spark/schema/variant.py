"""The VARIANT type: a value of any shape, such as a JSON document, in the binary form of Spark and Parquet.

In Arrow, a VARIANT column is a struct of two non-null binaries: ``value``, and ``metadata`` with the names of all
object fields. Spark marks the second field by metadata. Here the type alone is sufficient, because fields of all other
structs of a table are nullable. A SQL null is a null struct; a JSON null is a value.
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
    """Return whether a type of a table is VARIANT, with or without Spark's mark."""
    return bool(data_type.equals(VARIANT))


def is_marked(data_type: pa.DataType) -> bool:
    """Return whether a user's Arrow type is VARIANT: two binaries, of which the second has Spark's mark."""
    if not has_variant_fields(data_type):
        return False
    marks = data_type.field(METADATA).metadata or {}
    return bool(marks.get(b"variant") == b"true")


def has_variant_fields(data_type: pa.DataType) -> bool:
    """Return whether a type is a struct of exactly the two binaries, in any order."""
    if not pa.types.is_struct(data_type) or {field.name for field in data_type} != {VALUE, METADATA}:
        return False
    return data_type.num_fields == 2 and all(field.type in _BINARIES for field in data_type)


def is_struct(data_type: pa.DataType) -> bool:
    """Return whether a type of a table is a struct other than a variant."""
    return pa.types.is_struct(data_type) and not is_variant(data_type)


def holds_variant(data_type: pa.DataType) -> bool:
    """Return whether a type is VARIANT or contains it."""
    if is_variant(data_type):
        return True
    return any(holds_variant(data_type.field(place).type) for place in range(data_type.num_fields))


def as_variant(array: pa.StructArray) -> pa.StructArray:
    """Convert a struct array with the fields of a variant to VARIANT, without nulls in its parts.

    Arrow's Parquet writer rejects nulls in the parts even if the variant is null. Raises ``pa.ArrowInvalid`` for a
    value that is too large.
    """
    parts = [array.field(array.type.get_field_index(field.name)).cast(field.type).fill_null(b"") for field in VARIANT]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=array.is_null() if array.null_count else None)


def without_null_parts(rows: pa.Table) -> pa.Table:
    """Return the rows with variants as by `as_variant`, for Parquet files."""
    for place, field in enumerate(rows.schema):
        if is_variant(field.type) and rows.column(place).null_count:
            chunks = [as_variant(chunk) for chunk in rows.column(place).chunks]
            rows = rows.set_column(place, field, pa.chunked_array(chunks, field.type))
    return rows


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows cast to a schema.

    Arrow's own cast rejects nulls in the parts of a null variant, which occur in Arrow's columns of nulls.
    """
    return without_null_parts(rows).cast(schema)


def first_malformed(values: pa.ChunkedArray) -> int | None:
    """Return the first row with a malformed variant, or None.

    A variant is malformed if a part is null or empty, or if its metadata version is not 1.
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
    """Return the first byte of each value of a field, -1 for null and empty values."""
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
