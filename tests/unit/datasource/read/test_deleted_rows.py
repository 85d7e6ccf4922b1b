"""Streams of a table without a primary key whose rows are deleted before, while and after they are read."""

import pytest

from property.stream_driver import Query
from streamhouse_spark.errors import InvalidOptionError, OffsetsTrimmedError

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)


@pytest.fixture
def table(wh):
    return wh.create_table("d.t", "id BIGINT", properties={"table.datalake.enabled": "false"})


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


def test_the_changelog_is_refused(wh, table):
    append(table, 1, 2)
    table.delete(where=[("id", "=", 2)])
    with pytest.raises(InvalidOptionError, match="cannot tell of deleted rows"):
        Query("d.t$changelog").run(wh)
