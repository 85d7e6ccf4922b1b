"""A checksum in each Parquet file of the package, of the parts without a checksum in Parquet: footer and page index.

The last entry of the footer's key-value metadata is ``streamhouse.footer-xxh3``. Its value has a fixed length:

    <XXH3-64 of the footer>-<XXH3-64 of the page index>-<start of the page index>

The footer is everything from its Thrift structure to the end of the file, with zeros as the 16 digits of its own
checksum. The page index is everything between the last row group and the footer. So the file can be verified without
other metadata, and other engines ignore the entry.

A bit flip may damage the entry itself. So the entry is found in the bytes instead of by Parquet's reader, and half of
its frame proves that it existed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import xxhash

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CorruptDataError
from streamhouse_spark.lake.parquet.parquet_io import CountingWriter

if TYPE_CHECKING:
    import pyarrow.parquet as pq

KEY = "streamhouse.footer-xxh3"
TAIL_BYTES = 64 << 10
"""Bytes that are read from the end of a file at first, as by Arrow. Few footers are longer."""

_VALUE = re.compile(rb"([0-9a-f]{16})-([0-9a-f]{16})-([0-9]{20})")
_VALUE_BYTES = 54
_DIGITS = 16
_FRONT = b"\x18" + bytes([len(KEY)]) + KEY[:16].encode()
_BACK = KEY[16:].encode() + b"\x18" + bytes([_VALUE_BYTES])
"""Bytes of Thrift's compact protocol before the value. No other key of the package has this length."""
_FRAME = _FRONT + _BACK
_END_BYTES = 8
"""Bytes of the length of the Thrift structure, which are 4, and of the magic bytes."""
_OWN_NAME = re.compile(
    r"(data-)?[0-9]{5}-(deletes|[0-9]{20}(-[0-9]{20})?)(-[0-9a-f]{32})+(_[0-9a-f]{8}_[0-9a-f]{8})?\.parquet"
)


@dataclass(frozen=True, slots=True)
class FooterChecksum:
    """The checksum entry of a verified footer, with the checksum of the page index."""

    index_start: int
    index_hash: str


def close_with_checksum(writer: pq.ParquetWriter, sink: CountingWriter, described: Mapping[str, str]) -> None:
    """Finish a Parquet file after its last row group. Its footer contains ``described`` and the checksums."""
    start = sink.size_bytes
    writer.add_key_value_metadata({**described, KEY: _format_value(b"", b"", start)})
    with sink.buffer_and_change(lambda written: _add_checksums(written, start)):
        writer.close()


def _add_checksums(written: bytes, start: int) -> bytes:
    """Return page index and footer with their checksums. ``start`` is their position in the file."""
    footer_at = len(written) - _footer_bytes(written)
    value_at = written.rfind(_FRAME) + len(_FRAME)
    if value_at < footer_at + len(_FRAME):
        raise CorruptDataError("the Parquet writer omitted an entry of the footer; nothing was written, report this")
    before, rest = written[:value_at], written[value_at + _VALUE_BYTES :]
    index_hash = _hash(written[:footer_at])
    blank = before + _format_value(b"", index_hash, start).encode() + rest
    return before + _format_value(_hash(blank[footer_at:]), index_hash, start).encode() + rest


def _format_value(footer_hash: bytes, index_hash: bytes, start: int) -> str:
    return f"{footer_hash.decode():0>16}-{index_hash.decode():0>16}-{start:020d}"


def _hash(data: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(data).encode()


def _footer_bytes(tail: bytes) -> int:
    return int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES


def read_checked_footer(source: pa.NativeFile, location: str) -> pq.FileMetaData | None:
    """Return the footer of a file, verified if it has a checksum. Returns None for a file with another engine's name.

    Sends the requests that Arrow would send. Raises `CorruptDataError` on a mismatch, and Arrow's errors.
    """
    if not _is_own(location):
        return None
    from pyarrow import parquet as pq  # reads of the log alone do not need it

    tail = _tail(source)
    _read_checksum(tail, location)
    return pq.read_metadata(pa.BufferReader(tail))


def is_whole(source: pa.NativeFile, location: str) -> bool:
    """Return whether the file has a checksum. Raises `CorruptDataError` if its footer or page index does not match.

    Sends one request, and another for each part before the last `TAIL_BYTES`.
    """
    if not _is_own(location):
        return False
    tail = _tail(source)
    seal = _read_checksum(tail, location)
    if seal is None:
        return False
    tail_at = source.size() - len(tail)
    footer_at = source.size() - _footer_bytes(tail)
    if not seal.index_start <= footer_at:
        raise _mismatch(location, "page index")
    if seal.index_start >= tail_at:
        index = tail[seal.index_start - tail_at : footer_at - tail_at]
    else:
        index = source.read_at(footer_at - seal.index_start, seal.index_start)
    if _hash(index).decode() != seal.index_hash:
        raise _mismatch(location, "page index")
    return True


def _is_own(location: str) -> bool:
    """Return whether the package writes such names. Another engine may have copied the entry into its own file."""
    return _OWN_NAME.fullmatch(location.rpartition("/")[2]) is not None


def _tail(source: pa.NativeFile) -> bytes:
    """Return the end of a file, which includes the whole footer unless its length is damaged."""
    size = source.size()
    tail: bytes = source.read_at(min(size, TAIL_BYTES), max(size - TAIL_BYTES, 0))
    if len(tail) < _footer_bytes(tail) <= size:
        tail = source.read_at(_footer_bytes(tail), size - _footer_bytes(tail))
    return tail


def _read_checksum(tail: bytes, location: str) -> FooterChecksum | None:
    """Return the checksum entry at the end of a file after verifying the footer, or None if there is none."""
    frame_at = tail.rfind(_FRAME)
    if frame_at < 0:
        if _FRONT in tail or _BACK in tail:
            raise _mismatch(location, "footer")
        return None
    value_at = frame_at + len(_FRAME)
    match = _VALUE.fullmatch(tail[value_at : value_at + _VALUE_BYTES])
    footer_at = len(tail) - _footer_bytes(tail)
    if match is None or not 0 <= footer_at <= frame_at:
        raise _mismatch(location, "footer")
    if _hash(tail[footer_at:value_at] + b"0" * _DIGITS + tail[value_at + _DIGITS :]) != match[1]:
        raise _mismatch(location, "footer")
    return FooterChecksum(int(match[3]), match[2].decode())


def _mismatch(location: str, part: str) -> CorruptDataError:
    return CorruptDataError(
        f"lake file {location}: its {part} does not match its checksum, so reads may silently miss rows; "
        "restore it, or rebuild the lake from the log (streamhouse retier)"
    )
