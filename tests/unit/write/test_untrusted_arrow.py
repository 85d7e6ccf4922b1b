"""Arrow data that lies about itself. Without the checks, some of these end the process."""

from __future__ import annotations

import io
import struct

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark import SchemaMismatchError
from streamhouse_spark.write.file_readers import CsvOptions, read_body
from streamhouse_spark.write.untrusted_arrow import IpcLimits, require_supported_columns, validate_messages

LIMITS = IpcLimits(rows=1_000, bytes=1 << 20)
GOOD = pa.table(
    {
        "id": [1, 2],
        "s": ["a", None],
        "l": [[1], None],
        "x": [{"a": 1, "b": None}, None],
        "m": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        "d": pa.array(["u", "u"]).dictionary_encode(),
        "v": pa.array(["w" * 20, None], pa.string_view()),
        "n": pa.nulls(2),
    }
)


def written(rows, *, compression=None, as_file=False):
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_file if as_file else pa.ipc.new_stream)(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def read(body, limits=LIMITS):
    return read_body(body, "arrow", CsvOptions(), limits)


def strings(*offsets, data=b"abc"):
    buffers = [None, pa.py_buffer(np.array(offsets, "<i4").tobytes()), pa.py_buffer(data)]
    return pa.table({"s": pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)})


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("as_file", [False, True])
def test_what_is_sound_is_read(compression, as_file):
    assert read(written(GOOD, compression=compression, as_file=as_file)).equals(GOOD)
    assert read(written(GOOD.slice(0, 0), compression=compression, as_file=as_file)).num_rows == 0


@pytest.mark.parametrize(
    "rows",
    [
        strings(0, 90_000_000, 3),
        strings(0, -9, 3),
        strings(0, 2, data=b"\xff\xfe"),
        pa.table({"s": pa.DictionaryArray.from_arrays(pa.array([0, 5_000], pa.int32()), ["a"], safe=False)}),
        pa.table({"d": pa.Array.from_buffers(pa.decimal128(9, 2), 1, [None, pa.py_buffer(b"\xff" * 15 + b"\x70")])}),
    ],
    ids=["beyond the buffer", "negative", "no UTF-8", "no such word", "too many digits"],
)
@pytest.mark.parametrize("as_file", [False, True])
def test_values_outside_their_buffers_are_rejected(rows, as_file):
    with pytest.raises(SchemaMismatchError, match="cannot read the body"):
        read(written(rows, as_file=as_file))


def test_lists_longer_than_their_values():
    body = written(pa.table({"l": [[7]]}))
    at = body.rindex(struct.pack("<ii", 0, 1))
    with pytest.raises(SchemaMismatchError, match="cannot read the body"):
        read(body[:at] + struct.pack("<ii", 0, 1_000_000) + body[at + 8 :])


def test_few_bytes_that_claim_many_rows_are_rejected():
    body = written(pa.table({"s": pa.nulls(10**9)}))
    assert len(body) < 1_000
    with pytest.raises(SchemaMismatchError, match="more than 1,000 rows"):
        read(body)
    body = written(pa.concat_tables([pa.table({"s": pa.nulls(600)})] * 2))
    with pytest.raises(SchemaMismatchError, match="more than 1,000 rows"):
        read(body)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_few_bytes_that_become_many(compression):
    body = written(pa.table({"s": ["x" * (3 << 20)]}), compression=compression)
    assert len(body) < 1 << 20
    with pytest.raises(SchemaMismatchError, match=r"more than 1 MiB uncompressed; send the rows in several requests$"):
        read(body)
    assert read(body, None).num_rows == 1


@pytest.mark.parametrize(
    "column",
    [
        pa.RunEndEncodedArray.from_arrays(pa.array([2**31 - 1], pa.int32()), pa.array([7])),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    ],
    ids=["runs", "union"],
)
def test_types_that_no_column_has(column):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema([("c", column.type)])) as writer:
        writer.write_batch(pa.record_batch([column], names=["c"]))
    with pytest.raises(SchemaMismatchError, match="is not supported; cast"):
        read(sink.getvalue())


@pytest.mark.parametrize("inner", [False, True])
def test_names_that_are_no_text(inner):
    rows = pa.table({"a": [{"zzzz": 1}]}) if inner else pa.table({"zzzz": [1]})
    body = written(rows).replace(b"zzzz", b"\xff\xfe\xfd\xfc")
    with pytest.raises(SchemaMismatchError, match="the name of a column is not UTF-8"):
        read(body)
    with pytest.raises(SchemaMismatchError, match="the name of a column is not UTF-8"):
        read_body(b"\xff\xfe,b\n1,2\n", "csv", CsvOptions())


def test_a_type_that_is_nested_too_deep():
    kind = pa.int32()
    for _ in range(100):
        kind = pa.list_(kind)
    with pytest.raises(SchemaMismatchError, match="is not supported; cast"):
        require_supported_columns(pa.schema([("c", kind)]))


@pytest.mark.parametrize("length", [0, 3, 8, 40, 200])
def test_an_end_that_is_missing(length):
    with pytest.raises(SchemaMismatchError):
        read(written(GOOD)[:length])


@pytest.mark.parametrize("number", [1, 2])
def test_a_stream_without_a_schema_is_rejected(number):
    body = written(GOOD.select(["id", "d"]))
    source = pa.BufferReader(body)
    reader = pa.ipc.MessageReader.open_stream(source)
    for _ in range(number):
        reader.read_next_message()
    with pytest.raises(SchemaMismatchError, match="the first message is not a schema"):
        read(body[source.tell() :])


def test_a_stream_that_goes_on_with_a_negative_length():
    with pytest.raises(SchemaMismatchError, match="cannot read the body"):
        read(b"\xfe" + written(GOOD)[1:])


def test_a_message_head_that_leads_nowhere_is_rejected():
    body = written(GOOD.select(["id"]))
    source = pa.BufferReader(body)
    reader = pa.ipc.MessageReader.open_stream(source)
    reader.read_next_message()
    head = bytes(reader.read_next_message().metadata)
    at = body.index(head)
    for position in range(0, len(head), 3):
        for value in (0x00, 0x7F, 0xFF):
            broken = bytearray(body)
            broken[at + position] = value
            try:
                validate_messages(pa.BufferReader(bytes(broken)), LIMITS)
            except (SchemaMismatchError, pa.ArrowException, OSError):
                continue
