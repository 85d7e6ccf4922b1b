"""Writes of Spark that replace a part of a table: tasks say what they saw, the driver commits once; without a JVM."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from kit.rows import ids
from streamhouse_spark import CommitConflictError, InvalidOptionError, SchemaMismatchError, Warehouse
from streamhouse_spark.config.spark_options import parse_write_options
from streamhouse_spark.datasource.dml.pushed_conditions import parse_overwrite_filter
from streamhouse_spark.datasource.scan.query_snapshot import take_query_snapshot
from streamhouse_spark.datasource.write.replaced_part import ReplacedPart, parse_replace_where
from streamhouse_spark.datasource.write.spark_writer import StreamhouseWriter
from streamhouse_spark.warehouse.process_cache import Connection

NAME = "sales.orders"
FRAME = StructType([StructField("id", LongType(), nullable=False), StructField("day", IntegerType())])
DAY_1 = {"op": "=", "children": [{"column": ["day"]}, {"literal": 1, "type": '"integer"'}]}

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def wh(warehouse_path):
    return Warehouse(warehouse_path)


@pytest.fixture(params=["log", "keyed"])
def table(request, wh):
    key = {"primary_key": ["id", "day"]} if request.param == "keyed" else {}
    made = wh.create_table(NAME, "id BIGINT, day INT", partition_by=["day"], buckets=2, **key)
    add(made, *range(6))
    return made


def add(table, *numbers):
    (table.upsert if table.state.primary_key else table.append)([{"id": n, "day": n % 3} for n in numbers])


def batches(*numbers):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.int32())])
    for number in numbers:
        yield pa.RecordBatch.from_pylist([{"id": number, "day": number % 3}], schema=schema)


def connection(wh):
    return Connection.of(wh.url, {})


def writer(wh, replaced, **options):
    parsed = parse_write_options({"path": NAME, **options})
    return StreamhouseWriter(connection(wh), NAME, parsed, FRAME, replaced=replaced)


def write(wh, replaced, *tasks, **options):
    planned = pickle.loads(pickle.dumps(writer(wh, replaced, **options)))
    planned.commit(pickle.loads(pickle.dumps([planned.write(batches(*numbers)) for numbers in tasks])))


def test_all_partitions_that_tasks_saw_are_replaced(wh, table):
    write(wh, ReplacedPart(), (7, 10), (), (12,))
    assert ids(table) == [2, 5, 7, 10, 12]
    write(wh, ReplacedPart(), (), ())
    assert ids(table) == [2, 5, 7, 10, 12]


def test_rows_of_a_condition_are_replaced(wh, table):
    part = parse_overwrite_filter(connection(wh), NAME, json.dumps({"filters": [DAY_1]}))
    write(wh, part, (7,), ())
    assert ids(table) == [0, 2, 3, 5, 7]
    write(wh, part, ())
    assert ids(table) == [0, 2, 3, 5]
    with pytest.raises(SchemaMismatchError, match="1 of 1 new rows do not match"):
        writer(wh, part).write(batches(8))
    write(wh, parse_replace_where(table, "day = 1 OR day IS NULL"), (10,))
    assert ids(table) == [0, 2, 3, 5, 10]


def test_a_version_counts_once(wh, table):
    options = {"txnAppId": "job", "txnVersion": "1"}
    write(wh, ReplacedPart(), (7,), **options)
    add(table, 10)
    write(wh, ReplacedPart(), (7,), **options)
    assert ids(table) == [0, 2, 3, 5, 7, 10]


def test_an_abort_and_a_lost_task_change_nothing(wh, table):
    planned = writer(wh, ReplacedPart())
    found = planned.write(batches(7))
    planned.abort([found])
    with pytest.raises(CommitConflictError, match="returned no result"):
        planned.commit([found, None])
    assert ids(table) == list(range(6))


def test_rows_that_were_made_of_the_tables_own(wh, table):
    pin = take_query_snapshot(connection(wh).table(NAME), None, None, None).to_text()
    part = parse_overwrite_filter(connection(wh), NAME, json.dumps({"snapshot": pin}))
    planned = writer(wh, part)
    found = planned.write(batches(7))
    add(table, 10)
    with pytest.raises(CommitConflictError, match="run the statement again"):
        planned.commit([found])
    assert ids(table) == [*range(6), 10]
    pin = take_query_snapshot(connection(wh).table(NAME), None, None, None).to_text()
    write(wh, parse_overwrite_filter(connection(wh), NAME, json.dumps({"snapshot": pin})), (7,))
    assert ids(table) == [0, 2, 3, 5, 7]


def test_partitions_that_are_others_by_the_commit(wh, table):
    planned = writer(wh, ReplacedPart())
    found = planned.write(batches(7))
    table.set_partitioning(["truncate(2, day)"])
    with pytest.raises(CommitConflictError, match="nothing was written"):
        planned.commit([found])
    assert ids(table) == list(range(6))
    write(wh, ReplacedPart(), (7,))
    assert ids(table) == [2, 5, 7], "days 0 and 1 are one partition now"


def test_refused_before_a_task_runs(wh, table):
    for options in ({"rowKindColumn": "id"}, {"partialUpdate": "true"}):
        with pytest.raises(InvalidOptionError, match="change existing rows"):
            writer(wh, ReplacedPart(), **options)
    odd = {"op": "%", "children": [{"column": ["day"]}, {"literal": 2, "type": '"integer"'}]}
    with pytest.raises(InvalidOptionError, match="to replace is not supported"):
        parse_overwrite_filter(connection(wh), NAME, json.dumps({"filters": [odd]}))
    wh.create_table("sales.plain", "id BIGINT, day INT")
    with pytest.raises(InvalidOptionError, match="not partitioned"):
        StreamhouseWriter(
            connection(wh), "sales.plain", parse_write_options({"path": "sales.plain"}), FRAME, replaced=ReplacedPart()
        )
