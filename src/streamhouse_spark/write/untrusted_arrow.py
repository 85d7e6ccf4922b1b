"""Validation of Arrow data from untrusted sources, before Arrow's own reader trusts it.

The format has no checksums, and the reader trusts lengths and offsets. A few bytes can allocate gigabytes, or refer to
values outside their buffers, which crashes the process. So the metadata of each message is checked first, and then all
values that were read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import SchemaMismatchError

_MAGIC: Final = b"ARROW1\0\0"
"""Start of a file; the rest is like a stream."""
_SCHEMA: Final = "schema"
_DICTIONARY: Final = "dictionary"
_BATCH: Final = "record batch"
_COUNT: Final = struct.Struct("<q")
_PAIR: Final = struct.Struct("<qq")
_DEPTH_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class IpcLimits:
    """Limits of an input, whatever its metadata declares."""

    rows: int
    """Rows of all batches: columns of nulls take no bytes."""
    bytes: int
    """Uncompressed bytes of all buffers."""


def require_sound(source: pa.NativeFile, limits: IpcLimits | None = None) -> None:
    """Check all messages of a stream or file, without reading a value.

    Raises `SchemaMismatchError` for data that Arrow's reader must not see, and pyarrow's `ArrowInvalid` for data that
    is not Arrow.
    """
    source.seek(len(_MAGIC) if source.read(len(_MAGIC)) == _MAGIC else 0)
    reader = pa.ipc.MessageReader.open_stream(source)
    first = next(_iter_messages(reader), None)
    if first is None or first.type != _SCHEMA:  # read_schema accepts any message, and may crash the process
        raise pa.ArrowInvalid("it does not begin with a schema")
    require_readable(pa.ipc.read_schema(first))
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


def sound_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches after checking all their values. Raises pyarrow's `ArrowInvalid`."""
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
        """Read the header of a record batch or of a dictionary's batch. Raises `SchemaMismatchError`."""
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
            raise SchemaMismatchError(f"a batch of the Arrow data has a head that cannot be read: {error}") from error
        if batch.length < 0:
            raise SchemaMismatchError(f"a batch of the Arrow data has {batch.length} rows, which cannot be")
        return batch

    def size_bytes(self, message: Any) -> int:
        """Return the uncompressed bytes of all buffers."""
        if not self.is_compressed:
            return sum(length for _, length in self.buffers)
        total = 0
        for offset, length in self.buffers:
            if length >= _COUNT.size:
                if not 0 <= offset <= message.body.size - _COUNT.size:
                    raise SchemaMismatchError("a batch of the Arrow data has a buffer outside of its body")
                total += max(length, _COUNT.unpack_from(message.body, offset)[0])
        return total


def _follow_offset(data: bytes, at: int) -> int:
    """Return the position that an offset of the header points to."""
    (distance,) = struct.unpack_from("<I", data, at)
    return int(at + distance)


def _find_field(data: bytes, table: int, number: int) -> int | None:
    """Return the position of a field of a table; None if it is omitted."""
    (back,) = struct.unpack_from("<i", data, table)
    names = table - back
    if names < 0:
        raise IndexError("a table lies outside of it")
    (size,) = struct.unpack_from("<H", data, names)
    at = 4 + 2 * number
    (distance,) = struct.unpack_from("<H", data, names + at) if at < size else (0,)
    return table + distance if distance else None


def _find_table(data: bytes, table: int, number: int) -> int:
    at = _find_field(data, table, number)
    if at is None:
        raise IndexError("a part is missing")
    return _follow_offset(data, at)


def _read_buffers(data: bytes, table: int, number: int) -> tuple[tuple[int, int], ...]:
    at = _find_field(data, table, number)
    if at is None:
        return ()
    vector = _follow_offset(data, at)
    (count,) = struct.unpack_from("<I", data, vector)
    if count * _PAIR.size > len(data) - vector:
        raise IndexError("a list is longer than it")
    return tuple(_PAIR.unpack_from(data, vector + 4 + i * _PAIR.size) for i in range(count))


def require_readable(schema: pa.Schema) -> None:
    """Raise `SchemaMismatchError` for columns whose names or types no table can have, and Python cannot show."""
    for position in range(len(schema)):
        _require_field(schema.field(position), 0)


def _require_field(field: pa.Field, depth: int) -> None:
    try:
        field.name.encode()
    except UnicodeError as error:
        raise SchemaMismatchError(f"a column has a name that is no UTF-8 ({error}); rename it") from error
    _require_supported(field.type, depth)


def _require_supported(kind: pa.DataType, depth: int) -> None:
    """Raise `SchemaMismatchError` for types that no column can have, before any value is read."""
    is_supported = not (
        pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind) or isinstance(kind, pa.BaseExtensionType)
    )
    if not is_supported or depth > _DEPTH_MAX or "view<" in str(kind)[:16]:
        raise SchemaMismatchError(f"the Arrow type {str(kind)[:100]} is none that a column can have; cast it first")
    if pa.types.is_dictionary(kind):
        _require_supported(kind.value_type, depth + 1)
    for number in range(kind.num_fields):
        _require_field(kind.field(number), depth + 1)
