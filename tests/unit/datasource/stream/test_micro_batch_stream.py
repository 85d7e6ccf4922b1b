"""Streams as Spark drives them: polls of an object store, altered columns, and the lag in the metrics."""

from __future__ import annotations

import json
import logging
import pickle

import pyarrow as pa
import pytest

from property.stream_driver import Opened, Query
from streamhouse_spark import SchemaMismatchError, TableNotFoundError, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_read_options
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.read.read_target import resolve_stream_target
from streamhouse_spark.datasource.scan.stream_pushdown import lag_ms
from streamhouse_spark.datasource.stream.micro_batch_stream import StreamhouseStreamReader
from streamhouse_spark.log.catalog import names
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.write.auto_compaction import compact_inline_rows

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


CHANGES = {
    "rename": ({"rename_columns": {"name": "title"}}, "column 'name' was renamed to 'title'"),
    "case": ({"rename_columns": {"name": "Name"}}, "column 'name' was renamed to 'Name'"),
    "drop": ({"drop_columns": ["name"]}, "column 'name' was dropped"),
    "another": ({"drop_columns": ["name"], "add_columns": "name string"}, "column 'name' was dropped"),
    "widen": ({"widen_columns": {"n": "bigint"}}, "column 'n' changed from int to bigint"),
    "swap": ({"rename_columns": {"n": "m", "m": "n"}}, "column 'n' was renamed to 'm'"),
}


@pytest.fixture
def wh(memory, world):
    return Warehouse("wh", storage=memory, world=world)


@pytest.fixture(params=["t", "t$changelog", "t$binlog"])
def table_name(request):
    return request.param


@pytest.fixture
def altered_table(wh, table_name, own_cache):
    key = ["id"] if table_name.endswith("log") else []
    properties = {"table.datalake.enabled": "false"}
    return wh.create_table("t", "id int not null, name string, n int, m int", primary_key=key, properties=properties)


def put(altered_table, *rows):
    (altered_table.upsert if altered_table.state.primary_key else altered_table.append)(list(rows))


@pytest.mark.parametrize("kind", CHANGES)
def test_a_column_that_it_reads_ends_it_and_started_again_it_goes_on(wh, altered_table, table_name, kind):
    change, says = CHANGES[kind]
    query = Query(table_name)
    put(altered_table, {"id": 1, "name": "a", "n": 1, "m": 10}, {"id": 2, "name": "b", "n": 2, "m": 20})
    query.run(wh)
    running = query.reader(wh)
    put(altered_table, {"id": 3, "n": 3})
    end = running.latestOffset(query_start := _offset(query), running.getDefaultReadLimit())
    altered_table.alter(**change)
    for ask in (
        lambda: running.latestOffset(query_start, running.getDefaultReadLimit()),
        lambda: running.partitions(query_start, end),
    ):
        with pytest.raises(SchemaMismatchError, match=f"{says} since the read began; restart the query"):
            ask()
    put(altered_table, {"id": 4, "n": 4})
    query.run(wh)
    found = [(row.get("after") or row)["id"] for row in query.rows]
    assert sorted(found) == [1, 2, 3, 4]
    newest = next(row.get("after") or row for row in query.rows if (row.get("after") or row)["id"] == 4)
    assert {c: newest[c] for c in altered_table.schema.names} == {
        **dict.fromkeys(altered_table.schema.names),
        "id": 4,
        "n": 4,
    }


def test_an_added_column_is_said_once_and_left_out(wh, altered_table, table_name, caplog):
    query = Query(table_name)
    running = query.reader(wh)
    begin = running.initialOffset()
    altered_table.add_columns("note string")
    put(altered_table, {"id": 1, "note": "x"})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            end = running.latestOffset(begin, running.getDefaultReadLimit())
    assert [r.getMessage() for r in caplog.records] == [
        "default.t: this stream continues without the added columns note; restart the query to read these columns"
    ]
    rows = [row for part in running.partitions(begin, end) for batch in running.read(part) for row in batch.to_pylist()]
    assert [(row.get("after") or row).get("note", "absent") for row in rows] == ["absent"]


def test_columns_that_it_does_not_read_may_change(wh, altered_table):
    connection, options = Opened(wh), parse_stream_read_options({"readchangefeed": "true"})
    target = resolve_stream_target(connection.table("t"), None, options)
    asked = spark_versions.spark_schema_of(pa.schema([altered_table.schema.field("id").with_nullable(True)]))
    running = StreamhouseStreamReader(connection, target, options, asked, altered_table.state)
    begin = running.initialOffset()
    altered_table.alter(drop_columns=["name"], rename_columns={"n": "m", "m": "n"})
    put(altered_table, {"id": 1})
    end = running.latestOffset(begin, running.getDefaultReadLimit())
    rows = [row for part in running.partitions(begin, end) for batch in running.read(part) for row in batch.to_pylist()]
    assert rows == [{"id": 1}]


def test_a_table_made_anew_is_told_as_such(wh, altered_table, table_name):
    query = Query(table_name)
    put(altered_table, {"id": 1})
    query.run(wh)
    running = query.reader(wh)
    wh.drop_table("t")
    wh.create_table("t", "id string not null", primary_key=["id"] if altered_table.state.primary_key else [])
    with pytest.raises(TableNotFoundError, match="which was dropped; the name now belongs to"):
        running.latestOffset(_offset(query), running.getDefaultReadLimit())


def _offset(query):
    return json.loads(query.offsets[query.committed - 1])


@pytest.fixture
def timed_table(memory, world, clock):
    """Commits of three rows each, at 0, 5 and 12 seconds; the first two are in one segment."""
    timed_table = Warehouse("wh", storage=memory, world=world).create_table("t", "id long", buckets=1)
    for wait_ms in (5000, 7000, 0):
        timed_table.append([{"id": i} for i in range(3)])
        clock.advance(wait_ms)
        if wait_ms == 7000:
            compact_inline_rows(timed_table)
    return timed_table


@pytest.mark.parametrize(
    ("read", "expected"), [(0, 12_000), (2, 12_000), (3, 7000), (5, 7000), (6, 0), (8, 0), (9, 0), (20, 0)]
)
def test_it_is_the_time_between_the_first_row_that_was_not_read_and_the_newest(timed_table, read, expected):
    assert lag_ms(timed_table.refresh(), {0: read}) == expected


def test_a_bucket_that_was_never_read_counts(timed_table):
    assert lag_ms(timed_table.refresh(), {}) == 12_000


def test_rows_that_the_log_no_longer_has_have_no_time(memory, world, clock):
    properties = {"table.datalake.enabled": "false", "table.log.ttl": "1ms"}
    timed_table = Warehouse("wh", storage=memory, world=world).create_table(
        "u", "id long", buckets=1, properties=properties
    )
    timed_table.append([{"id": 1}])
    clock.advance(5000)
    timed_table.maintain()
    state = timed_table.refresh()
    assert state.buckets[0].start == 1
    assert lag_ms(state, {0: 0}) is None
    assert lag_ms(state, {0: 1}) == 0
