"""Completeness of Avro files of lake metadata: decoders take a cut file for one with fewer records."""

from __future__ import annotations

from streamhouse_spark.errors import CorruptDataError

SYNC_BYTES = 16


def require_whole_avro(data: bytes, location: str) -> bytes:
    """Return the bytes, if they end at the end of an Avro block. Raises `CorruptDataError`."""
    marker = data[_header_end(data) - SYNC_BYTES :][:SYNC_BYTES]
    if len(marker) != SYNC_BYTES or not data.endswith(marker):
        raise CorruptDataError(
            f"lake file {location} is cut off after {len(data)} bytes; restore it, "
            "or build the lake anew from the log (streamhouse retier)"
        )
    return data


def _header_end(data: bytes) -> int:
    """Return the end of the header: magic, a map of metadata in blocks, the sync marker. It is beyond ``data`` if that
    is cut.
    """
    position = 4
    while True:
        count, position = _read_long(data, position)
        if count < 0:  # the block's size follows
            _, position = _read_long(data, position)
        if count == 0 or position >= len(data):
            return position + SYNC_BYTES
        for _ in range(2 * abs(count)):
            size_bytes, position = _read_long(data, position)
            position += max(size_bytes, 0)
            if position >= len(data):
                return position + SYNC_BYTES


def _read_long(data: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length zigzag integer and the position behind it; 0 if the data ends."""
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
    return 0, position
