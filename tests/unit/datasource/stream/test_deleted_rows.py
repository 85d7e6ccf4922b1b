"""Streams of a log table whose rows are deleted, or whose partitions are dropped, while they are read."""

import json

import pytest
from pyiceberg.manifest import clear_manifest_cache

from kit.tables import TableCase, tier
from property.stream_driver import Query
from streamhouse_spark import OffsetsTrimmedError
from streamhouse_spark.config.spark_options import parse_stream_read_options
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.datasource.realtime.planning import plan_backlog
from streamhouse_spark.datasource.stream.bootstrap import initial_offset
from streamhouse_spark.log.actions import Trim

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
TABLE = TableCase("d.t", "id BIGINT", properties={"table.datalake.enabled": "false"})


def append(table, *numbers):
    table.append([{"id": number} for number in numbers])


def ids(query):
    return sorted(row["id"] for row in query.rows)


def test_rows_that_are_deleted_before_they_are_read_are_left_out(wh, table):
    append(table, 1, 2, 3)
    table.delete(where=[("id", "=", 2)])
    query = Query("d.t")
    query.run(wh)
    assert ids(query) == [1, 3]
    append(table, 4, 5)
    table.delete(where=[("id", "=", 5)])
    query.run(wh)
    assert ids(query) == [1, 3, 4]


def test_rows_that_were_read_and_are_deleted_end_the_stream(wh, table):
    append(table, 1, 2, 3)
    query = Query("d.t")
    query.run(wh)
    table.delete(where=[("id", "=", 2)])
    append(table, 4)
    with pytest.raises(OffsetsTrimmedError, match=r"offset 1 of bucket 0.*checkpointLocation.*skipChangeCommits=true"):
        query.run(wh)
    assert ids(query) == [1, 2, 3]
    query.options["skipChangeCommits"] = "true"
    query.run(wh)
    assert ids(query) == [1, 2, 3, 4]
    fresh = Query("d.t")
    fresh.run(wh)
    assert ids(fresh) == [1, 3, 4]


def test_a_batch_that_is_repeated_has_the_rows_that_it_had(wh, table):
    append(table, 1, 2, 3)
    query = Query("d.t", skipChangeCommits="true")
    query.run(wh, batches=1, unfinished=True)
    table.delete(where=[("id", "=", 2)])
    query.run(wh)
    assert ids(query) == [1, 2, 3]


def test_a_batch_that_is_repeated_after_many_deletions(wh, table, monkeypatch):
    monkeypatch.setattr("streamhouse_spark.log.state.DELETIONS_MAX", 2)
    append(table, *range(10))
    table.delete(where=[("id", "=", 0)])
    query = Query("d.t", skipChangeCommits="true")
    query.run(wh, batches=1, unfinished=True)
    for number in range(1, 7):
        table.delete(where=[("id", "=", number)])
    assert len(table.refresh().deletions) == 2, "the first is of many commits"
    query.run(wh)
    assert ids(query) == list(range(1, 10))


def changes(query):
    return [(row["id"], row["_change_type"], row["_log_offset"]) for row in query.rows]


def told(reader, start, end):
    parts = reader.partitions(start, end)
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return [(row["id"], row["_change_type"]) for row in found]


def changelog(**options):
    return Query("d.t$changelog", **options)


class TestStreamsOfChanges:
    def test_a_row_that_was_read_and_is_deleted_is_told(self, wh, table):
        append(table, 1, 2, 3)
        query = changelog()
        query.run(wh)
        table.delete(where=[("id", "=", 2)])
        query.run(wh)
        assert changes(query)[3:] == [(2, "delete", 1)], "a batch without a new row"
        append(table, 4)
        table.delete(where=[("id", "in", [1, 4])])
        append(table, 5)
        query.run(wh)
        assert changes(query)[4:] == [(5, "insert", 4), (1, "delete", 0)], "4 came and went"
        assert changes(query)[:3] == [(1, "insert", 0), (2, "insert", 1), (3, "insert", 2)]
        before = len(query.rows)
        query.run(wh)
        assert len(query.rows) == before

    def test_a_batch_that_is_repeated_has_the_changes_that_it_had(self, wh, table):
        append(table, 1, 2, 3)
        query = changelog()
        query.run(wh)
        table.delete(where=[("id", "=", 2)])
        query.run(wh, batches=1, unfinished=True)
        table.delete(where=[("id", "=", 3)])
        append(table, 4)
        query.run(wh)
        assert changes(query)[3:] == [(2, "delete", 1), (4, "insert", 3), (3, "delete", 2)]

    def test_a_stream_from_the_latest_row_on_is_told_of_older_rows(self, wh, table):
        append(table, 1, 2)
        query = changelog(startingOffsets="latest")
        begun = query.reader(wh)
        start = begun.initialOffset()
        table.delete(where=[("id", "=", 1)])
        end = begun.latestOffset(start, begun.getDefaultReadLimit())
        append(table, 3)
        again = query.reader(wh)  # started anew: the latest row is another one now
        later = again.initialOffset()
        assert told(again, later, end) == [(1, "delete")]
        table.delete(where=[("id", "=", 2)])
        newest = again.latestOffset(end, again.getDefaultReadLimit())
        assert told(again, end, newest) == [(3, "insert"), (2, "delete")]

    def test_few_rows_a_batch(self, wh, table):
        append(table, *range(10))
        table.delete(where=[("id", "in", [0, 9])])
        query = changelog(maxOffsetsPerTrigger="3")
        query.run(wh, batches=2)
        table.delete(where=[("id", "in", [1, 8])])
        query.run(wh)
        told = {}
        for number, kind, _ in changes(query):
            told.setdefault(number, []).append(kind)
        assert told == {1: ["insert", "delete"], **{number: ["insert"] for number in range(2, 8)}}

    def test_deletions_can_be_passed_over(self, wh, table):
        append(table, 1, 2)
        query = changelog(skipChangeCommits="true")
        query.run(wh)
        table.delete(where=[("id", "=", 2)])
        append(table, 3)
        query.run(wh)
        assert changes(query) == [(1, "insert", 0), (2, "insert", 1), (3, "insert", 2)]

    def test_deletions_that_go_on_do_not_keep_a_bounded_run_going(self, wh, table):
        append(table, *range(6))
        query = changelog()
        query.run(wh)
        table.delete(where=[("id", "=", 0)])
        reader, start = query.reader(wh), json.loads(query.offsets[-1])
        reader.prepareForTriggerAvailableNow()
        for number in range(1, 5):
            table.delete(where=[("id", "=", number)])
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end == start:
                break
            assert told(reader, start, end)[0] == (number - 1, "delete")
            start = end
        assert number == 2, "one batch for the deletion from before the run"
        again = query.reader(wh)
        end = again.latestOffset(start, again.getDefaultReadLimit())
        assert told(again, start, end) == [(2, "delete")]

    def test_records_that_are_gone_end_it(self, wh, table):
        append(table, 1, 2)
        query = changelog()
        query.run(wh)
        table.delete(where=[("id", "=", 2)])
        deleted = table.refresh().version
        for number in range(90):
            append(table, number)
        for number in range(1, deleted + 1):
            table.storage.delete(commit_key(table.uuid, number))
        with pytest.raises(OffsetsTrimmedError, match=f"record has expired; .* is {deleted + 1}$"):
            query.run(wh)


def test_the_changelog_has_inserts_and_deletes(wh, table):
    append(table, 1, 2)
    table.delete(where=[("id", "=", 2)])
    found = wh.view("d.t$changelog").to_arrow()
    assert [tuple(row.values())[:2] for row in found.to_pylist()] == [("insert", 0), ("insert", 1), ("delete", 1)]
    times = found["_commit_timestamp"].to_pylist()
    assert times[0] == times[1] < times[2]


def test_the_changelog_of_an_emptied_table_begins_with_what_came_instead(wh, table):
    append(table, 1, 2)
    table.overwrite([{"id": 3}, {"id": 4}])
    table.delete(where=[("id", "=", 4)])
    found = wh.view("d.t$changelog").to_arrow(columns=["id", "_change_type"]).to_pylist()
    assert [tuple(row.values()) for row in found] == [(3, "insert"), (4, "insert"), (4, "delete")]


@pytest.fixture(params=["iceberg", "paimon"])
def partitioned(wh, request):
    properties = {"table.datalake.format": request.param, "table.log.ttl": "3650d"}
    return wh.create_table("d.t", "id BIGINT, day STRING", partition_by=["day"], properties=properties)


def append_of_day(partitioned, *numbers, day):
    partitioned.append([{"id": number, "day": day} for number in numbers])


def trim(partitioned):
    """Leave nothing in the log that the lake has."""
    offsets = dict(partitioned.refresh().lake.offsets)
    partitioned.log.commit(lambda *_: [Trim(offsets)])


def streamed(wh, **options):
    query = Query("d.t", **options)
    query.run(wh)
    return ids(query)


@pytest.fixture
def dropped(partitioned):
    """Rows 1, 2 and 5 of a day that was dropped, 3, 4 and 6 of another, 7 of the day again."""
    append_of_day(partitioned, 1, 2, day="mon")
    append_of_day(partitioned, 3, 4, day="tue")
    partitioned.append([{"id": 5, "day": "mon"}, {"id": 6, "day": "tue"}])
    tier(partitioned)
    partitioned.drop_partition({"day": "mon"})
    append_of_day(partitioned, 7, day="mon")
    return partitioned


@pytest.mark.parametrize("limits", [{}, {"maxoffsetspertrigger": "2"}])
def test_a_stream_from_the_beginning_has_the_rows_of_the_table(wh, dropped, limits):
    rows = sorted(dropped.to_arrow()["id"].to_pylist())
    assert streamed(wh, **limits) == rows == [3, 4, 6, 7]
    assert streamed(wh, startingOffsets="earliest") == rows
    trim(dropped)
    assert streamed(wh, **limits) == rows
    tier(dropped)
    trim(dropped)
    assert streamed(wh, **limits) == rows


def test_a_stream_that_read_the_rows_goes_on(wh, partitioned):
    append_of_day(partitioned, 1, day="mon")
    append_of_day(partitioned, 2, day="tue")
    query = Query("d.t")
    query.run(wh)
    tier(partitioned)
    partitioned.drop_partition({"day": "mon"})
    append_of_day(partitioned, 3, day="mon")
    query.run(wh)
    trim(partitioned)
    append_of_day(partitioned, 4, day="tue")
    query.run(wh)
    assert ids(query) == [1, 2, 3, 4]


def test_a_repeated_batch_has_its_rows_after_a_partition_was_dropped(wh, partitioned):
    append_of_day(partitioned, 1, day="mon")
    append_of_day(partitioned, 2, day="tue")
    query = Query("d.t")
    query.run(wh, batches=1, unfinished=True)
    tier(partitioned)
    partitioned.drop_partition({"day": "mon"})
    query.run(wh)
    assert ids(query) == [1, 2]


def test_a_batch_whose_rows_are_gone_is_not_repeated_without_them(wh, partitioned):
    append_of_day(partitioned, 1, day="mon")
    append_of_day(partitioned, 2, day="tue")
    query = Query("d.t")
    query.run(wh, batches=1, unfinished=True)
    tier(partitioned)
    partitioned.drop_partition({"day": "mon"})
    trim(partitioned)
    with pytest.raises(OffsetsTrimmedError, match="partition was dropped"):
        query.run(wh)


def test_rows_that_another_engine_wrote_again_are_not_left_out(wh, partitioned):
    if partitioned.properties.datalake_format == "paimon":
        pytest.skip("the other engine is one of Iceberg's")
    append_of_day(partitioned, 1, day="mon")
    append_of_day(partitioned, 2, 3, day="tue")
    tier(partitioned)
    partitioned.drop_partition({"day": "mon"})
    clear_manifest_cache()  # tables of other tests have the same names of files
    partitioned.open_lake().binding.load().delete("id = 3")
    trim(partitioned)
    assert streamed(wh) == [2, 3], "as the table has them until a round records what the other engine did"
    append_of_day(partitioned, 4, day="tue")
    tier(partitioned)
    trim(partitioned)
    with pytest.raises(OffsetsTrimmedError, match="another engine rewrote"):
        streamed(wh)


def test_a_batch_in_real_time_mode_begins_without_them(dropped):
    state, options = dropped.refresh(), parse_stream_read_options({})
    start = initial_offset(state, options, dropped.storage)
    found = plan_backlog(dropped, state, state.schema, ["id"], start, options, has_change_types=False)
    assert found.splits[0].deleted.offsets().tolist() == [0, 1, 4]
