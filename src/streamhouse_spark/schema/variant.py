"""The VARIANT type: a value of any shape, such as a JSON document, in the binary encoding of Spark and Parquet.

In Arrow, a VARIANT column is a struct of two non-null binary fields: ``value``, and ``metadata`` with the names of all
object fields. Spark marks the second field in its Arrow metadata. Tables recognise a VARIANT by its type alone, because
the fields of their other structs are nullable. A SQL null is a null struct; a JSON null is a value.

`encode_variant` and `decode_variant` convert single values. The format is version 1 of Parquet's variant binary
encoding. Object fields are sorted by their UTF-16 names, because Spark and Paimon find fields by binary search.
"""

from __future__ import annotations

import datetime as dt
import itertools
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.errors import CorruptDataError

VALUE: Final = "value"
METADATA: Final = "metadata"
VARIANT: Final = pa.struct(
    [
        pa.field(VALUE, pa.binary(), nullable=False),
        pa.field(METADATA, pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""The Arrow type by which Spark represents a variant."""
_VERSION: Final = 1
_VERSION_MASK: Final = 0x0F
_BINARIES: Final = (pa.binary(), pa.large_binary(), pa.binary_view())
BYTES_MAX: Final = 16 << 20
"""Larger values are rejected, because not every reader supports them."""
DEPTH_MAX: Final = 200
_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
_NULL, _TRUE, _FALSE, _INT8, _INT16, _INT32, _INT64, _DOUBLE = range(8)
_DECIMAL4, _DECIMAL8, _DECIMAL16, _DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _FLOAT, _BINARY, _TEXT = range(8, 17)
_TIME_NTZ, _NANOS, _NANOS_NTZ, _UUID = range(17, 21)
_INTEGERS: Final = ((_INT8, 1), (_INT16, 2), (_INT32, 4), (_INT64, 8))
_DECIMALS: Final = ((_DECIMAL4, 4, 9), (_DECIMAL8, 8, 18), (_DECIMAL16, 16, 38))
_DIGITS_MAX: Final = 38
_SHORT_TEXT_BYTES_MAX: Final = 63
_FEW_MAX: Final = 255
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - also for zoned times, after conversion to UTC
_MICROSECOND: Final = dt.timedelta(microseconds=1)


def is_variant(data_type: pa.DataType) -> bool:
    """Return whether the type of a table's column is VARIANT, with or without Spark's mark."""
    return bool(data_type.equals(VARIANT))


def is_marked(data_type: pa.DataType) -> bool:
    """Return whether a user's Arrow type is VARIANT: two binary fields, and Spark's mark in the second."""
    if not has_variant_fields(data_type):
        return False
    marks = data_type.field(METADATA).metadata or {}
    return bool(marks.get(b"variant") == b"true")


def has_variant_fields(data_type: pa.DataType) -> bool:
    """Return whether a type is a struct of exactly the two binary fields, in any order."""
    if not pa.types.is_struct(data_type) or {field.name for field in data_type} != {VALUE, METADATA}:
        return False
    return data_type.num_fields == 2 and all(field.type in _BINARIES for field in data_type)


def is_struct(data_type: pa.DataType) -> bool:
    """Return whether the type of a table's column is a struct, and not VARIANT."""
    return pa.types.is_struct(data_type) and not is_variant(data_type)


def contains_type(data_type: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type, or a type nested in it, is of a kind."""
    return is_kind(data_type) or any(
        contains_type(data_type.field(position).type, is_kind) for position in range(data_type.num_fields)
    )


def holds_variant(data_type: pa.DataType) -> bool:
    return contains_type(data_type, is_variant)


def as_variant(array: pa.StructArray) -> pa.StructArray:
    """Convert a struct array with the fields of a variant to VARIANT. Nulls in the two fields become empty values.

    Arrow's Parquet writer rejects nulls in the fields even if the variant is null. Raises ``pa.ArrowInvalid`` for a
    value that is too large.
    """
    parts = [array.field(array.type.get_field_index(field.name)).cast(field.type).fill_null(b"") for field in VARIANT]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=array.is_null() if array.null_count else None)


def without_null_parts(rows: pa.Table) -> pa.Table:
    """Return the rows with `as_variant` applied to their VARIANT columns, for Parquet files."""
    for place, field in enumerate(rows.schema):
        if is_variant(field.type) and rows.column(place).null_count:
            chunks = [as_variant(chunk) for chunk in rows.column(place).chunks]
            rows = rows.set_column(place, field, pa.chunked_array(chunks, field.type))
    return rows


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast rows to a schema.

    Arrow's cast rejects nulls in the fields of a null variant, which occur in columns that Arrow filled with nulls.
    """
    return without_null_parts(rows).cast(schema)


def find_first_malformed(values: pa.ChunkedArray) -> int | None:
    """Return the first row with a malformed variant, or None.

    A variant is malformed if a field is null or empty, or if its metadata version is not 1.
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
    """Return the first byte of each value of a field; -1 for null and empty values."""
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


def encode_variant(value: Any) -> dict[str, bytes]:
    """Encode a value as the two binary fields of a variant.

    Supports None (JSON null), bool, int, float, Decimal, str, bytes, date, datetime, and lists, tuples and mappings of
    them. A dict of the two fields, and an object with attributes ``value`` and ``metadata``, such as PySpark's
    ``VariantVal``, are already encoded. Raises ``TypeError`` for other types, ``ValueError`` for a value that is too
    large or too deeply nested.
    """
    parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    body, metadata = parts.get(VALUE), parts.get(METADATA)
    if len(parts) == 2 and isinstance(body, bytes) and isinstance(metadata, bytes):
        return {VALUE: body, METADATA: metadata}
    names: dict[str, int] = {}
    body = _encode_value(value, names, 0)
    metadata = _metadata([name.encode() for name in names])
    if max(len(body), len(metadata)) > BYTES_MAX:
        raise ValueError(f"it has {max(len(body), len(metadata))} bytes, expected at most {BYTES_MAX}")
    return {VALUE: body, METADATA: metadata}


def _metadata(names: list[bytes]) -> bytes:
    width = _width(max(sum(map(len, names)), len(names)))
    header = bytes([1 | (width - 1) << 6]) + len(names).to_bytes(width, "little")
    return b"".join([header, *_offsets(names, width), *names])


def _encode_value(value: Any, names: dict[str, int], depth: int) -> bytes:  # noqa: C901 - one case per type
    if depth > DEPTH_MAX:
        raise ValueError(f"it is nested deeper than {DEPTH_MAX}")
    match value:
        case None:
            return _header(_NULL)
        case bool():
            return _header(_TRUE if value else _FALSE)
        case int():
            return _integer(value)
        case float():
            return _header(_DOUBLE) + struct.pack("<d", value)
        case Decimal():
            return _decimal(value)
        case str():
            return _text(value.encode())
        case bytes() | bytearray() | memoryview():
            return _header(_BINARY) + len(bytes(value)).to_bytes(4, "little") + bytes(value)
        case dt.datetime():
            kind = _TIMESTAMP_NTZ if value.tzinfo is None else _TIMESTAMP
            naive = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
            return _header(kind) + ((naive - _EPOCH) // _MICROSECOND).to_bytes(8, "little", signed=True)
        case dt.date():
            return _header(_DATE) + (value - _EPOCH.date()).days.to_bytes(4, "little", signed=True)
        case Mapping():
            return _object(value, names, depth)
        case list() | tuple():
            items = [_encode_value(item, names, depth + 1) for item in value]
            many = 4 if len(items) > _FEW_MAX else 0
            return _header(many | _width(sum(map(len, items))) - 1, _ARRAY) + _encode_list(items)
    raise TypeError(f"a {type(value).__name__} cannot be stored in a variant")


def _header(kind: int, basic: int = _PRIMITIVE) -> bytes:
    return bytes([kind << 2 | basic])


def _width(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


def _offsets(items: list[bytes], width: int) -> Iterator[bytes]:
    """Yield the offset of each item, and of the end."""
    return (offset.to_bytes(width, "little") for offset in itertools.accumulate(map(len, items), initial=0))


def _encode_list(items: list[bytes], ids: bytes = b"") -> bytes:
    number = len(items).to_bytes(4 if len(items) > _FEW_MAX else 1, "little")
    return b"".join([number, ids, *_offsets(items, _width(sum(map(len, items)))), *items])


def _object(value: Mapping[Any, Any], names: dict[str, int], depth: int) -> bytes:
    for name in value:
        if not isinstance(name, str):
            raise TypeError(f"an object has a name of type {type(name).__name__}, expected a string")
        name.encode()
        names.setdefault(name, len(names))
    fields = sorted(value, key=lambda name: name.encode("utf-16-be"))
    items = [_encode_value(value[name], names, depth + 1) for name in fields]
    width = _width(max((names[name] for name in fields), default=0))
    ids = b"".join(names[name].to_bytes(width, "little") for name in fields)
    many = 16 if len(items) > _FEW_MAX else 0
    return _header(many | (width - 1) << 2 | _width(sum(map(len, items))) - 1, _OBJECT) + _encode_list(items, ids)


def _integer(value: int) -> bytes:
    for kind, width in _INTEGERS:
        if -(1 << 8 * width - 1) <= value < 1 << 8 * width - 1:
            return _header(kind) + value.to_bytes(width, "little", signed=True)
    return _decimal(Decimal(value)) if abs(value) < 10**_DIGITS_MAX else _encode_value(float(value), {}, 0)


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"the decimal {value} is not a number")  # noqa: TRY004 - an invalid value, not an invalid type
    if abs(exponent) > _DIGITS_MAX:
        raise ValueError(f"the decimal {value} has more than {_DIGITS_MAX} digits")
    unscaled: int = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    scale, length = max(-exponent, 0), max(len(str(unscaled)), -exponent)
    for kind, width, most in _DECIMALS:
        if length <= most:
            signed = -unscaled if sign else unscaled
            return _header(kind) + bytes([scale]) + signed.to_bytes(width, "little", signed=True)
    raise ValueError(f"the decimal {value} has more than {_DIGITS_MAX} digits")


def _text(data: bytes) -> bytes:
    if len(data) <= _SHORT_TEXT_BYTES_MAX:
        return _header(len(data), _SHORT_TEXT) + data
    return _header(_TEXT) + len(data).to_bytes(4, "little") + data


# -- decoding ---------------------------------------------------------------------------------------------------------


def decode_variant(value: bytes, metadata: bytes) -> Any:
    """Return the Python value of a variant: lists for arrays, dicts for objects, zoned times in UTC.

    Raises ``ValueError`` for malformed bytes.
    """
    try:
        return _Reader(value, metadata).value(0, 0)
    except (IndexError, struct.error, OverflowError, ValueError) as error:
        raise ValueError(f"unreadable variant: {error}") from error


def readable_value(value: Mapping[str, bytes], column: str) -> Any:
    """Decode the two fields of a variant, with decimals as plain numbers if that is exact.

    Raises `CorruptDataError` for malformed bytes.
    """
    try:
        return _as_numbers(decode_variant(value[VALUE], value[METADATA]))
    except ValueError as error:
        raise CorruptDataError(f"column '{column}' has an {error}; leave the column out") from error


def _as_numbers(value: Any) -> Any:
    match value:
        case Decimal():
            if not value.as_tuple().exponent:
                return int(value)
            as_float = float(value)
            return as_float if Decimal(repr(as_float)) == value else value
        case dict():
            return {name: _as_numbers(part) for name, part in value.items()}
        case list():
            return [_as_numbers(part) for part in value]
    return value


class _Reader:
    def __init__(self, value: bytes, metadata: bytes) -> None:
        if not metadata or metadata[0] & 0x0F != 1:
            raise ValueError("the metadata version is not 1")
        self._value = value
        width = (metadata[0] >> 6) + 1
        number = _read_unsigned(metadata, 1, width)
        at = 1 + width
        if at + (number + 1) * width > len(metadata):
            raise ValueError("the metadata is truncated")
        ends = [_read_unsigned(metadata, at + i * width, width) for i in range(number + 1)]
        text = metadata[at + (number + 1) * width :]
        self._names = [text[a:b].decode() for a, b in itertools.pairwise(ends)]

    def value(self, at: int, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise ValueError(f"nested deeper than {DEPTH_MAX}")
        basic, kind = self._value[at] & 3, self._value[at] >> 2
        if basic == _SHORT_TEXT:
            return self._bytes(at + 1, kind).decode()
        if basic == _OBJECT:
            return self._object(at, kind, depth)
        if basic == _ARRAY:
            begin, ends = self._ends(at + 1, 4 if kind & 4 else 1, 0, (kind & 3) + 1)
            return [self.value(begin + end, depth + 1) for end in ends[:-1]]
        if kind in (_NULL, _TRUE, _FALSE):
            return {_NULL: None, _TRUE: True, _FALSE: False}[kind]
        reader = _SCALARS.get(kind)
        if reader is None:
            raise ValueError(f"unknown type {kind}")
        return reader(self, at + 1)

    def _object(self, at: int, kind: int, depth: int) -> dict[str, Any]:
        id_width, number_width = (kind >> 2 & 3) + 1, 4 if kind & 16 else 1
        begin, ends = self._ends(at + 1, number_width, id_width, (kind & 3) + 1)
        first = at + 1 + number_width
        names = [self._names[_read_unsigned(self._value, first + i * id_width, id_width)] for i in range(len(ends) - 1)]
        return {name: self.value(begin + end, depth + 1) for name, end in zip(names, ends, strict=False)}

    def _ends(self, at: int, number_width: int, id_width: int, width: int) -> tuple[int, list[int]]:
        """Return where the items start, and the offset of each item and of the end."""
        number = _read_unsigned(self._value, at, number_width)
        first = at + number_width + number * id_width
        begin = first + (number + 1) * width
        if begin > len(self._value):
            raise ValueError("the value is truncated")
        return begin, [_read_unsigned(self._value, first + i * width, width) for i in range(number + 1)]

    def _bytes(self, at: int, length: int) -> bytes:
        data = self._value[at : at + length]
        if len(data) != length:
            raise ValueError("the value is truncated")
        return data

    def read_signed(self, at: int, width: int) -> int:
        return int.from_bytes(self._bytes(at, width), "little", signed=True)

    def number(self, at: int, form: str) -> float:
        return float(struct.unpack(form, self._bytes(at, struct.calcsize(form)))[0])

    def read_decimal(self, at: int, width: int) -> Decimal:
        unscaled = self.read_signed(at + 1, width)
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -self._value[at]))

    def read_bytes(self, at: int) -> bytes:
        return self._bytes(at + 4, _read_unsigned(self._value, at, 4))

    def moment(self, at: int, zone: dt.tzinfo | None, divisor: int = 1) -> dt.datetime:
        return (_EPOCH + dt.timedelta(microseconds=self.read_signed(at, 8) // divisor)).replace(tzinfo=zone)

    def uuid(self, at: int) -> str:
        return str(uuid.UUID(bytes=self._bytes(at, 16)))


_SCALARS: Final[dict[int, Callable[[_Reader, int], Any]]] = {
    _INT8: lambda reader, at: reader.read_signed(at, 1),
    _INT16: lambda reader, at: reader.read_signed(at, 2),
    _INT32: lambda reader, at: reader.read_signed(at, 4),
    _INT64: lambda reader, at: reader.read_signed(at, 8),
    _DOUBLE: lambda reader, at: reader.number(at, "<d"),
    _FLOAT: lambda reader, at: reader.number(at, "<f"),
    _DECIMAL4: lambda reader, at: reader.read_decimal(at, 4),
    _DECIMAL8: lambda reader, at: reader.read_decimal(at, 8),
    _DECIMAL16: lambda reader, at: reader.read_decimal(at, 16),
    _DATE: lambda reader, at: _EPOCH.date() + dt.timedelta(days=reader.read_signed(at, 4)),
    _TIMESTAMP: lambda reader, at: reader.moment(at, dt.UTC),
    _TIMESTAMP_NTZ: lambda reader, at: reader.moment(at, None),
    _NANOS: lambda reader, at: reader.moment(at, dt.UTC, 1000),
    _NANOS_NTZ: lambda reader, at: reader.moment(at, None, 1000),
    _BINARY: lambda reader, at: reader.read_bytes(at),
    _TEXT: lambda reader, at: reader.read_bytes(at).decode(),
    _UUID: lambda reader, at: reader.uuid(at),
}


def _read_unsigned(data: bytes, at: int, width: int) -> int:
    if at + width > len(data):
        raise ValueError("the value is truncated")
    return int.from_bytes(data[at : at + width], "little")
