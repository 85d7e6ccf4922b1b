"""Streams of a table without a primary key whose partitions are dropped: one answer, in the log and behind it."""

import pytest
from pyiceberg.manifest import clear_manifest_cache

from kit.tables import tier
from property.stream_driver import Query
from streamhouse_spark import OffsetsTrimmedError
from streamhouse_spark.config.spark_options import parse_stream_read_options
from streamhouse_spark.datasource.realtime.planning import plan_backlog
from streamhouse_spark.datasource.stream.bootstrap import initial_offset
from streamhouse_spark.log.actions import Trim

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)


@pytest.fixture(params=["iceberg", "paimon"])
def table(wh, request):
    properties = {"table.datalake.format": request.param, "table.log.ttl": "3650d"}
    return wh.create_table("d.t", "id BIGINT, day STRING", partition_by=["day"], properties=properties)


def append(table, *numbers, day):
    table.append([{"id": number, "day": day} for number in numbers])


def trim(table):
    """Leave nothing in the log that the lake has."""
    offsets = dict(table.refresh().lake.offsets)
    table.log.commit(lambda *_: [Trim(offsets)])


def streamed(wh, **options):
    query = Query("d.t", **options)
    query.run(wh)
    return ids(query)


def ids(query):
    return sorted(row["id"] for row in query.rows)


@pytest.fixture
def dropped(table):
    """Rows 1, 2 and 5 of a day that was dropped, 3, 4 and 6 of another, 7 of the day again."""
    append(table, 1, 2, day="mon")
    append(table, 3, 4, day="tue")
    table.append([{"id": 5, "day": "mon"}, {"id": 6, "day": "tue"}])
    tier(table)
    table.drop_partition({"day": "mon"})
    append(table, 7, day="mon")
    return table


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


def test_a_stream_that_read_the_rows_goes_on(wh, table):
    append(table, 1, day="mon")
    append(table, 2, day="tue")
    query = Query("d.t")
    query.run(wh)
    tier(table)
    table.drop_partition({"day": "mon"})
    append(table, 3, day="mon")
    query.run(wh)
    trim(table)
    append(table, 4, day="tue")
    query.run(wh)
    assert ids(query) == [1, 2, 3, 4]


def test_a_batch_that_is_repeated_has_the_rows_that_it_had(wh, table):
    append(table, 1, day="mon")
    append(table, 2, day="tue")
    query = Query("d.t")
    query.run(wh, batches=1, unfinished=True)
    tier(table)
    table.drop_partition({"day": "mon"})
    query.run(wh)
    assert ids(query) == [1, 2]


def test_a_batch_whose_rows_are_gone_is_not_repeated_without_them(wh, table):
    append(table, 1, day="mon")
    append(table, 2, day="tue")
    query = Query("d.t")
    query.run(wh, batches=1, unfinished=True)
    tier(table)
    table.drop_partition({"day": "mon"})
    trim(table)
    with pytest.raises(OffsetsTrimmedError, match="partition was dropped"):
        query.run(wh)


def test_rows_that_another_engine_wrote_again_are_not_left_out(wh, table):
    if table.properties.datalake_format == "paimon":
        pytest.skip("the other engine is one of Iceberg's")
    append(table, 1, day="mon")
    append(table, 2, 3, day="tue")
    tier(table)
    table.drop_partition({"day": "mon"})
    clear_manifest_cache()  # tables of other tests have the same names of files
    table.open_lake().place.load().delete("id = 3")
    trim(table)
    assert streamed(wh) == [2, 3], "as the table has them until a round records what the other engine did"
    append(table, 4, day="tue")
    tier(table)
    trim(table)
    with pytest.raises(OffsetsTrimmedError, match="another engine rewrote"):
        streamed(wh)


def test_a_batch_in_real_time_mode_begins_without_them(dropped):
    state, options = dropped.refresh(), parse_stream_read_options({})
    start = initial_offset(state, options, dropped.storage)
    found = plan_backlog(dropped, state, state.schema, ["id"], start, options, has_change_types=False)
    assert found.splits[0].deleted.offsets().tolist() == [0, 1, 4]
