"""Validation of Arrow data from untrusted sources.

The Arrow format has no checksums, and Arrow's reader trusts lengths and offsets. A few bytes can allocate gigabytes, or
refer to values outside of their buffers, which crashes the process. So the metadata of each message is checked before
Arrow reads it, and all values are checked afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import SchemaMismatchError

_MAGIC: Final = b"ARROW1\0\0"
"""Start of an Arrow file, after which it has the format of a stream."""
_SCHEMA: Final = "schema"
_DICTIONARY: Final = "dictionary"
_BATCH: Final = "record batch"
_COUNT: Final = struct.Struct("<q")
_PAIR: Final = struct.Struct("<qq")
_DEPTH_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class IpcLimits:
    """Upper bounds of an input."""

    rows: int
    """Rows of all batches. Needed in addition to bytes, because columns of nulls have no bytes."""
    bytes: int
    """Uncompressed bytes of all buffers."""


def validate_messages(source: pa.NativeFile, limits: IpcLimits | None = None) -> None:
    """Check the metadata of all messages of a stream or file.

    Raises `SchemaMismatchError` for data that Arrow must not read, and pyarrow's `ArrowInvalid` for other formats.
    """
    source.seek(len(_MAGIC) if source.read(len(_MAGIC)) == _MAGIC else 0)
    reader = pa.ipc.MessageReader.open_stream(source)
    first = next(_iter_messages(reader), None)
    if first is None or first.type != _SCHEMA:  # read_schema accepts any message, and may crash the process
        raise pa.ArrowInvalid("the first message is not a schema")
    require_supported_columns(pa.ipc.read_schema(first))
    rows = size_bytes = 0
    for message in _iter_messages(reader):
        if message.type not in (_DICTIONARY, _BATCH):
            continue
        batch = _Batch.of(message)
        rows += batch.length
        size_bytes += batch.size_bytes(message)
        if limits is not None and (rows > limits.rows or size_bytes > limits.bytes):
            raise SchemaMismatchError(
                f"the Arrow data has more than {limits.rows:,} rows, or more than {limits.bytes >> 20} MiB "
                "uncompressed; send the rows in several requests"
            )


def validate_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check all values of each batch, and yield it. Raises pyarrow's `ArrowInvalid`."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _iter_messages(reader: Any) -> Iterator[Any]:
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


@dataclass(frozen=True, slots=True)
class _Batch:
    length: int
    buffers: tuple[tuple[int, int], ...]
    is_compressed: bool

    @classmethod
    def of(cls, message: Any) -> _Batch:
        """Read the header of a record batch or a dictionary batch. Raises `SchemaMismatchError`."""
        head = bytes(message.metadata)
        try:
            table = _find_table(head, _follow_offset(head, 0), 2)
            if message.type == _DICTIONARY:
                table = _find_table(head, table, 1)
            length = _find_field(head, table, 0)
            batch = cls(
                0 if length is None else _COUNT.unpack_from(head, length)[0],
                _read_buffers(head, table, 2),
                _find_field(head, table, 3) is not None,
            )
        except (struct.error, IndexError) as error:
            raise SchemaMismatchError(f"a batch of the Arrow data has an invalid header: {error}") from error
        if batch.length < 0:
            raise SchemaMismatchError(f"a batch of the Arrow data has {batch.length} rows, expected 0 or more")
        return batch

    def size_bytes(self, message: Any) -> int:
        """Return the uncompressed bytes of all buffers."""
        if not self.is_compressed:
            return sum(length for _, length in self.buffers)
        total = 0
        for offset, length in self.buffers:
            if length >= _COUNT.size:
                if not 0 <= offset <= message.body.size - _COUNT.size:
                    raise SchemaMismatchError("a batch of the Arrow data has a buffer outside of the message")
                total += max(length, _COUNT.unpack_from(message.body, offset)[0])
        return total


def _follow_offset(data: bytes, at: int) -> int:
    """Return the position to which the offset at ``at`` points."""
    (distance,) = struct.unpack_from("<I", data, at)
    return int(at + distance)


def _find_field(data: bytes, table: int, number: int) -> int | None:
    """Return the position of a field of a Flatbuffers table; None if the field is omitted."""
    (back,) = struct.unpack_from("<i", data, table)
    names = table - back
    if names < 0:
        raise IndexError("a table is outside of the header")
    (size,) = struct.unpack_from("<H", data, names)
    at = 4 + 2 * number
    (distance,) = struct.unpack_from("<H", data, names + at) if at < size else (0,)
    return table + distance if distance else None


def _find_table(data: bytes, table: int, number: int) -> int:
    at = _find_field(data, table, number)
    if at is None:
        raise IndexError("a table is missing")
    return _follow_offset(data, at)


def _read_buffers(data: bytes, table: int, number: int) -> tuple[tuple[int, int], ...]:
    at = _find_field(data, table, number)
    if at is None:
        return ()
    vector = _follow_offset(data, at)
    (count,) = struct.unpack_from("<I", data, vector)
    if count * _PAIR.size > len(data) - vector:
        raise IndexError("a list is longer than the header")
    return tuple(_PAIR.unpack_from(data, vector + 4 + i * _PAIR.size) for i in range(count))


def require_supported_columns(schema: pa.Schema) -> None:
    """Raise `SchemaMismatchError` for column names and types that tables do not support."""
    for position in range(len(schema)):
        _require_field(schema.field(position), 0)


def _require_field(field: pa.Field, depth: int) -> None:
    try:
        field.name.encode()
    except UnicodeError as error:
        raise SchemaMismatchError(f"the name of a column is not UTF-8 ({error}); rename it") from error
    _require_supported(field.type, depth)


def _require_supported(kind: pa.DataType, depth: int) -> None:
    is_supported = not (
        pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind) or isinstance(kind, pa.BaseExtensionType)
    )
    if not is_supported or depth > _DEPTH_MAX or "view<" in str(kind)[:16]:
        raise SchemaMismatchError(f"Arrow type {str(kind)[:100]} is not supported; cast the column to another type")
    if pa.types.is_dictionary(kind):
        _require_supported(kind.value_type, depth + 1)
    for number in range(kind.num_fields):
        _require_field(kind.field(number), depth + 1)
