"""A stream from a table on an object store, whose end Spark asks for without a pause."""

from __future__ import annotations

import json
import pickle

import pytest

from streamhouse_spark import TableNotFoundError, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_read_options
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.read.read_target import resolve_stream_target
from streamhouse_spark.datasource.stream.micro_batch_stream import StreamhouseStreamReader
from streamhouse_spark.log.catalog import names
from streamhouse_spark.warehouse.process_cache import Connection

SPARK_MS = 10
"""Spark's own pause between two questions."""
LOOKS_OF_A_NAME = 2


class Kept:
    """A connection that keeps its table open, as that of a process does."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse, self.known = warehouse, None

    def table(self, name: str):
        pointer = names.resolve(self.warehouse.storage, parse_table_name(name).path)
        if self.known is None or self.known.uuid != pointer.uuid:
            self.known = self.warehouse.table(name)
        self.known.refresh()
        return self.known


@pytest.fixture
def remote(counted, world):
    return Warehouse("wh", storage=counted, world=world)


@pytest.fixture
def table(remote):
    table = remote.create_table("t", "id INT", properties={"table.datalake.enabled": "false"})
    table.append([{"id": 1}])
    return table


@pytest.fixture
def reader(remote, table):
    options = parse_stream_read_options({})
    connection = Kept(remote)
    target = resolve_stream_target(connection.table("t"), None, options)
    return StreamhouseStreamReader(
        connection, target, options, spark_versions.spark_schema_of(target.schema), table.state
    )


def ask(reader, start, clock):
    clock.sleep_ms(SPARK_MS)
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def spin(reader, start, clock, duration_ms: int) -> int:
    """Ask without a pause; returns how often."""
    until_ms, times = clock.boot_ms() + duration_ms, 0
    while clock.boot_ms() < until_ms:
        assert ask(reader, start, clock) == start
        times += 1
    return times


def test_an_idle_stream_makes_few_requests(reader, clock, counted):
    begin = reader.initialOffset()
    end = ask(reader, begin, clock)
    spin(reader, end, clock, 60_000)
    counted.trace.clear()
    spin(reader, end, clock, 60_000)
    assert len(counted.trace) <= 60, "at most a request a second; the name is looked up each ten"


def test_the_name_is_resolved_once_a_batch(reader, clock, counted, table):
    begin = reader.initialOffset()
    table.append([{"id": 7}])
    counted.trace.clear()
    end = ask(reader, begin, clock)
    assert len(counted.trace) == LOOKS_OF_A_NAME + 2, "and the log: the new record, and none behind it"
    counted.trace.clear()
    assert reader.reportLatestOffset()["offsets"] == end["offsets"]
    assert reader.partitions(begin, end)
    assert len(counted.trace) == 1, "the log"


def test_each_answer_is_from_a_look_within_the_call(reader, clock, table):
    """`processAllAvailable` rests on it."""
    end = ask(reader, reader.initialOffset(), clock)
    for quiet_ms in (0, 100, 5_000, 60_000):
        spin(reader, end, clock, quiet_ms)
        table.append([{"id": 2}])
        newer = ask(reader, end, clock)
        assert newer != end
        end = newer


def test_a_query_that_had_other_work_is_answered_at_once(reader, clock, counted):
    end = ask(reader, reader.initialOffset(), clock)
    spin(reader, end, clock, 60_000)
    for _ in range(5):
        clock.advance(400)  # a batch of another source
        before_ms = clock.boot_ms()
        ask(reader, end, clock)
        assert clock.boot_ms() - before_ms <= SPARK_MS


def test_a_table_that_is_dropped_while_it_waits(reader, clock, remote):
    end = ask(reader, reader.initialOffset(), clock)
    spin(reader, end, clock, 30_000)
    remote.drop_table("t")
    with pytest.raises(TableNotFoundError):
        ask(reader, end, clock)


def test_a_copy_for_a_task_waits_for_nothing(table, world, warehouse_path):
    options = parse_stream_read_options({})
    target = resolve_stream_target(table, None, options)
    schema = spark_versions.spark_schema_of(target.schema)
    reader = StreamhouseStreamReader(Connection.of(str(warehouse_path), {}), target, options, schema, table.state)
    reader._throttle = object()
    assert pickle.loads(pickle.dumps(reader))._throttle is None


def test_a_local_table_is_asked_each_time(warehouse_path):
    table = Warehouse(str(warehouse_path)).create_table("t", "id INT", properties={"table.datalake.enabled": "false"})
    options = parse_stream_read_options({})
    connection = Connection.of(str(warehouse_path), {})
    target = resolve_stream_target(table, None, options)
    schema = spark_versions.spark_schema_of(target.schema)
    reader = StreamhouseStreamReader(connection, target, options, schema, table.state)
    begin = reader.initialOffset()
    for _ in range(3):
        end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    assert reader._throttle is None
    assert json.loads(json.dumps(end)) == end
