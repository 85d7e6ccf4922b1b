"""Streams that pick up added columns: where they end, and that nothing of a new column is lost over a restart."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from kit.tables import tier
from property.stream_driver import Opened, Query
from streamhouse_spark import InvalidOptionError, SchemaMismatchError, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_read_options
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.read.read_target import resolve_stream_target
from streamhouse_spark.datasource.stream.batch_limits import AddedColumns, first_offsets_with
from streamhouse_spark.datasource.stream.micro_batch_stream import StreamhouseStreamReader
from streamhouse_spark.log.actions import Append, SetSchema, Trim, Truncate
from streamhouse_spark.log.state import fold
from streamhouse_spark.schema.table_schema import Column, TableSchema
from unit.log.states import SCHEMA, appended, record, segment

PICKS_UP = {"schemaevolutionmode": "addNewColumns"}
WIDER = TableSchema((*SCHEMA.columns, Column(2, "note", pa.string())))
ENDS = "columns note were added, and this stream, which started without them, has processed all earlier rows"


def then(state, *actions):
    for action in actions:
        state = fold(state, record(state.version + 1, action))
    return state


# -- the decision ------------------------------------------------------------------------------------------------------


@pytest.fixture
def old():
    """Two buckets with rows of the first schema, and the second schema beside it."""
    return then(appended(segment(0, 10), segment(0, 4, bucket=1), buckets=2), SetSchema(2, WIDER))


def test_rows_count_by_the_schema_they_were_written_with(old):
    seen = old.ends
    assert first_offsets_with(old, {2}, seen) == {}
    late = then(old, Append((segment(10, 5, commit=4),)), Append((segment(15, 2, commit=5, schema_id=2),)))
    assert first_offsets_with(late, {2}, seen) == {0: 15}, "a slow writer's rows have the older columns"
    assert first_offsets_with(late, {3}, seen) == {}
    later = then(late, Append((segment(17, 2, commit=6), segment(4, 1, bucket=1, commit=6, schema_id=2))))
    assert first_offsets_with(later, {2}, seen) == {0: 15, 1: 4}


def test_trimmed_rows_that_were_not_seen_may_have_them(old):
    seen = old.ends
    new = then(old, Append((segment(10, 5, commit=4, schema_id=2), segment(4, 2, bucket=1, commit=4, schema_id=2))))
    assert first_offsets_with(then(new, Trim({0: 10})), {2}, seen) == {0: 10, 1: 4}
    assert first_offsets_with(then(new, Trim({0: 12})), {2}, seen) == {0: 10, 1: 4}
    assert first_offsets_with(then(new, Trim({0: 15, 1: 6})), {2}, seen) == {0: 10, 1: 4}
    assert first_offsets_with(then(new, Trim({0: 15, 1: 6})), {3}, seen) == {}, "no schema ever had that column"


def test_truncated_rows_do_not_count(old):
    new = then(old, Append((segment(10, 5, commit=4, schema_id=2),)))
    empty = then(new, Truncate(new.ends))
    assert first_offsets_with(empty, {2}, old.ends) == {}
    assert first_offsets_with(then(empty, Append((segment(15, 1, commit=6, schema_id=2),))), {2}, old.ends) == {0: 15}


def test_the_end_is_fixed_once_a_row_with_a_new_column_is_seen():
    begun = appended(segment(0, 10), segment(0, 4, bucket=1), buckets=2)
    watch = AddedColumns(begun, ("id",))
    altered = then(begun, SetSchema(2, WIDER), Append((segment(10, 5, commit=4),)))
    assert watch.limit_ends(altered.ends) == begun.ends, "not beyond what was looked at"
    watch.update(altered)
    assert (watch.has_end, watch.has_new_columns) == (False, True)
    assert watch.limit_ends(altered.ends) == {0: 15, 1: 4}
    late = then(altered, Append((segment(15, 1, commit=5, schema_id=2),)), Append((segment(4, 1, bucket=1, commit=6),)))
    watch.update(late)
    for state in (late, then(late, Append((segment(5, 1, bucket=1, commit=7),))), then(late, Trim({0: 16}))):
        watch.update(state)
        assert watch.has_end
        assert watch.limit_ends(state.ends) == {0: 15, 1: 5}
    assert "up to offsets {0: 15, 1: 5}; restart the query" in str(watch.error("d.t"))


def test_a_column_that_is_dropped_again_ends_nothing():
    begun = appended(segment(0, 10))
    watch = AddedColumns(begun, ("id",))
    dropped = then(begun, SetSchema(2, WIDER), Append((segment(10, 5, commit=3, schema_id=2),)), SetSchema(3, SCHEMA))
    watch.update(dropped)
    assert (watch.has_end, watch.limit_ends(dropped.ends)) == (False, {0: 15})


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def wh(memory, world):
    return Warehouse("wh", storage=memory, world=world)


@pytest.fixture(params=["t", "t$changelog", "t$binlog"])
def name(request):
    return request.param


@pytest.fixture
def table(wh, name, own_cache):
    key = ["id"] if name.endswith("log") else []
    properties = {"table.datalake.enabled": "false", "bucket.num": "2", "bucket.key": "id", "table.log.ttl": "1h"}
    return wh.create_table("t", "id int not null, n int", primary_key=key, properties=properties)


def put(table, ids, **columns):
    (table.upsert if table.state.primary_key else table.append)([{"id": i, **columns} for i in ids])


def notes(query):
    """Id → the value of the column, in the newest change of each."""
    rows = [row.get("after") or row for row in query.rows]
    return {row["id"]: row.get("note", "absent") for row in rows}


def test_a_query_ends_at_the_first_row_with_a_new_column_and_goes_on_there(wh, table, name):
    query = Query(name, **PICKS_UP)
    put(table, range(10))
    running = query.reader(wh)
    query.run(wh, batches=1)
    put(table, range(10, 20))
    table.add_columns("note string")
    put(table, range(20, 30), note="x")
    start = json.loads(query.offsets[-1])
    end = running.latestOffset(start, running.getDefaultReadLimit())
    assert sum(end["offsets"].values()) == 20
    rows = [row for part in running.partitions(start, end) for batch in running.read(part) for row in batch.to_pylist()]
    assert sorted((row.get("after") or row)["id"] for row in rows) == list(range(10, 20))
    put(table, range(30, 40), note="y")
    with pytest.raises(SchemaMismatchError, match=f"^COLUMNS_ADDED: default.t: {ENDS}"):
        running.latestOffset(end, running.getDefaultReadLimit())
    query.offsets.append(json.dumps(end))  # as it would stand in the checkpoint, processed
    query.batches[1], query.committed = rows, 2
    query.run(wh)
    expected = {**dict.fromkeys(range(20), "absent"), **dict.fromkeys(range(20, 30), "x")}
    assert notes(query) == {**expected, **dict.fromkeys(range(30, 40), "y")}
    query.run(wh)


def test_it_ends_in_every_bucket_however_fast_others_write(wh, table, name):
    options = {**PICKS_UP, "maxoffsetspertrigger": "3"}
    query = Query(name, **options)
    running = query.reader(wh)
    start = running.initialOffset()
    put(table, range(10))
    table.add_columns("note string")
    put(table, [100], note="x")
    for more in range(4):
        start = running.latestOffset(start, running.getDefaultReadLimit())
        assert sum(start["offsets"].values()) == min(10, 3 * (more + 1))
        put(table, [200 + more])
    with pytest.raises(SchemaMismatchError, match=ENDS):
        running.latestOffset(start, running.getDefaultReadLimit())


def test_available_now_ends_well_where_the_new_rows_came_later(wh, table, name):
    query = Query(name, **PICKS_UP)
    put(table, range(5))
    running = query.reader(wh)
    start = running.initialOffset()
    running.prepareForTriggerAvailableNow()
    table.add_columns("note string")
    put(table, range(5, 10), note="x")
    end = running.latestOffset(start, running.getDefaultReadLimit())
    assert sum(end["offsets"].values()) == 5
    assert running.latestOffset(end, running.getDefaultReadLimit()) == end
    running = query.reader(wh)
    running.prepareForTriggerAvailableNow()
    assert sum(running.latestOffset(end, running.getDefaultReadLimit())["offsets"].values()) == 10


def test_without_admission_control_it_ends_when_it_is_asked_again(wh, table, name):
    """PySpark 4.1 does not say where a batch starts."""
    running = Query(name, **PICKS_UP).reader(wh)
    put(table, range(5))
    assert sum(running.latestOffset()["offsets"].values()) == 5
    put(table, range(5, 10))
    table.add_columns("note string")
    put(table, range(10, 15), note="x")
    assert running.latestOffset() == running.reportLatestOffset() | {"offsets": _before(table)}
    with pytest.raises(SchemaMismatchError, match=ENDS):
        running.latestOffset()


def _before(table):
    offsets = first_offsets_with(table.refresh(), {3}, {})
    return {str(bucket): offset for bucket, offset in sorted(offsets.items())}


def test_a_frame_that_lacks_columns_when_it_starts_is_refused(wh, table):
    """Columns were chosen, or added since it was made: then nothing says where the first such row is."""
    options = parse_stream_read_options({**PICKS_UP, "readchangefeed": "true"})
    put(table, range(3))
    target = resolve_stream_target(wh.table("t"), None, options)
    made = spark_versions.spark_schema_of(target.schema)
    table.add_columns("note string")
    target = resolve_stream_target(wh.table("t"), None, options)
    running = StreamhouseStreamReader(Opened(wh), target, options, made, wh.table("t").state)
    for ask in (running.initialOffset, running.latestOffset, running.prepareForTriggerAvailableNow):
        with pytest.raises(SchemaMismatchError, match=r"this query does not read note; omit \.schema\(…\), or"):
            ask()


def test_a_query_that_begins_after_a_column_came_is_started_again(wh, table, name):
    running = Query(name, **PICKS_UP).reader(wh)
    table.add_columns("note string")
    with pytest.raises(SchemaMismatchError, match="up to its beginning; restart the query"):
        running.initialOffset()


def test_rows_that_were_trimmed_unseen_are_for_the_next_run(wh, clock):
    """The process slept while rows came, went to the lake and out of the log."""
    table = wh.create_table("t", "id int not null, n int", properties={"table.log.ttl": "1h"})
    put(table, range(5))
    query = Query("t", **PICKS_UP)
    query.run(wh)
    running, start = query.reader(wh), json.loads(query.offsets[-1])
    table.add_columns("note string")
    put(table, range(5, 8), note="x")
    _tier(table)
    clock.advance(2 * 3600 * 1000)
    assert table.maintain().trimmed_to
    with pytest.raises(SchemaMismatchError, match=ENDS):
        running.latestOffset(start, running.getDefaultReadLimit())
    query.run(wh)
    assert notes(query) == {**dict.fromkeys(range(5), "absent"), **dict.fromkeys(range(5, 8), "x")}


def _tier(table):
    tier(table)


@pytest.mark.long
def test_random_runs_lose_no_value(wh, clock, table, name):
    """Columns come while a query runs in batches of any size, dies within one, and is started again where it ends.

    Of a table without a primary key rows leave the log for the lake meanwhile.
    """
    assert sum(_random_run(wh, clock, table, name, seed) for seed in range(10)) > 10


def _random_run(wh, clock, table, name, seed):
    """How often the query was started again."""
    chosen = random.Random(seed)
    wh.drop_table("t")
    key = table.state.primary_key
    properties = {**table.state.properties, "table.datalake.enabled": "false" if key else "true"}
    table = wh.create_table("t", "id int not null, n int", primary_key=key, properties=properties)
    query = Query(name, **PICKS_UP, maxoffsetspertrigger=str(chosen.randint(1, 7)))
    expected, columns, restarts = {}, [], 0
    reader = query.reader(wh)
    for step in range(40):
        if chosen.random() < 0.1:
            columns.append(f"c{step}")
            table.add_columns(f"c{step} int")
        elif not key and chosen.random() < 0.1:
            _tier(table)
            clock.advance(2 * 3600 * 1000)
            table.maintain()
        elif chosen.random() < 0.5:
            given = {column: step for column in columns if chosen.random() < 0.7}
            ids = chosen.sample(range(1000), 3)
            put(table, ids, **given)
            expected |= dict.fromkeys(ids, given)
        else:
            try:
                _step(query, reader, unfinished=chosen.random() < 0.2)
            except SchemaMismatchError:
                reader, restarts = query.reader(wh), restarts + 1
    query.run(wh)
    found = {}
    for row in (row.get("after") or row for row in query.rows):
        found[row["id"]] = {column: row[column] for column in columns if row.get(column) is not None}
    assert found == expected
    return restarts


def _step(query, reader, *, unfinished):
    """One batch, by a reader that goes on with the columns that it has."""
    begin = query.offsets[query.committed - 1] if query.committed else json.dumps(reader.initialOffset())
    if len(query.offsets) == query.committed:
        end = json.dumps(reader.latestOffset(json.loads(begin), reader.getDefaultReadLimit()))
        if end == begin:
            return
        query.offsets.append(end)
    rows = query._rows(reader, json.loads(begin), json.loads(query.offsets[query.committed]))
    if not unfinished:
        query.batches[query.committed] = rows
        query.committed += 1


# -- the option --------------------------------------------------------------------------------------------------------


def test_the_option_schema_evolution_mode_is_parsed():
    assert not parse_stream_read_options({}).adds_new_columns
    assert not parse_stream_read_options({"schemaevolutionmode": "none"}).adds_new_columns
    assert parse_stream_read_options({"SchemaEvolutionMode": "ADDNEWCOLUMNS"}).adds_new_columns
    for wrong in ("rescue", "", "true"):
        with pytest.raises(InvalidOptionError, match=r"schemaEvolutionMode is '.*', expected none or addNewColumns"):
            parse_stream_read_options({"schemaevolutionmode": wrong})
    with pytest.raises(InvalidOptionError, match="use schemaEvolutionMode"):
        parse_stream_read_options({"cloudFiles.schemaEvolutionMode": "none"})
