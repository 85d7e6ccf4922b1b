"""Pins: which snapshot and which offsets of the log are a table, now and then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.tables import TableCase
from streamhouse_spark import OffsetRange, OffsetsTrimmedError
from streamhouse_spark.log.actions import TieredSnapshot, Trim
from streamhouse_spark.read.read_snapshot import offset_after, offset_at, take_latest_snapshot, take_snapshot_as_of
from streamhouse_spark.write.auto_compaction import compact_inline_rows

TABLE = TableCase("t", "id BIGINT", buckets=2, properties={"bucket.key": "id"})


def fill(table, clock, batches=4):
    """Batches an hour apart; the moments of their commits."""
    moments = []
    for i in range(batches):
        clock.advance(3_600_000)
        table.append([{"id": 2 * i + j} for j in range(10)])
        moments.append(clock.now_ms())
    return moments


def commit(table, *actions):
    table.log.commit(lambda *_: actions)
    return table.state


def test_without_a_lake_it_is_the_whole_log(table, clock):
    assert take_latest_snapshot(table.state).hot == {}
    fill(table, clock)
    pin = take_latest_snapshot(table.state)
    assert pin.lake is None
    assert pin.hot == {b: OffsetRange(0, end) for b, end in table.state.ends.items()}


def test_with_a_lake_it_is_the_rest_of_the_log(table, clock):
    fill(table, clock)
    ends = table.state.ends
    state = commit(table, TieredSnapshot(5, {0: 3, 1: ends[1]}))
    pin = take_latest_snapshot(state)
    assert pin.lake.snapshot_id == 5
    assert pin.hot == {0: OffsetRange(3, ends[0])}, "buckets that the lake holds whole are absent"
    other = TieredSnapshot(6, {0: 4})
    assert take_latest_snapshot(state, other).hot == {0: OffsetRange(4, ends[0]), 1: OffsetRange(0, ends[1])}
    assert take_latest_snapshot(state, other).lake is other


def test_a_lake_that_is_ahead_of_this_states_log(table, clock):
    """The pair that overrides may be newer than the state: nothing is left to read of the log."""
    fill(table, clock)
    ends = table.state.ends
    assert take_latest_snapshot(table.state, TieredSnapshot(9, {b: end + 5 for b, end in ends.items()})).hot == {}


def test_a_log_that_starts_behind_the_lakes_end_is_an_error(table, clock):
    fill(table, clock)
    start = table.state.buckets[0].segments[0].end_offset
    commit(table, TieredSnapshot(1, {0: start, 1: 0}))
    state = commit(table, Trim({0: start}))
    assert take_latest_snapshot(state).hot[0] == OffsetRange(start, state.buckets[0].end)
    with pytest.raises(OffsetsTrimmedError):
        take_latest_snapshot(state, TieredSnapshot(2, {0: start - 1}))


class TestAsOf:
    def test_the_newest_snapshot_that_is_not_too_new(self, table, clock):
        moments = fill(table, clock)
        segments = {b: log.segments for b, log in table.state.buckets.items()}
        ends = [{b: s[i].end_offset for b, s in segments.items()} for i in range(4)]
        commit(table, TieredSnapshot(1, ends[0]))
        commit(table, TieredSnapshot(2, {0: ends[1][0], 1: ends[1][1] - 1}))
        state = commit(table, TieredSnapshot(3, ends[2]))
        for i, snapshot in enumerate([1, 2, 3, 3]):
            pin = take_snapshot_as_of(state, moments[i])
            assert pin.lake.snapshot_id == snapshot
            held = pin.lake.offsets
            assert pin.hot == {b: OffsetRange(held[b], e) for b, e in ends[i].items() if e > held[b]}
        early = take_snapshot_as_of(state, moments[0] - 1)
        assert early.lake is None
        assert early.hot == {}

    def test_a_time_before_the_table_is_an_error(self, table, clock):
        made_ms = table.state.created_ms
        with pytest.raises(OffsetsTrimmedError, match="the table was created later"):
            take_snapshot_as_of(table.state, made_ms - 1)
        assert take_snapshot_as_of(table.state, made_ms).hot == {}
        moments = fill(table, clock)
        with pytest.raises(OffsetsTrimmedError, match="the table was created later"):
            table.to_arrow(as_of_timestamp_ms=made_ms - 1)
        assert table.to_arrow(as_of_timestamp_ms=moments[0]).num_rows == 10

    def test_a_clock_that_was_ahead_when_it_was_made_is_corrected(self, table, clock):
        moments = fill(table, clock)
        state = replace(table.state, created_ms=moments[3] + 3_600_000)
        assert sum(len(offsets) for offsets in take_snapshot_as_of(state, moments[1]).hot.values()) == 20
        assert take_snapshot_as_of(replace(state, buckets={}), moments[3]).hot == {}

    def test_trimming_leaves_what_snapshots_reach(self, table, clock):
        moments = fill(table, clock)
        segments = {b: log.segments for b, log in table.state.buckets.items()}
        commit(table, TieredSnapshot(1, {b: s[0].end_offset for b, s in segments.items()}))
        commit(table, TieredSnapshot(2, {b: s[2].end_offset for b, s in segments.items()}))
        state = commit(table, Trim({0: segments[0][1].end_offset}))
        with pytest.raises(OffsetsTrimmedError, match=r"read the lake as of that time \(default\.t\$lake\)"):
            take_snapshot_as_of(state, moments[1])
        assert take_snapshot_as_of(state, moments[2]).lake.snapshot_id == 2

    def test_rows_that_are_in_the_lake_only_may_be_newer_than_the_time(self, table, clock):
        moments = fill(table, clock)
        segments = {b: log.segments for b, log in table.state.buckets.items()}
        third = {b: s[2].end_offset for b, s in segments.items()}
        clock.advance(3_600_000)
        commit(table, TieredSnapshot(1, third, clock.now_ms()))
        state = commit(table, Trim(third))
        for moment in moments[:3]:
            with pytest.raises(OffsetsTrimmedError, match="does not store commit times"):
                take_snapshot_as_of(state, moment)
        assert take_snapshot_as_of(state, moments[3]).hot == {
            b: OffsetRange(third[b], log.end) for b, log in state.buckets.items()
        }
        clock.advance(3_600_000)
        commit(table, TieredSnapshot(2, state.ends, clock.now_ms()))
        state = commit(table, Trim(state.ends))
        with pytest.raises(OffsetsTrimmedError):
            take_snapshot_as_of(state, clock.now_ms() - 1)
        assert take_snapshot_as_of(state, clock.now_ms()).lake.snapshot_id == 2


def test_offsets_at_times_are_those_of_commits(table, clock):
    moments = fill(table, clock)
    for merged in (False, True):
        if merged:
            compact_inline_rows(table)
        for log in table.state.buckets.values():
            bases = [0, *(log.end * (i + 1) // 4 for i in range(4))] if merged else None
            found = [offset_at(log, ms) for ms in moments]
            assert found[0] == 0
            assert found == sorted(found)
            assert offset_at(log, moments[0] - 1) == 0
            assert offset_at(log, moments[-1] + 1) == log.end
            assert [offset_after(log, ms) for ms in moments] == [*found[1:], log.end]
            assert [offset_at(log, ms + 1) for ms in moments] == [*found[1:], log.end]
            assert bases is None or len(set(found)) == 4
