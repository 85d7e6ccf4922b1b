"""Trimming by time to live: what it deletes, and what it must keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.tables import TableCase
from streamhouse_spark.log.actions import KvSnapshot, TieredSnapshot
from streamhouse_spark.log.gc.retention import CONSUMER_LIMIT_MS, effective_times_ms, plan_trim, trim
from streamhouse_spark.table.system_views import open_view
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from unit.log.states import segment

HOUR_MS = 3_600_000
PLAIN = {"table.log.ttl": "2h", "table.datalake.enabled": "false"}
TABLE = TableCase("t", "id BIGINT", properties=PLAIN)


def ids(table) -> list[int]:
    return open_view(table, "changelog").to_arrow()["id"].to_pylist()


def hourly(table, clock, count):
    for i in range(count):
        table.append([{"id": i}])
        clock.advance(HOUR_MS)


def test_rows_go_when_their_time_is_over(table, clock):
    hourly(table, clock, 5)
    report = table.maintain()
    assert report.trimmed_to == {0: 4}, "the row of an hour ago stays"
    assert ids(table) == [4]
    assert table.to_arrow()["id"].to_pylist() == [4]
    assert table.maintain().trimmed_to == {}
    clock.advance(10 * HOUR_MS)
    assert table.maintain().trimmed_to == {0: 5}
    assert table.to_arrow().num_rows == 0
    assert table.append([{"id": 9}])[0].start == 5


def test_a_time_to_live_of_zero_keeps_everything(wh, clock):
    table = wh.create_table("t", "id BIGINT", properties={**PLAIN, "table.log.ttl": "0"})
    hourly(table, clock, 3)
    clock.advance(10**12)
    assert table.maintain().trimmed_to == {}
    assert ids(table) == [0, 1, 2]


def test_merged_rows_go_when_the_newest_may_go(table, clock):
    hourly(table, clock, 4)
    compact_inline_rows(table)
    clock.advance(HOUR_MS // 2)
    assert table.maintain().trimmed_to == {}
    clock.advance(HOUR_MS)
    assert table.maintain().trimmed_to == {0: 4}


def test_a_record_from_the_future_expires_nothing_and_keeps_nothing(table, clock):
    table.append([{"id": 0}])
    clock.jump(1000 * 24 * HOUR_MS)
    table.append([{"id": 1}])
    clock.jump(-1000 * 24 * HOUR_MS)
    table.append([{"id": 2}])
    assert table.maintain().trimmed_to == {}
    clock.advance(3 * HOUR_MS)
    table.append([{"id": 3}])
    assert table.maintain().trimmed_to == {0: 3}
    assert ids(table) == [3]


@pytest.mark.parametrize("merged", [False, True])
def test_a_clock_that_ran_behind_expires_nothing_before_it(table, clock, merged):
    table.append([{"id": 0}])
    clock.jump(-1000 * HOUR_MS)
    table.append([{"id": 1}])
    clock.jump(1000 * HOUR_MS)
    table.append([{"id": 2}])
    if merged:
        compact_inline_rows(table)
    state = table.refresh()
    assert plan_trim(state, clock.now_ms(), 2 * HOUR_MS, lake_enabled=False) == {}
    clock.advance(3 * HOUR_MS)
    assert plan_trim(state, clock.now_ms(), 2 * HOUR_MS, lake_enabled=False) == {0: 3}


class TestLake:
    def test_never_beyond_what_the_lake_holds(self, wh, clock):
        table = wh.create_table("t", "id BIGINT", buckets=2, properties={"bucket.key": "id", "table.log.ttl": "2h"})
        hourly(table, clock, 6)
        clock.advance(10 * HOUR_MS)

        def planned():
            return plan_trim(table.refresh(), clock.now_ms(), 2 * HOUR_MS, lake_enabled=True)

        assert planned() == {}
        ends = table.state.ends
        table.log.commit(lambda *_: (TieredSnapshot(1, {0: ends[0], 1: ends[1] - 1}),))
        assert planned() == {b: e for b, e in {0: ends[0], 1: ends[1] - 1}.items() if e}
        compact_inline_rows(table)
        assert planned() == {0: ends[0]}, "a segment goes whole or stays"

    def test_a_lake_that_was_disabled_still_limits(self, wh, clock):
        table = wh.create_table("t", "id BIGINT", properties={"table.log.ttl": "2h"})
        hourly(table, clock, 3)
        table.log.commit(lambda *_: (TieredSnapshot(1, {0: 1}),))
        clock.advance(10 * HOUR_MS)
        assert plan_trim(table.refresh(), clock.now_ms(), 2 * HOUR_MS, lake_enabled=False) == {0: 1}


class TestConsumers:
    def test_they_hold_trimming_back(self, table, clock):
        hourly(table, clock, 5)
        seen = set()
        for offset in (2, 2, 3):
            table.move_consumer("slow", {0: offset})
            assert trim(table.log, 2 * HOUR_MS, lake_enabled=False) == ({0: offset} if offset not in seen else {})
            seen.add(offset)
        table.move_consumer("slow", None)
        assert trim(table.log, 2 * HOUR_MS, lake_enabled=False) == {0: 4}
        version = table.refresh().version
        table.move_consumer("slow", None)
        assert table.refresh().version == version

    def test_until_they_were_silent_too_long(self, table, clock):
        hourly(table, clock, 3)
        table.move_consumer("dead", {0: 0})
        clock.advance(CONSUMER_LIMIT_MS)
        assert table.maintain().trimmed_to == {}
        clock.advance(3 * HOUR_MS)
        assert table.maintain().trimmed_to == {0: 3}

    def test_a_consumer_that_waits_is_not_silent(self, table, clock):
        """It says the same position again, because nothing more can be processed yet."""
        hourly(table, clock, 3)
        for _ in range(10):
            table.move_consumer("stuck", {0: 1})
            clock.advance(CONSUMER_LIMIT_MS // 4)
        assert table.maintain().trimmed_to == {0: 1}

    def test_a_bucket_that_a_consumer_does_not_name_is_not_read_yet(self, wh, clock):
        table = wh.create_table("b", "id BIGINT", buckets=2, properties={**PLAIN, "bucket.key": "id"})
        table.append([{"id": i} for i in range(20)])
        clock.advance(5 * HOUR_MS)
        table.move_consumer("half", {0: 3})
        assert table.maintain().trimmed_to == {}, "3 lies within a segment"
        table.move_consumer("half", {0: table.state.buckets[0].end})
        assert set(table.maintain().trimmed_to) == {0}


def test_of_a_table_with_a_key_only_what_a_snapshot_holds_goes(wh, clock, own_cache):
    table = wh.create_table("t", "id BIGINT", primary_key=["id"], properties=PLAIN)
    for i in range(3):
        table.upsert([{"id": i}])
    clock.advance(10 * HOUR_MS)
    state = table.refresh()
    assert plan_trim(state, clock.now_ms(), HOUR_MS, lake_enabled=False) == {}
    held = replace(state, snapshots={0: KvSnapshot(0, 0, 2, ())})
    assert plan_trim(held, clock.now_ms(), HOUR_MS, lake_enabled=False) == {0: 2}
    assert plan_trim(held, clock.now_ms(), HOUR_MS, lake_enabled=True) == {}


def times(*commit_times: int) -> list[int]:
    return effective_times_ms([segment(at, 1, time_ms=ms) for at, ms in enumerate(commit_times)])


def test_a_clock_that_ran_ahead_is_corrected_by_later_records():
    assert times(1, 2, 3) == [1, 2, 3]
    assert times(1, 99, 3) == [1, 3, 3]
    assert times() == []


@given(st.lists(st.integers(0, 100), max_size=30))
def test_times_never_decrease_and_are_never_later_than_said(commit_times):
    found = times(*commit_times)
    assert found == sorted(found)
    assert all(effective <= said for effective, said in zip(found, commit_times, strict=True))
    assert not commit_times or found[-1] == commit_times[-1]
