"""Commits of several sinks of one driver into one table share a record; without a JVM."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from faults.turns import in_turns
from streamhouse_spark import Warehouse
from streamhouse_spark.config.spark_options import parse_write_options
from streamhouse_spark.datasource.write.spark_writer import StreamhouseWriter
from streamhouse_spark.log.record import read_record
from streamhouse_spark.warehouse.process_cache import Connection

NAME = "d.t"
FRAME = StructType([StructField("id", LongType(), nullable=False), StructField("n", IntegerType())])

pytestmark = pytest.mark.usefixtures("own_cache")


def committed(url, batches):
    """Stage each batch as the task of a write of its own, and commit all at the same time. Returns the newest record's
    number of attempts.
    """
    calls = []
    for number, rows in enumerate(batches):
        options = parse_write_options({"path": NAME, "txnAppId": f"query {number}", "txnVersion": "1"})
        writer = StreamhouseWriter(Connection.of(url, {}), NAME, options, FRAME, is_clustered=True)
        batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("id", pa.int64()), ("n", pa.int32())]))
        message = pickle.loads(pickle.dumps(writer.write(iter([batch]))))
        calls.append(lambda writer=writer, message=message: writer.commit([message]))
    assert in_turns(calls) == [None] * len(calls)
    table = Warehouse(url).table(NAME)
    return len(read_record(table.storage, table.uuid, table.state.version)[0].attempts)


def test_appends(warehouse_path):
    table = Warehouse(warehouse_path).create_table(NAME, "id BIGINT NOT NULL, n INT")
    assert committed(warehouse_path, [[{"id": i, "n": i}] for i in range(3)]) == 3
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_upserts_of_other_buckets_and_of_the_same(warehouse_path):
    """Changes that a task prepared join; those of a bucket that a neighbour's task changed are made in the next."""
    table = Warehouse(warehouse_path).create_table(
        NAME, "id BIGINT, n INT", primary_key=["id"], buckets=16,
        properties={"table.merge-engine": "aggregation", "fields.n.agg": "sum"},
    )  # fmt: skip
    table.upsert([{"id": i, "n": 1} for i in range(16)])
    by_bucket = {}
    for i in range(16):
        by_bucket.setdefault(table.keyed.keyed_schema().bucket_numbers([pa.array([i], pa.int64())])[0], i)
    one, two, three = list(by_bucket.values())[:3]
    known = table.refresh().version
    assert committed(warehouse_path, [[{"id": key, "n": 10}] for key in (one, two, three)]) == 3
    assert table.refresh().version == known + 1
    found = {row["id"]: row["n"] for row in table.to_arrow().to_pylist()}
    assert [found[key] for key in (one, two, three)] == [11] * 3


def test_upserts_of_one_key(warehouse_path):
    table = Warehouse(warehouse_path).create_table(
        NAME, "id BIGINT, n INT", primary_key=["id"],
        properties={"table.merge-engine": "aggregation", "fields.n.agg": "sum"},
    )  # fmt: skip
    table.upsert([{"id": 1, "n": 1}])
    committed(warehouse_path, [[{"id": 1, "n": 10}], [{"id": 1, "n": 100}], [{"id": 1, "n": 1000}]])
    assert table.to_arrow().to_pylist() == [{"id": 1, "n": 1111}]
    assert table.lookup([1], max_staleness_ms=0)["n"].to_pylist() == [1111]
