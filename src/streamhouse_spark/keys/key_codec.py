"""Order-preserving encoding of primary keys: the sort keys of KV tablets.

Encoded bytes have the order of the values. Integers, dates, timestamps and decimals are big endian with the sign bit
flipped. Floats are transformed so that negative values sort before positive values, and NaN sorts last. In strings and
binaries each zero byte is followed by ``FF``, and two zero bytes end the value. The bytes of a value are never a prefix
of the bytes of another value. The encoding of the first key columns is therefore a prefix of exactly the keys with
these values.

As in Spark, -0.0 equals 0.0 and all NaNs are equal. Strings compare by their UTF-8 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

KEY_BYTES_MAX: Final = 495
"""Longer keys are stored as their first `_HEAD_BYTES` and a digest, and are then longer than all other keys."""
_HEAD_BYTES = 480
_DIGEST_BYTES = 16

_END = b"\x00\x00"


def is_key_type(data_type: pa.DataType) -> bool:
    """Return whether values of the type can be in a primary key: every scalar type can."""
    return _is_bytes(data_type) or _width(data_type) is not None


def encode_keys(columns: Sequence[pa.Array]) -> pa.BinaryArray:
    """Encode the key of each row. Columns have no nulls and the same length.

    The encoding of the first columns of a key is the prefix of all keys that start with these values.
    """
    parts: list[Any] = []
    fixed: list[npt.NDArray[np.uint8]] = []
    for column in columns:
        if _is_bytes(column.type):
            parts += [*_concat_parts(fixed), _escape_zero_bytes(column), pa.scalar(_END)]
            fixed = []
        else:
            fixed.append(_fixed_bytes(column))
    parts += _concat_parts(fixed)
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, pa.scalar(b""))


def as_numbers(keys: pa.BinaryArray) -> npt.NDArray[np.uint64] | None:
    """Return eight-byte keys as numbers in the order of the keys, which compare faster; None for other keys."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32, keys.offset + len(keys) + 1)[keys.offset :]
    if not len(keys) or (np.diff(offsets) != 8).any():
        return None
    data = np.frombuffer(keys.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    return data.view(">u8").astype(np.uint64)


def key_numbers(columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64] | None:
    """Return `as_numbers` of the keys of these columns, if the keys need not be encoded first; otherwise None."""
    if len(columns) != 1:
        return None
    (column,) = columns
    if not (pa.types.is_int64(column.type) or pa.types.is_timestamp(column.type)):
        return None
    values = np.frombuffer(column.buffers()[1], np.uint64, column.offset + len(column))[column.offset :]
    return values ^ np.uint64(1 << 63)


def encode_lmdb_keys(keys: pa.BinaryArray) -> list[bytes]:
    """Return the keys in the form that LMDB stores, with at most 496 bytes."""
    encoded: list[bytes] = keys.to_numpy(zero_copy_only=False).tolist()
    if encoded and pc.max(pc.binary_length(keys)).as_py() > KEY_BYTES_MAX:
        encoded = [_shorten_key(key) if len(key) > KEY_BYTES_MAX else key for key in encoded]
    return encoded


def encode_lmdb_prefix(prefix: bytes) -> bytes:
    """Return a prefix of all stored keys that start with ``prefix``. A shortened prefix may match other keys."""
    return prefix[:_HEAD_BYTES]


def _shorten_key(key: bytes) -> bytes:
    return key[:_HEAD_BYTES] + hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


# -- columns ----------------------------------------------------------------------------------------------------------


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def _width(data_type: pa.DataType) -> int | None:
    types = pa.types
    if types.is_boolean(data_type):
        return 1
    scalar = types.is_signed_integer(data_type) or types.is_date32(data_type) or types.is_timestamp(data_type)
    if scalar or types.is_float32(data_type) or types.is_float64(data_type) or types.is_decimal128(data_type):
        return int(data_type.bit_width // 8)
    return None


def _escape_zero_bytes(column: pa.Array) -> pa.BinaryArray:
    values = column.view(pa.binary())
    data = values.buffers()[2]
    if data is None or 0 not in np.frombuffer(data, np.uint8):
        return values
    return pc.replace_substring(values, b"\x00", b"\x00\xff")


def _fixed_bytes(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of each value as rows of equal length in the order of the values."""
    if pa.types.is_boolean(column.type):
        flags: npt.NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
        return flags.view(np.uint8).reshape(-1, 1)
    width = column.type.bit_width // 8
    data = np.frombuffer(column.buffers()[1], np.uint8, (column.offset + len(column)) * width)
    little = data.reshape(-1, width)[column.offset :]
    if pa.types.is_floating(column.type):
        return _float_bytes(little)
    big = little[:, ::-1].copy()
    big[:, 0] ^= 0x80
    return big


def _float_bytes(little: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    width = little.shape[1]
    values = np.ascontiguousarray(little).view(f"<f{width}").reshape(-1) + 0.0  # -0.0 becomes 0.0
    values[np.isnan(values)] = np.nan
    bits = values.view(f"<u{width}")
    sign = bits.dtype.type(1 << (8 * width - 1))
    ordered = np.where(bits & sign, ~bits, bits | sign)
    return ordered.astype(f">u{width}").view(np.uint8).reshape(-1, width)


def _concat_parts(columns: list[npt.NDArray[np.uint8]]) -> list[pa.BinaryArray]:
    if not columns:
        return []
    rows = np.ascontiguousarray(columns[0] if len(columns) == 1 else np.hstack(columns))
    width = rows.shape[1]
    bounds = np.arange(0, (len(rows) + 1) * width, width, dtype=np.int32)
    return [pa.BinaryArray.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(bounds), pa.py_buffer(rows)])]
