"""Rows that tasks of a stream carry to the driver; without a JVM, by the pickle that it writes."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from streamhouse_spark import SchemaMismatchError, TransactionConflictError, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_write_options
from streamhouse_spark.datasource.write.spark_writer import StreamhouseStreamWriter
from streamhouse_spark.log.staging import INLINE_BYTES_MAX
from streamhouse_spark.warehouse.process_cache import Connection

NAME = "d.t"
FRAME = StructType([StructField("id", LongType())])
ROWS = pa.schema([("id", pa.int64())])
QUERY = "6c0d0c3c-6d3a-4c39-8d8a-0d8a3c9b7f10"

pytestmark = pytest.mark.usefixtures("own_cache")


def carried(*ids: int, query_id: str | None = QUERY) -> Any:
    """The message of a task as `PythonWriter` of the jar pickles it."""
    sink = pa.BufferOutputStream()
    if ids:
        with pa.ipc.new_stream(sink, ROWS) as stream:
            stream.write_batch(pa.RecordBatch.from_pydict({"id": list(ids)}, schema=ROWS))
    data = sink.getvalue().to_pybytes()
    call = b"\x80\x03cstreamhouse_spark.datasource.write.inline_rows\nInlineRows\n(B"
    query = b"N" if query_id is None else b"X" + struct.pack("<i", len(query_id)) + query_id.encode()
    return pickle.loads(call + struct.pack("<i", len(data)) + data + query + b"tR.")


def writer(url: str) -> StreamhouseStreamWriter:
    options = parse_stream_write_options({"path": NAME})
    return StreamhouseStreamWriter(Connection.of(url, {}), NAME, options, None, FRAME)


def ids(table: Any) -> list[int]:
    return table.to_arrow()["id"].to_pylist()


@pytest.fixture
def table(warehouse_path):
    return Warehouse(warehouse_path).create_table(NAME, "id BIGINT")


def test_carried_rows_are_one_segment_in_the_order_of_their_tasks(warehouse_path, table):
    messages = [carried(3, 1), carried(), carried(2)]
    for _ in range(2):  # a batch that is repeated adds nothing
        writer(warehouse_path).commit(messages, 0)
    assert ids(table) == [3, 1, 2]
    assert [segment["num_rows"] for segment in table.inspect.segments().to_pylist()] == [3]
    entry = table.refresh().transactions[QUERY]
    assert (entry.version, entry.owner) == (0, QUERY)


def test_rows_are_in_the_record_where_an_append_would_have_them_there(warehouse_path, table):
    few, many = INLINE_BYTES_MAX // 16, INLINE_BYTES_MAX // 4
    writer(warehouse_path).commit([carried(*range(few))], 0)
    assert table.inspect.segments()["file"].to_pylist() == [None]
    writer(warehouse_path).commit([carried(*range(few, many))], 1)
    assert len([name for name in table.inspect.segments()["file"].to_pylist() if name is not None]) == 1
    assert ids(table) == list(range(many))


def test_tasks_that_carried_and_tasks_that_staged_make_one_batch(warehouse_path, table):
    one = writer(warehouse_path)
    staged = one.write(iter([pa.RecordBatch.from_pydict({"id": list(range(10, 20_000))}, schema=ROWS)]))
    one.commit([carried(1), staged, carried(2), carried(3)], 0)
    assert sorted(ids(table)) == [1, 2, 3, *range(10, 20_000)]
    assert table.refresh().version == 2


def test_upserts_are_made_in_the_order_of_the_tasks(warehouse_path):
    table = Warehouse(warehouse_path).create_table(NAME, "id BIGINT, n BIGINT", primary_key=["id"])
    writer(warehouse_path).commit([carried(1, 2), carried(2)], 0)
    assert sorted(ids(table)) == [1, 2]


def test_no_rows_leave_no_record(warehouse_path, table):
    writer(warehouse_path).commit([carried(), carried()], 0)
    assert table.refresh().version == 1


def test_rows_that_do_not_fit_and_two_queries_are_refused(warehouse_path):
    table = Warehouse(warehouse_path).create_table(NAME, "id TINYINT")
    with pytest.raises(SchemaMismatchError, match="300"):
        writer(warehouse_path).commit([carried(1), carried(300)], 0)
    with pytest.raises(TransactionConflictError):
        writer(warehouse_path).commit([carried(1), carried(2, query_id="other")], 0)
    assert table.refresh().version == 1
