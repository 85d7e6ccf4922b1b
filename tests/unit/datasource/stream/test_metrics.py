"""The time that a stream is behind the newest rows."""

from __future__ import annotations

import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.datasource.scan.stream_pushdown import lag_ms
from streamhouse_spark.write.auto_compaction import merge_inline


@pytest.fixture
def table(memory, world, clock):
    """Commits of three rows each, at 0, 5 and 12 seconds; the first two are in one segment."""
    table = Warehouse("wh", storage=memory, world=world).create_table("t", "id long", buckets=1)
    for wait_ms in (5000, 7000, 0):
        table.append([{"id": i} for i in range(3)])
        clock.advance(wait_ms)
        if wait_ms == 7000:
            merge_inline(table)
    return table


@pytest.mark.parametrize(
    ("read", "expected"), [(0, 12_000), (2, 12_000), (3, 7000), (5, 7000), (6, 0), (8, 0), (9, 0), (20, 0)]
)
def test_it_is_the_time_between_the_first_row_that_was_not_read_and_the_newest(table, read, expected):
    assert lag_ms(table.refresh(), {0: read}) == expected


def test_a_bucket_that_was_never_read_counts(table):
    assert lag_ms(table.refresh(), {}) == 12_000


def test_rows_that_the_log_no_longer_has_have_no_time(memory, world, clock):
    properties = {"table.datalake.enabled": "false", "table.log.ttl": "1ms"}
    table = Warehouse("wh", storage=memory, world=world).create_table("u", "id long", buckets=1, properties=properties)
    table.append([{"id": 1}])
    clock.advance(5000)
    table.maintain()
    state = table.refresh()
    assert state.buckets[0].start == 1
    assert lag_ms(state, {0: 0}) is None
    assert lag_ms(state, {0: 1}) == 0
