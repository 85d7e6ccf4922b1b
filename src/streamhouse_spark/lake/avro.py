"""Reader and writer of Avro files, the metadata format of Iceberg and Paimon."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CorruptDataError

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_DAMAGE: Final = (ValueError, LookupError, TypeError, ArithmeticError, EOFError, zlib.error, pa.ArrowException)

Decode = Callable[[BytesIO], Any]
Encode = Callable[[BytesIO, Any], None]


@dataclass(frozen=True, slots=True)
class AvroFile:
    """An Avro file in memory: the metadata of its header, and its records."""

    header: Mapping[str, bytes]
    sync: bytes
    records: list[Any]


def read_avro(data: bytes, location: str) -> AvroFile:
    """Return the parsed Avro file. Raises `CorruptDataError` for invalid bytes."""
    try:
        return _parse_file(data)
    except _DAMAGE as error:
        raise CorruptDataError(
            f"cannot read lake file {location} ({type(error).__name__}: {error}); restore it, "
            "or rebuild the lake from the log (streamhouse retier)"
        ) from error


def require_whole_avro(data: bytes, location: str) -> bytes:
    """Return the bytes if they end at the end of an Avro block. Raises `CorruptDataError`."""
    try:
        _, sync = _read_header(BytesIO(data))
    except _DAMAGE:
        sync = None
    if sync is None or not data.endswith(sync):
        raise CorruptDataError(
            f"lake file {location} is truncated after {len(data)} bytes; restore it, "
            "or rebuild the lake from the log (streamhouse retier)"
        )
    return data


def encode_avro(file: AvroFile) -> bytes:
    """Return the bytes of a file with one deflate-compressed block."""
    _, encode = _codec(json.loads(file.header["avro.schema"]), {})
    body = BytesIO()
    for record in file.records:
        encode(body, record)
    packer = zlib.compressobj(wbits=-15)
    block = packer.compress(body.getvalue()) + packer.flush()
    out = BytesIO()
    out.write(_MAGIC)
    header = {**file.header, "avro.codec": b"deflate"}
    _put_long(out, len(header))
    for key, value in header.items():
        _put_bytes(out, key.encode())
        _put_bytes(out, value)
    _put_long(out, 0)
    out.write(file.sync)
    if file.records:
        _put_long(out, len(file.records))
        _put_bytes(out, block)
        out.write(file.sync)
    return out.getvalue()


def _parse_file(data: bytes) -> AvroFile:
    source = BytesIO(data)
    header, sync = _read_header(source)
    decode, _ = _codec(json.loads(header["avro.schema"]), {})
    codec = header.get("avro.codec", b"null").decode()
    records: list[Any] = []
    while source.tell() < len(data):
        count = _get_long(source)
        block = BytesIO(_decompress_block(codec, _get_bytes(source)))
        records += [decode(block) for _ in range(count)]
        if source.read(_SYNC_BYTES) != sync:
            raise ValueError("a block does not end with the sync marker of the file")
    return AvroFile(header, sync, records)


def _read_header(source: BytesIO) -> tuple[dict[str, bytes], bytes]:
    """Return the metadata of a file, and its sync marker."""
    if source.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("no Avro magic bytes")
    header: dict[str, bytes] = {}
    while count := _block_count(source):
        for _ in range(count):
            key = _get_bytes(source).decode()
            header[key] = _get_bytes(source)
    return header, _read_exactly(source, _SYNC_BYTES)


def _decompress_block(codec: str, block: bytes) -> bytes:
    if codec == "null":
        return block
    if codec == "deflate":
        return zlib.decompress(block, wbits=-15)
    if codec in ("zstandard", "bzip2"):
        name = {"zstandard": "zstd", "bzip2": "bz2"}[codec]
        return bytes(pa.input_stream(pa.py_buffer(block), compression=name).read())
    if codec == "snappy":  # the block ends with a four-byte checksum
        size_bytes, shift, position = 0, 0, 0
        while True:
            size_bytes |= (block[position] & 0x7F) << shift
            if block[position] < 0x80:
                break
            position, shift = position + 1, shift + 7
        return bytes(pa.Codec("snappy").decompress(block[:-4], decompressed_size=size_bytes))
    raise ValueError(f"unknown compression {codec}")


# -- values -----------------------------------------------------------------------------------------------------------


def _codec(schema: Any, named: dict[str, tuple[Decode, Encode]]) -> tuple[Decode, Encode]:
    if isinstance(schema, list):
        return _codec_of_union([_codec(branch, named) for branch in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if not isinstance(kind, str):
        return _codec(kind, named)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "record":
        return _codec_of_record(schema, named)
    if kind == "array":
        return _codec_of_array(_codec(schema["items"], named))
    if kind == "map":
        return _codec_of_array(_codec_of_pair(_PLAIN["string"], _codec(schema["values"], named)))
    if kind == "fixed":
        return _codec_of_type(schema, named, _codec_of_fixed(int(schema["size"])))
    if kind == "enum":
        return _codec_of_type(schema, named, _PLAIN["int"])
    return named[_simple(kind)]


def _codec_of_type(
    schema: Any, named: dict[str, tuple[Decode, Encode]], codec: tuple[Decode, Encode]
) -> tuple[Decode, Encode]:
    named[_simple(schema["name"])] = codec
    return codec


def _simple(name: str) -> str:
    """Return a name without its namespace, which is often inherited. Type names in one file are unique without it."""
    return name.rpartition(".")[2]


def _codec_of_record(schema: Any, named: dict[str, tuple[Decode, Encode]]) -> tuple[Decode, Encode]:
    fields: list[tuple[str, Decode, Encode]] = []

    def decode(source: BytesIO) -> Any:
        return {name: read(source) for name, read, _ in fields}

    def encode(out: BytesIO, value: Any) -> None:
        for name, _, write in fields:
            write(out, value[name])

    codec = _codec_of_type(schema, named, (decode, encode))
    fields.extend((field["name"], *_codec(field["type"], named)) for field in schema["fields"])
    return codec


def _codec_of_union(branches: list[tuple[Decode, Encode]]) -> tuple[Decode, Encode]:
    def decode(source: BytesIO) -> Any:
        branch = _get_long(source)
        if not 0 <= branch < len(branches):
            raise ValueError(f"a union has no branch {branch}")
        return branch, branches[branch][0](source)

    def encode(out: BytesIO, value: Any) -> None:
        branch, member = value
        _put_long(out, branch)
        branches[branch][1](out, member)

    return decode, encode


def _codec_of_array(item: tuple[Decode, Encode]) -> tuple[Decode, Encode]:
    def decode(source: BytesIO) -> Any:
        items: list[Any] = []
        while count := _block_count(source):
            items += [item[0](source) for _ in range(count)]
        return items

    def encode(out: BytesIO, value: Any) -> None:
        if value:
            _put_long(out, len(value))
            for member in value:
                item[1](out, member)
        _put_long(out, 0)

    return decode, encode


def _codec_of_pair(key: tuple[Decode, Encode], second: tuple[Decode, Encode]) -> tuple[Decode, Encode]:
    def encode(out: BytesIO, value: Any) -> None:
        key[1](out, value[0])
        second[1](out, value[1])

    return lambda source: (key[0](source), second[0](source)), encode


def _codec_of_fixed(size_bytes: int) -> tuple[Decode, Encode]:
    return lambda source: _read_exactly(source, size_bytes), _put_raw


def _read_exactly(source: BytesIO, size_bytes: int) -> bytes:
    data = source.read(size_bytes)
    if len(data) != size_bytes:
        raise EOFError("the file ends within a value")
    return data


def _get_long(source: BytesIO) -> int:
    value = shift = 0
    while True:
        (byte,) = _read_exactly(source, 1)
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)


def _put_long(out: BytesIO, value: int) -> None:
    rest = (value << 1) ^ (value >> 63)
    while rest & ~0x7F:
        out.write(bytes(((rest & 0x7F) | 0x80,)))
        rest >>= 7
    out.write(bytes((rest,)))


def _block_count(source: BytesIO) -> int:
    count = _get_long(source)
    if count < 0:  # the size of the block follows
        _get_long(source)
    return abs(count)


def _get_bytes(source: BytesIO) -> bytes:
    size_bytes = _get_long(source)
    if size_bytes < 0:
        raise ValueError(f"a value has {size_bytes} bytes")
    return _read_exactly(source, size_bytes)


def _put_bytes(out: BytesIO, value: bytes) -> None:
    _put_long(out, len(value))
    out.write(value)


def _put_raw(out: BytesIO, value: bytes) -> None:
    out.write(value)


_PLAIN: Final[Mapping[str, tuple[Decode, Encode]]] = {
    "null": (lambda _: None, lambda _out, _value: None),
    "boolean": _codec_of_fixed(1),
    "int": (_get_long, _put_long),
    "long": (_get_long, _put_long),
    "float": _codec_of_fixed(4),
    "double": _codec_of_fixed(8),
    "bytes": (_get_bytes, _put_bytes),
    "string": (lambda source: _get_bytes(source).decode(), lambda out, value: _put_bytes(out, value.encode())),
}
