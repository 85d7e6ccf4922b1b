"""Starts at times of commits, by hosts whose clocks differ: `jump` makes the next commit another host's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamhouse_spark import OffsetRange
from streamhouse_spark.config.spark_options import parse_stream_read_options
from streamhouse_spark.datasource.read.read_target import resolve_starting_offsets
from streamhouse_spark.log.record import CLOCKS_APART_MS, next_record_time
from streamhouse_spark.read.read_snapshot import take_snapshot_as_of

HOUR_MS = 3600 * 1000
OPTIONS = parse_stream_read_options({})


@pytest.fixture
def table(wh, clock):
    table = wh.create_table("t", "id INT", buckets=1, properties={"table.datalake.enabled": "false"})
    clock.advance(HOUR_MS)
    return table


def put(table, *ids):
    """Return the time of the commit."""
    table.append([{"id": i} for i in ids])
    return table.state.time_ms


def start(table, time_ms):
    return resolve_starting_offsets(table.state, replace(OPTIONS, starting_timestamp_ms=time_ms))[0]


@pytest.mark.parametrize("behind_ms", [1, 900, CLOCKS_APART_MS])
def test_a_start_at_a_commits_time_has_its_rows_where_the_next_host_is_behind(table, clock, behind_ms):
    first = put(table, 0, 1)
    clock.jump(-behind_ms)
    second = put(table, 2)
    assert start(table, first) == 0
    assert second == first, "times of commits do not fall"
    assert start(table, first + 1) == 3
    clock.jump(behind_ms + 1)
    third = put(table, 3)
    assert start(table, second) == 0
    assert start(table, third) == 3
    assert take_snapshot_as_of(table.state, first).hot == {0: OffsetRange(0, 3)}
    assert take_snapshot_as_of(table.state, third).hot == {0: OffsetRange(0, 4)}


def test_many_hosts_that_take_turns_never_follow_the_fastest_further_than_it_is(table, clock):
    lead_ms = 0
    for turn in range(40):
        clock.jump(-lead_ms)
        lead_ms = (turn * 2971) % CLOCKS_APART_MS
        clock.jump(lead_ms)
        before, now_ms = table.state.time_ms, clock.now_ms()
        assert put(table, turn) == max(before, now_ms)
        assert table.state.time_ms <= clock.now_ms() - lead_ms + CLOCKS_APART_MS


def test_a_clock_that_ran_far_ahead_is_corrected_by_the_next_record(table, clock):
    now_ms = put(table, 0)
    clock.jump(HOUR_MS)
    assert put(table, 1) == now_ms + HOUR_MS
    clock.jump(-HOUR_MS)
    clock.advance(5)
    assert put(table, 2) == now_ms + 5
    assert start(table, now_ms + 6) == 3, "nothing was committed later"


def test_only_a_small_difference_is_taken_for_none():
    assert next_record_time(100, 100) == 100
    assert next_record_time(100, 101) == 101
    assert next_record_time(101, 100) == 101
    assert next_record_time(100 + CLOCKS_APART_MS, 100) == 100 + CLOCKS_APART_MS
    assert next_record_time(101 + CLOCKS_APART_MS, 100) == 100
