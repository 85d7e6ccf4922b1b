"""Encoding of one key, and decoding of one row, without Arrow.

Building an Arrow table costs more than finding a row. This module implements the formats of `keys.key_codec`,
`log.bucketing` and `kv.row_codec` for single values. Arrow handles rare cases, such as other key types and nested
columns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.python_values import python_date, python_timestamp, to_python
from streamhouse_spark.keys.key_codec import KEY_BYTES_MAX
from streamhouse_spark.kv.row_codec import PackedStrings, RowCodec

_EXACT: Final = Context(prec=76)
_TEXT_BYTES_MAX: Final = 64
"""Longer texts are hashed faster by numpy."""


# -- keys -------------------------------------------------------------------------------------------------------------


class KeyEncoder:
    """Encodes keys of integers and texts and finds their bucket. It declines values that only Arrow can encode."""

    def __init__(self, types: Sequence[pa.DataType], bucket_index: int | None, num_buckets: int) -> None:
        """Create an encoder for key columns of ``types``. ``bucket_index`` is the index of the bucket key, if any."""
        encoders = [_key_encoder(data_type) for data_type in types]
        self._encoders = [encoder for encoder in encoders if encoder is not None]
        self._is_usable = len(self._encoders) == len(encoders)
        self._bucket_place = bucket_index
        self._num_buckets = num_buckets

    def encode(self, values: Sequence[Any]) -> tuple[bytes, int] | None:
        """Return the stored key and its bucket; None if a value needs a conversion to its column's type."""
        if not self._is_usable or len(values) != len(self._encoders):
            return None
        parts = [encode(value) for encode, value in zip(self._encoders, values, strict=True)]
        if None in parts:
            return None
        key = b"".join(parts)  # type: ignore[arg-type] # None was excluded
        if len(key) > KEY_BYTES_MAX:
            return None
        if self._bucket_place is None:
            return key, 0
        value = values[self._bucket_place]
        data = value.to_bytes(8, "little", signed=True) if type(value) is int else value.encode()
        if len(data) > _TEXT_BYTES_MAX:
            return None
        return key, (murmur3(data) & 0x7FFFFFFF) % self._num_buckets


def _key_encoder(data_type: pa.DataType) -> Callable[[Any], bytes | None] | None:
    if pa.types.is_signed_integer(data_type):
        return _integer_encoder(data_type.bit_width // 8)
    return _encode_text if pa.types.is_string(data_type) else None


def _integer_encoder(width: int) -> Callable[[Any], bytes | None]:
    half, size = 1 << (8 * width - 1), 1 << (8 * width)

    def encode(value: Any) -> bytes | None:
        if type(value) is not int or not 0 <= (shifted := value + half) < size:
            return None
        return shifted.to_bytes(width, "big")

    return encode


def _encode_text(value: Any) -> bytes | None:
    if type(value) is not str:
        return None
    try:
        data = value.encode()
    except UnicodeEncodeError:
        return None
    return data.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def murmur3(data: bytes) -> int:
    """Return the hash of the bytes that `log.bucketing` uses."""
    state, whole = 0, len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        state ^= _mix_hash(word)
        state = (state << 13 | state >> 19) & 0xFFFFFFFF
        state = (state * 5 + 0xE6546B64) & 0xFFFFFFFF
    if whole < len(data):
        state ^= _mix_hash(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state = ((state ^ state >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    state = ((state ^ state >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    return state ^ state >> 16


def _mix_hash(word: int) -> int:
    word = (word * 0xCC9E2D51) & 0xFFFFFFFF
    word = (word << 15 | word >> 17) & 0xFFFFFFFF
    return (word * 0x1B873593) & 0xFFFFFFFF


# -- rows -------------------------------------------------------------------------------------------------------------

Decoder = Callable[[Any], Any]


class RowDecoder:
    """Decodes the columns of one packed row to the values that `to_python` returns for Arrow."""

    def __init__(self, names: Sequence[str], types: Sequence[pa.DataType], columns: Sequence[str]) -> None:
        """Create a decoder for rows of a `RowCodec` with columns ``names`` of ``types``. It returns ``columns``."""
        formats = {i: code for i, t in enumerate(types) if (code := _format(t)) is not None}
        cells = [i for i in range(len(types)) if i not in formats]
        self._header = struct.Struct(
            f"<{(len(types) + 7) // 8}s" + "".join(formats.values()) + "I" * len(cells)  # the header of `RowCodec`
        )
        self._num_fixed = len(formats)
        fixed_place = {column: 1 + place for place, column in enumerate(formats)}
        cell_place = {column: place for place, column in enumerate(cells)}
        place_of = {name: place for place, name in enumerate(names)}
        self._fixed: list[tuple[str, int, int, Decoder | None]] = []
        self._cells: list[tuple[str, int, int, Decoder]] = []
        for name in columns:
            column = place_of[name]
            if column in formats:
                self._fixed.append((name, 1 << column, fixed_place[column], _fixed_decoder(types[column])))
            else:
                self._cells.append((name, 1 << column, cell_place[column], _cell_decoder(types[column])))
        self._empty = dict.fromkeys(columns)

    def read(self, data: bytes, start: int) -> dict[str, Any]:
        """Return the row whose bytes start at ``start``."""
        header = self._header.unpack_from(data, start)
        nulls = int.from_bytes(header[0], "little")
        row = self._empty.copy()
        for name, bit, place, decode in self._fixed:
            if not nulls & bit:
                value = header[place]
                row[name] = value if decode is None else decode(value)
        if self._cells:
            end = start + self._header.size
            spans = [(end, end := end + length) for length in header[1 + self._num_fixed :]]
            for name, bit, place, decode in self._cells:
                if not nulls & bit:
                    first, last = spans[place]
                    row[name] = decode(data[first:last])
        return row


def _format(data_type: pa.DataType) -> str | None:
    """Return the ``struct`` format of a fixed-width column."""
    if pa.types.is_boolean(data_type):
        return "?"
    if pa.types.is_decimal128(data_type):
        return "16s"
    if pa.types.is_date32(data_type):
        return "i"
    if pa.types.is_timestamp(data_type):
        return "q"
    if pa.types.is_signed_integer(data_type):
        return {8: "b", 16: "h", 32: "i", 64: "q"}[data_type.bit_width]
    return {32: "f", 64: "d"}[data_type.bit_width] if pa.types.is_floating(data_type) else None


def _fixed_decoder(data_type: pa.DataType) -> Decoder | None:
    """Return the function that converts a ``struct`` result; None if the result is the value."""
    if pa.types.is_date32(data_type):
        return python_date
    if pa.types.is_timestamp(data_type):
        return partial(python_timestamp, zoned=data_type.tz is not None)
    if pa.types.is_decimal128(data_type):
        exponent = Decimal(-data_type.scale)
        return lambda data: _EXACT.scaleb(int.from_bytes(data, "little", signed=True), exponent)
    return None


def _cell_decoder(data_type: pa.DataType) -> Decoder:
    if pa.types.is_string(data_type):
        return bytes.decode
    if pa.types.is_binary(data_type):
        return bytes
    codec = RowCodec([data_type])
    header = bytes(1)  # not null

    def nested(data: bytes) -> Any:
        packed = header + np.uint32(len(data)).tobytes() + data
        return to_python(codec.unpack(PackedStrings.of([packed]))[0][0])

    return nested


class ValueDecoder:
    """Decodes tablet values that several schemas of the table wrote."""

    def __init__(self, readers: Mapping[int, RowDecoder]) -> None:
        """Create a decoder from row decoders by schema id, for the schemas with all requested columns."""
        self._readers = readers

    def read(self, value: bytes) -> dict[str, Any] | None:
        """Return the row; None if another schema wrote it."""
        reader = self._readers.get(int.from_bytes(value[:4], "little"))
        return None if reader is None else reader.read(value, 4)
