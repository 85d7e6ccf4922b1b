r"""The frame of every metadata file: a checksummed JSON header and a binary payload.

::

    {"streamhouse":"<kind>","version":1,"xxh3":"<32 hex digits>"}\\n     first line, fixed form
    {...}\\n                                                             header: one line of JSON
    <payload>                                                           bytes that the header points into

``xxh3`` is the XXH3-128 of all bytes after the first line. It detects flipped bits and truncation before anything is
parsed. The first line must match exactly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import xxhash

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CorruptDataError, FormatVersionError

FORMAT_VERSION = 1
_FIRST_LINE = re.compile(rb'\{"streamhouse":"([a-z]+)","version":(\d{1,9}),"xxh3":"([0-9a-f]{32})"\}\n')
_FIRST_LINE_BYTES_MAX = 120
_WRONG_FIELDS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded metadata file."""

    header: dict[str, Any]
    payload: memoryview
    version: int = FORMAT_VERSION


def to_text(value: object) -> str:
    """Return a value as the compact JSON of headers."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def encode_frame(
    kind: str, header: dict[str, Any] | str, payload: Sequence[bytes] = (), *, version: int | None = None
) -> bytes:
    """Return the file's bytes. ``header`` may be JSON text. The parts of ``payload`` are copied once."""
    body = (header if isinstance(header, str) else to_text(header)).encode() + b"\n"
    digest = xxhash.xxh3_128(body)
    for part in payload:
        digest.update(part)
    first = f'{{"streamhouse":"{kind}","version":{version or FORMAT_VERSION},"xxh3":"{digest.hexdigest()}"}}\n'.encode()
    return b"".join((first, body, *payload))


def decode_frame(kind: str, data: bytes, where: str, *, newest: int | None = None) -> Frame:
    """Return header and payload of a file.

    Raises `CorruptDataError` for damaged bytes, `FormatVersionError` for a format newer than ``newest``.
    """
    match = _FIRST_LINE.match(data, 0, _FIRST_LINE_BYTES_MAX)
    if match is None or match[1] != kind.encode():
        raise CorruptDataError(f"{where} ({len(data)} bytes) does not begin like a {kind} file; restore this file")
    if not 1 <= int(match[2]) <= (newest or FORMAT_VERSION):
        raise FormatVersionError(
            f"{where} has format version {int(match[2])}, expected at most {newest or FORMAT_VERSION}; upgrade "
            "streamhouse-spark",
        )
    body = memoryview(data)[match.end() :]
    if xxhash.xxh3_128_hexdigest(body) != match[3].decode():
        raise CorruptDataError(f"{where} ({len(data)} bytes) does not match its checksum; restore this file")
    header_end = data.find(b"\n", match.end())
    header = _parse_header(data[match.end() : max(header_end, match.end())], kind, where)
    return Frame(header, memoryview(data)[header_end + 1 :], int(match[2]))


@contextmanager
def translate_field_errors(kind: str, where: str) -> Iterator[None]:
    """Raise `CorruptDataError` for a file with a correct checksum but unexpected fields."""
    try:
        yield
    except _WRONG_FIELDS as error:
        raise _wrong_kind_error(kind, where, error) from error


def _parse_header(data: bytes, kind: str, where: str) -> _Header:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _wrong_kind_error(kind, where, error) from error
    if not isinstance(parsed, dict):
        raise _wrong_kind_error(kind, where, TypeError(f"the header is a {type(parsed).__name__}"))
    header = _Header(parsed)
    header.kind, header.where = kind, where
    return header


class _Header(dict[str, Any]):
    """A header that names its file in errors."""

    kind = where = ""

    def __missing__(self, name: str) -> Any:
        raise _wrong_kind_error(self.kind, self.where, KeyError(name))

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self),)


def _wrong_kind_error(kind: str, where: str, error: Exception) -> CorruptDataError:
    return CorruptDataError(
        f"{where} has a correct checksum but not the fields of a {kind} file ({type(error).__name__}: "
        f"{str(error)[:200]}), so another program wrote it; restore this file"
    )
