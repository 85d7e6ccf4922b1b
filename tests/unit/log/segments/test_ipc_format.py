"""Any columns of any types are read out of stored batches, whatever codec they have."""

from __future__ import annotations

import datetime as dt
import decimal
import random

import pyarrow as pa
import pytest

from streamhouse_spark.log.segments.ipc_format import ColumnSelection, IpcBatchLayout, head_end

TYPES = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "big": pa.int64(),
    "real": pa.float32(),
    "price": pa.decimal128(15, 2),
    "text": pa.string(),
    "data": pa.binary(),
    "day": pa.date32(),
    "at": pa.timestamp("us", tz="UTC"),
    "words": pa.list_(pa.string()),
    "by_name": pa.map_(pa.string(), pa.list_(pa.int32())),
    "place": pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.struct([("t", pa.string()), ("b", pa.bool_())])))]),
    "last": pa.int16(),
}
SCHEMA = pa.schema(list(TYPES.items()))
VALUES = {
    "flag": True,
    "tiny": 7,
    "big": 1 << 60,
    "real": 1.5,
    "price": decimal.Decimal("12.34"),
    "text": "a text of some length",
    "data": b"\0\1\2",
    "day": dt.date(2026, 1, 2),
    "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "words": ["a", None, "bc"],
    "by_name": [("k", [1, 2]), ("l", None)],
    "place": {"x": 2.5, "tags": [{"t": "t", "b": None}, None]},
    "last": -3,
}


def batch_of(num_rows: int, null_share: float) -> pa.RecordBatch:
    chance = random.Random(num_rows)
    rows = [{n: None if chance.random() < null_share else v for n, v in VALUES.items()} for _ in range(num_rows)]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def read_by_pieces(file: bytes, start: int, names: list[str]) -> pa.RecordBatch:
    view = memoryview(file)
    end = head_end(view[start : start + 8], start)
    pieces = IpcBatchLayout.of(view[start:end], end, ColumnSelection.of(SCHEMA, names))
    return pieces.batch([view[low:high] for low, high in pieces.ranges])


@pytest.mark.parametrize("num_rows", [0, 1, 1000])
@pytest.mark.parametrize("null_share", [0, 0.3, 1])
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_any_columns_are_read_from_a_stored_batch(codec, null_share, num_rows):
    batch = batch_of(num_rows, null_share)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    file = sink.getvalue().to_pybytes()
    start = head_end(file[8:16], 8)
    chance = random.Random(0)
    choices = [[name] for name in TYPES] + [chance.sample(list(TYPES), chance.randrange(2, 13)) for _ in range(20)]
    for names in [*choices, list(TYPES)]:
        in_order = [name for name in TYPES if name in names]
        found = read_by_pieces(file, start, names)
        found.validate(full=True)
        assert found.equals(batch.select(in_order))


def test_a_batch_of_few_columns_is_as_small_as_they_are():
    batch = batch_of(1000, 0)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_batch(batch)
    file = memoryview(sink.getvalue().to_pybytes())
    start = head_end(file[8:16], 8)
    end = head_end(file[start : start + 8], start)
    chosen = ColumnSelection.of(SCHEMA, ["last", "big"])
    assert end - start <= chosen.head_bytes_max
    pieces = IpcBatchLayout.of(file[start:end], end, chosen)
    assert [high - low for low, high in pieces.ranges] == [8 * 1000, 2 * 1000]
