"""The beginning of batches in real-time mode: what is refused, what ends a stream, and how buckets become tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from kit.tables import TableCase, tier
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource.realtime import planning
from streamhouse_spark.datasource.realtime.planning import begin_real_time, finish_real_time, plan_real_time_batch
from streamhouse_spark.datasource.scan.query_snapshot import take_query_snapshot
from streamhouse_spark.datasource.stream.stream_offset import StreamOffset
from streamhouse_spark.errors import (
    DifferentHistoryError,
    InvalidOptionError,
    OffsetsTrimmedError,
    SchemaMismatchError,
    TableNotFoundError,
)
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.warehouse.process_cache import Connection


@pytest.fixture
def wh(warehouse_path: str) -> Warehouse:
    return Warehouse(warehouse_path)


TABLE = TableCase(
    "db.t",
    "id BIGINT, name STRING",
    buckets=3,
    properties={"bucket.key": "id"},
    rows=[{"id": i, "name": "a"} for i in range(10)],
)


class Query:
    """A query in real-time mode: what Java asks of Python, and keeps."""

    num_needed = 0
    """Tasks of all sources of the query, where its plan tells."""
    num_taken = 0
    """Tasks of the queries that run already."""

    def __init__(self, wh: Warehouse, name: str, parallelism: int = 2, **options: str) -> None:
        self.connection, self.name, self.parallelism = Connection.of(wh.url, {}), name, parallelism
        path = parse_table_name(name)
        table = self.connection.table(str(path.path))
        self.columns = list(table.state.schema.names)
        pin = take_query_snapshot(table, path.suffix, None, None).to_text()
        self.given = {"snapshot": pin, "options": options, "native_schemes": ["file"], "hadoop_version": None}
        self.begun: str | None = None

    def begin(self) -> dict[str, Any]:
        found = begin_real_time(self.connection, self.given)
        self.begun = found["initial_schema"]
        return dict(found["offset"])

    def follow(self, start: Mapping[str, Any], *columns: str) -> dict[str, Any]:
        given = {**self.given, "parallelism": self.parallelism, "initial_schema": self.begun}
        given["tasks"], given["taken"] = self.num_needed, self.num_taken
        found = plan_real_time_batch(self.connection, {**given, "start": start, "columns": [*self.columns, *columns]})
        self.begun = found["initial_schema"]
        return json.loads(json.dumps(found))

    def reached(self) -> dict[str, Any]:
        """The position behind all rows that are there now."""
        state = self.connection.table(str(parse_table_name(self.name).path)).state
        return StreamOffset(state.table_uuid, state.ends, history=state.anchors.rows).to_json()


def test_a_batch_is_told_of_the_rows_behind_its_position_and_of_the_next_record(wh, table):
    query = Query(wh, "db.t")
    (task,) = query.follow(query.begin(), "_bucket", "_log_offset")["tasks"]
    assert (task["next"], task["follows"], task["uuid"]) == (3, True, table.uuid)
    assert [bucket["bucket"] for bucket in task["buckets"]] == [0, 1, 2]
    assert sum(s["rows"] for bucket in task["buckets"] for s in bucket["segments"]) == 10
    assert task["layouts"]["1"]["columns"] == [0, 1, "_bucket", "_log_offset"]
    (task,) = query.follow(query.reached())["tasks"]
    assert [bucket["segments"] for bucket in task["buckets"]] == [[], [], []]
    assert [bucket["offset"] for bucket in task["buckets"]] == list(table.state.ends.values())


def test_the_position_is_one_of_micro_batches(wh, table):
    query = Query(wh, "db.t", startingOffsets="earliest")
    offset = query.follow(query.begin())["offset"]
    assert StreamOffset.from_json(offset, "db.t", table.uuid).to_json() == offset
    assert offset["history"] == [2, table.state.attempt]


def test_tasks_share_the_buckets_and_need_a_core_each(wh, table):
    query = Query(wh, "db.t", realTimeTasks="2")
    tasks = query.follow(query.begin())["tasks"]
    assert [[bucket["bucket"] for bucket in task["buckets"]] for task in tasks] == [[0, 2], [1]]
    assert len(Query(wh, "db.t").follow(query.reached())["tasks"]) == 1
    with pytest.raises(InvalidOptionError, match=r"needs 3 concurrent tasks, but this session has 2"):
        Query(wh, "db.t", realTimeTasks="5").follow(query.reached())
    assert len(Query(wh, "db.t", parallelism=8, realTimeTasks="5").follow(query.reached())["tasks"]) == 3


def test_all_streams_of_a_query_need_a_core_for_each_of_their_tasks(wh, table):
    query = Query(wh, "db.t")
    query.num_needed = 2
    assert len(query.follow(query.begin())["tasks"]) == 1
    query.num_needed = 3
    with pytest.raises(InvalidOptionError, match=r"other streams .* needs 3 concurrent tasks.* session has 2"):
        query.follow(query.reached())


def test_queries_that_run_already_take_cores_too(wh, table):
    query = Query(wh, "db.t", parallelism=4, realTimeTasks="2")
    query.num_taken = 2
    assert len(query.follow(query.begin())["tasks"]) == 2
    query.num_taken = 3
    with pytest.raises(InvalidOptionError, match=r"needs 5 concurrent tasks, including 3 .* session has 4"):
        query.follow(query.reached())
    query.num_needed, query.num_taken = 4, 1
    with pytest.raises(InvalidOptionError, match=r"needs 5 concurrent tasks.* use 5 cores"):
        query.follow(query.reached())


def test_a_batch_is_told_of_so_many_segments_at_most_and_ends_behind_them(wh, table, monkeypatch):
    monkeypatch.setattr(planning, "SEGMENTS_MAX", 6)
    for number in range(4):
        table.append([{"id": i, "name": str(number)} for i in range(10)])
    query = Query(wh, "db.t")
    (task,) = query.follow(query.begin())["tasks"]
    assert [len(bucket["segments"]) for bucket in task["buckets"]] == [2, 2, 2]
    assert not task["follows"]


@pytest.mark.parametrize(
    "options",
    [{"maxOffsetsPerTrigger": "3"}, {"maxBytesPerTrigger": "1mb"}, {"schemaEvolutionMode": "addNewColumns"}],
    ids=str,
)
def test_options_that_real_time_mode_lacks(wh, table, options):
    with pytest.raises(InvalidOptionError, match=r"real-time mode, because .*micro-batch trigger") as raised:
        Query(wh, "db.t", **options).begin()
    assert next(iter(options)) in str(raised.value)


def test_rows_that_need_micro_batches_first(wh, table):
    catch_up = r"real-time mode cannot read; run the query once with trigger\(availableNow=True\)"
    wh.create_table("db.k", "id BIGINT", primary_key=["id"])
    with pytest.raises(InvalidOptionError, match="micro-batch"):
        Query(wh, "db.k$binlog").begin()
    query = Query(wh, "db.t")
    start = query.begin()
    tier(table)
    table.log.commit(lambda state, _: (Trim({b: log.end for b, log in state.buckets.items()}),))
    with pytest.raises(InvalidOptionError, match=f"rows that are only in the lake, which {catch_up}"):
        query.follow(start)
    query.follow(query.reached())


def test_changes_that_are_in_the_archive_alone(wh, own_cache):
    properties = {"table.datalake.enabled": "false", "table.changelog.retention": "9 d", "table.log.ttl": "1ms"}
    table = wh.create_table("db.a", "id BIGINT", primary_key=["id"], properties=properties)
    table.upsert([{"id": 1}])
    query = Query(wh, "db.a$changelog", startingOffsets="earliest")
    start = query.begin()
    query.follow(start)
    time.sleep(0.01)
    assert table.maintain().trimmed_to == {0: 1}
    anew = Query(wh, "db.a$changelog", startingOffsets="earliest").begin()
    assert anew["offsets"] == start["offsets"] == {"0": 0}, "the start of the archive, as for micro-batches"
    refused = r"only in the change archive, which real-time .*availableNow=True.* or set startingOffsets=latest"
    with pytest.raises(InvalidOptionError, match=refused):
        query.follow(anew)
    query = Query(wh, "db.a$changelog", startingOffsets="latest")
    query.follow(query.begin())


def test_rows_from_before_a_column_was_widened(wh):
    table = wh.create_table("db.w", "id INT")
    table.append([{"id": 1}])
    table.alter(widen_columns={"id": "BIGINT"})
    table.append([{"id": 2**40}])
    query = Query(wh, "db.w")
    with pytest.raises(InvalidOptionError, match=r"type of column .id. changed.*availableNow=True"):
        query.follow(query.begin())
    (task,) = query.follow(query.reached())["tasks"]
    assert list(task["layouts"]) == ["2"]


def test_rows_from_before_a_column_changed_inside_need_micro_batches(wh):
    """Also where a field came back under its name and type, which the Arrow schemas do not show."""
    table = wh.create_table("db.s", "id INT, s STRUCT<a: INT, b: INT>")
    table.append([{"id": 1, "s": {"a": 1, "b": 2}}])
    table.drop_column("s.b")
    table.add_columns("s.b INT")
    table.append([{"id": 2, "s": {"a": 3, "b": 4}}])
    query = Query(wh, "db.s")
    with pytest.raises(InvalidOptionError, match=r"type of column .s. changed.*availableNow=True"):
        query.follow(query.begin())
    (task,) = query.follow(query.reached())["tasks"]
    assert list(task["layouts"]) == ["3"]


def test_rows_from_before_a_column_was_added_have_none(wh, table):
    table.add_columns("later BIGINT")
    table.append([{"id": 1, "name": "b", "later": 3}])
    query = Query(wh, "db.t")
    (task,) = query.follow(query.begin())["tasks"]
    assert [task["layouts"][i]["columns"] for i in ("1", "2")] == [[0, 1, -1], [0, 1, 2]]


def test_a_query_goes_on_with_its_columns_where_one_was_added(wh, table):
    query = Query(wh, "db.t")
    start = query.follow(query.begin())["offset"]
    table.add_columns("later BIGINT")
    (task,) = query.follow(start)["tasks"]
    assert task["layouts"]["2"]["columns"] == [0, 1]


def renamed(wh: Warehouse, table: Table) -> type[Exception]:
    table.alter(rename_columns={"name": "other"})
    return SchemaMismatchError


def truncated(wh: Warehouse, table: Table) -> type[Exception]:
    table.truncate()
    return OffsetsTrimmedError


def deleted(wh: Warehouse, table: Table) -> type[Exception]:
    table.delete(where=[("id", "=", 3)])
    return OffsetsTrimmedError


def made_anew(wh: Warehouse, table: Table) -> type[Exception]:
    wh.drop_table("db.t")
    wh.create_table("db.t", "id BIGINT, name STRING", buckets=3)
    return TableNotFoundError


@pytest.mark.parametrize("change", [renamed, truncated, deleted, made_anew])
def test_what_ends_a_stream_of_micro_batches_ends_it(wh, table, change):
    query = Query(wh, "db.t")
    query.follow(query.begin())
    position = query.reached()
    error = change(wh, table)
    with pytest.raises(error):
        query.follow(position)


def test_a_stream_of_changes_ends_at_a_deletion_that_micro_batches_tell(wh, table):
    query = Query(wh, "db.t$changelog")
    query.follow(query.begin())
    position = query.reached()
    deleted(wh, table)
    with pytest.raises(OffsetsTrimmedError, match=r"availableNow=True\).* micro-batches report deletions"):
        query.follow(position)
    query.follow(query.reached())
    Query(wh, "db.t$changelog", skipChangeCommits="true").follow(position)


def test_options_let_it_go_on(wh, table):
    query = Query(wh, "db.t", failOnDataLoss="false", skipChangeCommits="true")
    query.follow(query.begin())
    position = query.reached()
    deleted(wh, table)
    query.follow(position)
    truncated(wh, table)
    offset = query.follow(position)["offset"]
    assert offset["truncation"] == table.refresh().version


def test_rows_that_are_no_longer_kept(wh, table):
    query = Query(wh, "db.t")
    start = query.begin()
    ends = table.state.ends
    table.log.commit(lambda *_: (Trim(ends),))
    with pytest.raises(OffsetsTrimmedError, match="failOnDataLoss=false"):
        query.follow(start)
    (task,) = Query(wh, "db.t", failOnDataLoss="false").follow(start)["tasks"]
    assert {bucket["bucket"]: bucket["offset"] for bucket in task["buckets"]} == ends


def test_rows_that_were_deleted_before_they_are_read_are_named(wh, table):
    query = Query(wh, "db.t")
    start = query.begin()
    table.delete(where=[("id", "in", [1, 2, 3])])
    (task,) = query.follow(start)["tasks"]
    runs = [bucket["deleted"] for bucket in task["buckets"]]
    assert sum(end - first for starts, ends in runs for first, end in zip(starts, ends, strict=True)) == 3


def test_a_position_of_another_history_is_rejected(wh, table):
    query = Query(wh, "db.t")
    query.follow(query.begin())
    position = {**query.reached(), "history": [2, "0" * 32]}
    with pytest.raises(DifferentHistoryError, match="onDifferentHistory=continue"):
        query.follow(position)
    Query(wh, "db.t", onDifferentHistory="continue").follow(position)


def test_a_consumer_is_where_the_query_has_finished(wh, table):
    query = Query(wh, "db.t", consumerId="alerts")
    query.follow(query.begin())
    finish_real_time(query.connection, {**query.given, "end": query.reached()})
    assert dict(table.refresh().consumers["alerts"].offsets) == table.state.ends
