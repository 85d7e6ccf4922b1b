"""A stream whose table's columns change while it runs, driven as Spark drives it."""

from __future__ import annotations

import json
import logging

import pyarrow as pa
import pytest

from property.stream_driver import Opened, Query
from streamhouse_spark import SchemaMismatchError, TableNotFoundError, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_read_options
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.read.read_target import resolve_stream_target
from streamhouse_spark.datasource.stream.micro_batch_stream import StreamhouseStreamReader

CHANGES = {
    "rename": ({"rename_columns": {"name": "title"}}, "column 'name' was renamed to 'title'"),
    "case": ({"rename_columns": {"name": "Name"}}, "column 'name' was renamed to 'Name'"),
    "drop": ({"drop_columns": ["name"]}, "column 'name' was dropped"),
    "another": ({"drop_columns": ["name"], "add_columns": "name string"}, "column 'name' was dropped"),
    "widen": ({"widen_columns": {"n": "bigint"}}, "column 'n' became bigint, it was int"),
    "swap": ({"rename_columns": {"n": "m", "m": "n"}}, "column 'n' was renamed to 'm'"),
}


@pytest.fixture
def wh(memory, world):
    return Warehouse("wh", storage=memory, world=world)


@pytest.fixture(params=["t", "t$changelog", "t$binlog"])
def name(request):
    return request.param


@pytest.fixture
def table(wh, name, own_cache):
    key = ["id"] if name.endswith("log") else []
    properties = {"table.datalake.enabled": "false"}
    return wh.create_table("t", "id int not null, name string, n int, m int", primary_key=key, properties=properties)


def put(table, *rows):
    (table.upsert if table.state.primary_key else table.append)(list(rows))


@pytest.mark.parametrize("kind", CHANGES)
def test_a_column_that_it_reads_ends_it_and_started_again_it_goes_on(wh, table, name, kind):
    change, says = CHANGES[kind]
    query = Query(name)
    put(table, {"id": 1, "name": "a", "n": 1, "m": 10}, {"id": 2, "name": "b", "n": 2, "m": 20})
    query.run(wh)
    running = query.reader(wh)
    put(table, {"id": 3, "n": 3})
    end = running.latestOffset(query_start := _offset(query), running.getDefaultReadLimit())
    table.alter(**change)
    for ask in (
        lambda: running.latestOffset(query_start, running.getDefaultReadLimit()),
        lambda: running.partitions(query_start, end),
    ):
        with pytest.raises(SchemaMismatchError, match=f"{says} since it began; restart the query"):
            ask()
    put(table, {"id": 4, "n": 4})
    query.run(wh)
    found = [(row.get("after") or row)["id"] for row in query.rows]
    assert sorted(found) == [1, 2, 3, 4]
    newest = next(row.get("after") or row for row in query.rows if (row.get("after") or row)["id"] == 4)
    assert {c: newest[c] for c in table.schema.names} == {**dict.fromkeys(table.schema.names), "id": 4, "n": 4}


def test_an_added_column_is_said_once_and_left_out(wh, table, name, caplog):
    query = Query(name)
    running = query.reader(wh)
    begin = running.initialOffset()
    table.add_columns("note string")
    put(table, {"id": 1, "note": "x"})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            end = running.latestOffset(begin, running.getDefaultReadLimit())
    assert [r.getMessage() for r in caplog.records] == [
        "default.t: this stream continues without the added columns note; restart the query to read these columns"
    ]
    rows = [row for part in running.partitions(begin, end) for batch in running.read(part) for row in batch.to_pylist()]
    assert [(row.get("after") or row).get("note", "absent") for row in rows] == ["absent"]


def test_columns_that_it_does_not_read_may_change(wh, table):
    connection, options = Opened(wh), parse_stream_read_options({"readchangefeed": "true"})
    target = resolve_stream_target(connection.table("t"), None, options)
    asked = spark_versions.spark_schema_of(pa.schema([table.schema.field("id").with_nullable(True)]))
    running = StreamhouseStreamReader(connection, target, options, asked, table.state)
    begin = running.initialOffset()
    table.alter(drop_columns=["name"], rename_columns={"n": "m", "m": "n"})
    put(table, {"id": 1})
    end = running.latestOffset(begin, running.getDefaultReadLimit())
    rows = [row for part in running.partitions(begin, end) for batch in running.read(part) for row in batch.to_pylist()]
    assert rows == [{"id": 1}]


def test_a_table_made_anew_is_told_as_such(wh, table, name):
    query = Query(name)
    put(table, {"id": 1})
    query.run(wh)
    running = query.reader(wh)
    wh.drop_table("t")
    wh.create_table("t", "id string not null", primary_key=["id"] if table.state.primary_key else [])
    with pytest.raises(TableNotFoundError, match="which was dropped; the name now belongs to"):
        running.latestOffset(_offset(query), running.getDefaultReadLimit())


def _offset(query):
    return json.loads(query.offsets[query.committed - 1])
