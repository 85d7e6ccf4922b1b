"""Column projection of Arrow IPC record batches: locates the buffers of columns, and builds a smaller batch from them.

A batch in a file is a *message*: a prefix with the length of the head, the head (a FlatBuffers table), and a body with
the buffers of all columns, one column after the other. Arrow's reader requests each buffer of a projection separately.
This module computes the positions in advance, so that the buffers of all batches are fetched in one request.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.storage.base import Bytes

PREFIX_BYTES = 8
"""Bytes of a marker and the length of the head."""
FILE_HEAD_BYTES = 8
"""Bytes of the magic at the start of a file, before the schema message."""
_ALIGNMENT_BYTES = 8
_ENTRY_BYTES = 16
_OTHER_HEAD_BYTES = 256
"""Upper bound on the bytes of a head without the entries of its columns."""

# Member numbers in Arrow's FlatBuffers tables.
_MESSAGE_HEADER, _MESSAGE_BODY_BYTES = 2, 3
_BATCH_NODES, _BATCH_BUFFERS = 1, 2


@dataclass(frozen=True, slots=True)
class _Counts:
    """Numbers of entries of a column in the head of a batch."""

    nodes: int
    buffers: int


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """Selected columns of a file, in the file's order."""

    schema: pa.Schema
    head_bytes_max: int
    """Upper bound on the bytes of prefix and head of a batch."""
    nodes: npt.NDArray[np.bool_]
    """Whether each node of a batch belongs to the selected columns."""
    buffers: tuple[tuple[int, int], ...]
    """The range of buffers of each selected column."""

    @classmethod
    def of(cls, schema: pa.Schema, names: Iterable[str]) -> ColumnSelection:
        """Select columns of the schema by name."""
        chosen = set(names)
        nodes: list[bool] = []
        buffers: list[tuple[int, int]] = []
        first_buffer = 0
        for field in schema:
            counts = _counts(field.type)
            nodes += [field.name in chosen] * counts.nodes
            if field.name in chosen:
                buffers.append((first_buffer, first_buffer + counts.buffers))
            first_buffer += counts.buffers
        fields = [field for field in schema if field.name in chosen]
        head_bytes = PREFIX_BYTES + _OTHER_HEAD_BYTES + _ENTRY_BYTES * (len(nodes) + first_buffer)
        return cls(pa.schema(fields), head_bytes, np.array(nodes, np.bool_), tuple(buffers))


@dataclass(frozen=True, slots=True)
class IpcBatchLayout:
    """The byte ranges of one batch that hold the selected columns."""

    ranges: tuple[tuple[int, int], ...]
    """The file range of each column."""
    _head: memoryview
    _columns: ColumnSelection

    @classmethod
    def of(cls, head: memoryview, body_start: int, columns: ColumnSelection) -> IpcBatchLayout:
        """Locate the columns of a batch. ``head`` is its prefix and head, and its body starts at ``body_start``."""
        _, buffers = _entries(head)
        ranges = []
        for first, last in columns.buffers:
            start, end = int(buffers[first, 0]), int(buffers[last - 1].sum())
            ranges.append((body_start + start, body_start + end))
        return cls(tuple(ranges), head, columns)

    def batch(self, parts: Sequence[Bytes]) -> pa.RecordBatch:
        """Return the batch of the selected columns from the bytes of `ranges`. Arrow decompresses the bytes."""
        head = bytearray(self._head)
        nodes, buffers = _entries(head)
        selected = nodes[self._columns.nodes]
        nodes[: len(selected)] = selected
        body: list[Bytes] = []
        moved, body_bytes = [], 0
        for (first, last), part in zip(self._columns.buffers, parts, strict=True):
            places = buffers[first:last].copy()
            places[:, 0] += body_bytes - places[0, 0]
            moved.append(places)
            padding = -len(part) % _ALIGNMENT_BYTES
            body += (part, bytes(padding))
            body_bytes += len(part) + padding
        count = sum(map(len, moved))
        if moved:
            buffers[:count] = np.concatenate(moved)
        _resize(head, len(selected), count, body_bytes)
        return pa.ipc.read_record_batch(pa.py_buffer(b"".join((head, *body))), self._columns.schema)


def head_end(prefix: Bytes, start: int) -> int:
    """Return the end of the head of the message that starts at ``start``, given its prefix."""
    return start + PREFIX_BYTES + int.from_bytes(prefix[4:PREFIX_BYTES], "little")


def _counts(data_type: pa.DataType) -> _Counts:
    inner = [_counts(data_type.field(place).type) for place in range(data_type.num_fields)]
    own = 1 if pa.types.is_struct(data_type) else 3 if _has_offsets_and_bytes(data_type) else 2
    return _Counts(1 + sum(child.nodes for child in inner), own + sum(child.buffers for child in inner))


def _has_offsets_and_bytes(data_type: pa.DataType) -> bool:
    types = pa.types
    type_checks = (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    return any(has_type(data_type) for has_type in type_checks)


@dataclass(frozen=True, slots=True)
class _FlatTable:
    """A FlatBuffers table. Members have numbers and may be absent."""

    data: Bytes
    at: int

    def place(self, number: int) -> int:
        """Return the position of a required member."""
        offsets = self.at - self._read("<i", self.at)
        offset = self._read("<H", offsets + 4 + 2 * number) if 4 + 2 * number < self._read("<H", offsets) else 0
        if not offset:
            raise ValueError(f"the head of a batch has no member {number}")
        return self.at + offset

    def target(self, number: int) -> int:
        """Return the position that a member refers to."""
        place = self.place(number)
        return place + self._read("<I", place)

    def _read(self, form: str, place: int) -> int:
        (number,) = struct.unpack_from(form, self.data, place)
        return int(number)


def _batch_table(head: Bytes) -> _FlatTable:
    return _FlatTable(head, _message_table(head).target(_MESSAGE_HEADER))


def _message_table(head: Bytes) -> _FlatTable:
    (root,) = struct.unpack_from("<I", head, PREFIX_BYTES)
    return _FlatTable(head, PREFIX_BYTES + root)


def _entries(head: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the nodes and the buffers of a batch as arrays of pairs, which are views of ``head``."""
    batch = _batch_table(head)
    vectors = []
    for number in (_BATCH_NODES, _BATCH_BUFFERS):
        place = batch.target(number)
        (count,) = struct.unpack_from("<I", head, place)
        vectors.append(np.frombuffer(head, "<i8", 2 * count, place + 4).reshape(count, 2))
    return vectors[0], vectors[1]


def _resize(head: bytearray, nodes: int, buffers: int, body_bytes: int) -> None:
    batch = _batch_table(head)
    struct.pack_into("<I", head, batch.target(_BATCH_NODES), nodes)
    struct.pack_into("<I", head, batch.target(_BATCH_BUFFERS), buffers)
    struct.pack_into("<q", head, _message_table(head).place(_MESSAGE_BODY_BYTES), body_bytes)
