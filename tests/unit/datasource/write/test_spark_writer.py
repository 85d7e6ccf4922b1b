"""Commits of Spark writes: on restored tables, shared by several sinks, and with generated columns."""

from __future__ import annotations

import pickle
import shutil

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from faults.turns import in_turns
from kit.rows import sorted_tuples
from streamhouse_spark import (
    CommitConflictError,
    ConstraintViolatedError,
    DifferentHistoryError,
    InvalidOptionError,
    Warehouse,
)
from streamhouse_spark.config.spark_options import parse_stream_write_options, parse_write_options
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.dml.keyed_row_writer import KeyedRowWriter
from streamhouse_spark.datasource.write.replaced_part import ReplacedPart
from streamhouse_spark.datasource.write.spark_writer import StreamhouseStreamWriter, StreamhouseWriter
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.record import read_record
from streamhouse_spark.schema.ddl import parse_columns
from streamhouse_spark.warehouse.process_cache import Connection

pytestmark = pytest.mark.usefixtures("own_cache")

NAME = "sales.orders"
FRAME = StructType([StructField("id", LongType(), nullable=False), StructField("text", StringType())])


def writer_of(kind, wh, table, *, is_clustered):
    opened = Connection.of(wh.url, {})
    if kind == "statement":
        return KeyedRowWriter(opened, NAME, ReadVersion.of(table.refresh()), FRAME, is_clustered=is_clustered)
    if kind == "stream":
        options = parse_stream_write_options({"path": NAME, "txnAppId": "app"})
        return StreamhouseStreamWriter(opened, NAME, options, None, FRAME, is_clustered=is_clustered)
    options = parse_write_options({"path": NAME})
    return StreamhouseWriter(opened, NAME, options, FRAME, overwrite=kind == "overwrite", is_clustered=is_clustered)


@pytest.mark.parametrize("grown", [False, True])
@pytest.mark.parametrize("chars", [3, 400_000], ids=["small", "large"])
@pytest.mark.parametrize(
    ("kind", "by_key", "is_clustered"),
    [
        ("batch", False, False),
        ("overwrite", False, False),
        ("stream", False, False),
        ("batch", True, False),
        ("batch", True, True),
        ("overwrite", True, True),
        ("stream", True, True),
        ("statement", True, False),
        ("statement", True, True),
    ],
)
def test_what_was_staged_is_not_mixed_in(warehouse_path, tmp_path, kind, by_key, is_clustered, chars, grown):
    wh = Warehouse(warehouse_path)
    options = {"primary_key": ["id"]} if by_key else {}
    table = wh.create_table(NAME, "id BIGINT NOT NULL, text STRING", **options)
    write = table.upsert if by_key else table.append
    write([{"id": 1, "text": "a"}])
    shutil.copytree(warehouse_path, tmp_path / "backup")
    if grown:
        write([{"id": 2, "text": "b"}])
    writer = writer_of(kind, wh, table, is_clustered=is_clustered)
    batch = pa.record_batch({"id": pa.array([9], pa.int64()), "text": ["x" * chars]})
    messages = [pickle.loads(pickle.dumps(writer.write(iter([batch]))))]
    shutil.rmtree(warehouse_path)
    shutil.copytree(tmp_path / "backup", warehouse_path)
    commit = (lambda: writer.commit(messages, 0)) if kind == "stream" else (lambda: writer.commit(messages))
    is_refused = grown or chars > 1000
    if is_refused:
        with pytest.raises((DifferentHistoryError, CommitConflictError), match=r"restored from a backup"):
            commit()
    else:
        commit()
    close_tablets()
    expected = [1] if is_refused else [9] if kind == "overwrite" else [1, 9]
    assert sorted(Warehouse(warehouse_path).table(NAME).to_arrow()["id"].to_pylist()) == expected


SHARED_NAME = "d.t"
SHARED_FRAME = StructType([StructField("id", LongType(), nullable=False), StructField("n", IntegerType())])


def committed(url, batches):
    """Stage each batch as the task of a write of its own, and commit all at the same time. Returns the newest record's
    number of attempts.
    """
    calls = []
    for number, rows in enumerate(batches):
        options = parse_write_options({"path": SHARED_NAME, "txnAppId": f"query {number}", "txnVersion": "1"})
        writer = StreamhouseWriter(Connection.of(url, {}), SHARED_NAME, options, SHARED_FRAME, is_clustered=True)
        batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("id", pa.int64()), ("n", pa.int32())]))
        message = pickle.loads(pickle.dumps(writer.write(iter([batch]))))
        calls.append(lambda writer=writer, message=message: writer.commit([message]))
    assert in_turns(calls) == [None] * len(calls)
    table = Warehouse(url).table(SHARED_NAME)
    return len(read_record(table.storage, table.uuid, table.state.version)[0].attempts)


def test_one_record_holds_the_appends_of_several_sinks(warehouse_path):
    table = Warehouse(warehouse_path).create_table(SHARED_NAME, "id BIGINT NOT NULL, n INT")
    assert committed(warehouse_path, [[{"id": i, "n": i}] for i in range(3)]) == 3
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_upserts_of_other_buckets_and_of_the_same(warehouse_path):
    """Changes that a task prepared join; those of a bucket that a neighbour's task changed are made in the next."""
    table = Warehouse(warehouse_path).create_table(
        SHARED_NAME, "id BIGINT, n INT", primary_key=["id"], buckets=16,
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
        SHARED_NAME, "id BIGINT, n INT", primary_key=["id"],
        properties={"table.merge-engine": "aggregation", "fields.n.agg": "sum"},
    )  # fmt: skip
    table.upsert([{"id": 1, "n": 1}])
    committed(warehouse_path, [[{"id": 1, "n": 10}], [{"id": 1, "n": 100}], [{"id": 1, "n": 1000}]])
    assert table.to_arrow().to_pylist() == [{"id": 1, "n": 1111}]
    assert table.lookup([1], max_staleness_ms=0)["n"].to_pylist() == [1111]


SUM = {"table.generated.s": "a + b"}


@pytest.fixture
def connection(tmp_path, own_cache):
    found = Connection.of(str(tmp_path / "wh"), {})
    found.warehouse().create_database("d")
    return found


def frame(ddl):
    return spark_versions.spark_schema_of(pa.schema([pa.field(c.name, c.type) for c in parse_columns(ddl)]))


def write(connection, name, ddl, rows, *, batch=None, replaced=None, **options):
    schema = frame(ddl)
    if batch is None:
        writer = StreamhouseWriter(connection, name, parse_write_options(options), schema, replaced=replaced)
    else:
        given = parse_stream_write_options({"txnappid": "q", **options})
        writer = StreamhouseStreamWriter(connection, name, given, None, schema)
    rows = pa.RecordBatch.from_pylist(rows, spark_versions.arrow_schema_of(schema))
    messages = [writer.write(iter([rows]))]
    writer.commit(messages, *(() if batch is None else (batch,)))


def test_of_a_table_without_a_key(connection):
    table = connection.warehouse().create_table(
        "d.t", "id INT, a INT, b INT, s INT", partition_by=["s"], properties=SUM
    )
    write(connection, "d.t", "id INT, b INT, a INT", [{"id": 1, "a": 1, "b": 1}])
    for batch in (0, 0, 1):
        write(connection, "d.t", "id INT, a INT, b INT, s INT", [{"id": 2 + batch, "a": 2, "b": batch}], batch=batch)
    assert sorted_tuples(table) == [(1, 1, 1, 2), (2, 2, 0, 2), (3, 2, 1, 3)]
    write(connection, "d.t", "id INT, a INT, b INT", [{"id": 9, "a": 2, "b": 0}], replaced=ReplacedPart())
    assert sorted_tuples(table) == [(3, 2, 1, 3), (9, 2, 0, 2)], "the partition of the computed value"
    with pytest.raises(ConstraintViolatedError, match=r"'s' than a \+ b, such as 7, expected 2"):
        write(connection, "d.t", "a INT, b INT, s INT", [{"a": 1, "b": 1, "s": 7}], batch=5)


def test_of_a_table_by_key(connection):
    table = connection.warehouse().create_table(
        "d.k", "id INT NOT NULL, a INT, b INT, s INT", primary_key=["id"], properties=SUM
    )
    write(connection, "d.k", "id INT, a INT, b INT", [{"id": 1, "a": 1, "b": 1}, {"id": 2, "a": 1, "b": 1}])
    changes = [{"id": 1, "op": "d"}, {"id": 3, "op": "c", "a": 4, "b": 4}]
    write(connection, "d.k", "id INT, op STRING, a INT, b INT", changes, batch=0, rowkindcolumn="op")
    write(connection, "d.k", "id INT, a INT", [{"id": 2, "a": 9}], partialupdate="true")
    assert sorted_tuples(table) == [(2, 9, 1, 10), (3, 4, 4, 8)]
    with pytest.raises(InvalidOptionError, match="names 's', a generated column"):
        write(connection, "d.k", "id INT, s INT", [{"id": 2, "s": 10}], partialupdate="true")
