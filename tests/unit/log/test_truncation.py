"""The state after a truncation: the log begins anew, and some recorded lake snapshots still count."""

from __future__ import annotations

import pytest

from streamhouse_spark import CorruptDataError, OffsetRange, OffsetsTrimmedError, Transaction
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.log import actions as act
from streamhouse_spark.log.append_commit import make_truncate_actions
from streamhouse_spark.log.checkpoint import state_from_json, state_to_json
from streamhouse_spark.log.compaction import CompactionRun, _is_still_live
from streamhouse_spark.log.gc.retention import plan_trim
from streamhouse_spark.log.object_existence import list_referenced_keys
from streamhouse_spark.log.segments.scan import plan_range
from streamhouse_spark.log.state import Truncation, fold
from streamhouse_spark.read.read_snapshot import take_latest_snapshot, take_snapshot_as_of
from unit.log.states import UUID, appended, created, record, segment

HOUR_MS = 3_600_000


def filled():
    """Two buckets, up to offsets 5 and 1, at commit 4."""
    return appended(segment(0, 3, uuid="a"), segment(3, 2), segment(0, 1, bucket=1, uuid="b"), buckets=2)


def folded(state, *actions, time_ms=0, **given):
    return fold(state, record(state.version + 1, *actions, time_ms=time_ms, **given))


def truncated(state, time_ms=0):
    return folded(state, act.Truncate(state.ends), time_ms=time_ms)


def test_the_log_begins_where_it_ended_and_its_files_are_condemned():
    state = truncated(filled(), time_ms=7)
    assert {b: log.offsets for b, log in state.buckets.items()} == {0: OffsetRange(5, 5), 1: OffsetRange(1, 1)}
    assert state.live_segments() == []
    assert state.truncation == Truncation(5, 7, {0: 5, 1: 1})
    assert set(state.condemned) == {segment_key(UUID, "a"), segment_key(UUID, "b")}
    assert {(c.time_ms, c.orphan) for c in state.condemned.values()} == {(7, False)}
    assert list_referenced_keys(state) == set(), "the record with inline rows is not held back"
    assert state.num_rows == 0
    assert filled().num_rows == 6


def test_rows_of_the_same_record_go_behind_it():
    transaction = Transaction("app", 1)
    state = filled()
    state = folded(state, act.Truncate(state.ends), act.Append((segment(5, 2, commit=5),)), transaction=transaction)
    assert state.buckets[0].offsets == OffsetRange(5, 7)
    assert dict(state.transactions["app"].offsets) == {0: OffsetRange(5, 7)}
    assert state.num_rows == 2


@pytest.mark.parametrize("offsets", [{0: 5}, {0: 5, 1: 0}, {0: 6, 1: 1}, {}])
def test_a_truncation_elsewhere_than_at_the_end_is_refused(offsets):
    with pytest.raises(CorruptDataError, match="expected its ends"):
        folded(filled(), act.Truncate(offsets))


def test_a_table_without_rows_is_left_as_it_is():
    assert make_truncate_actions(created(2)) == ()
    assert make_truncate_actions(filled()) == (act.Truncate({0: 5, 1: 1}),)
    once = truncated(filled(), time_ms=7)
    assert make_truncate_actions(once) == ()
    assert truncated(once, time_ms=99).truncation == once.truncation, "there was no row that readers could miss"
    assert truncated(created(2)).truncation is None


def test_a_lake_snapshot_counts_again_when_it_begins_at_the_truncation():
    old = act.TieredSnapshot(1, {0: 5, 1: 1})
    state = folded(filled(), old)
    assert state.lake == old
    state = truncated(state)
    assert state.lake is None, "it holds as many offsets as the log, and none of them is the table's"
    assert state.lake_history == (old,)
    assert state.lake_is_outdated
    assert state.lake_offset(0) == 5
    late = act.TieredSnapshot(2, {0: 5, 1: 1})
    state = folded(state, late)
    assert state.lake is None
    assert state.recorded_lake == late
    new = act.TieredSnapshot(3, {0: 5, 1: 1}, starts={0: 5, 1: 1})
    state = folded(state, new)
    assert state.lake == new
    assert not state.lake_is_outdated
    assert folded(state, late).lake == new, "a pair that is recorded late changes nothing"


def test_a_second_truncation_replaces_the_first():
    state = truncated(filled())
    state = folded(state, act.TieredSnapshot(1, {0: 5, 1: 1}, starts={0: 5, 1: 1}))
    state = folded(state, act.Append((segment(5, 1, commit=7),)))
    state = truncated(state)
    assert state.first_offsets == {0: 6, 1: 1}
    assert state.lake is None
    assert folded(state, act.TieredSnapshot(2, {0: 6, 1: 1}, starts={0: 5, 1: 1})).lake is None


def test_it_goes_through_its_checkpoint_unchanged():
    state = truncated(folded(filled(), act.TieredSnapshot(1, {0: 3})), time_ms=3)
    for lake in (None, act.TieredSnapshot(2, {0: 5, 1: 1}, 9, {0: 5, 1: 1})):
        if lake is not None:
            state = folded(state, lake, act.TieredSnapshot(4, {0: 5}))
        payload = act.Payload()
        data = state_to_json(state, payload)
        assert state_from_json(data, memoryview(b"".join(payload.parts))) == state
        assert state.lake == lake
    assert "truncation" not in state_to_json(filled(), act.Payload()), "older checkpoints keep their bytes"


class TestPins:
    def test_the_union_ignores_what_the_lake_held_before(self):
        state = truncated(folded(filled(), act.TieredSnapshot(1, {0: 5, 1: 1})))
        state = folded(state, act.Append((segment(5, 2, commit=state.version + 1),)))
        pin = take_latest_snapshot(state)
        assert pin.lake is None
        assert pin.hot == {0: OffsetRange(5, 7)}
        assert take_latest_snapshot(state, act.TieredSnapshot(2, {0: 5, 1: 1})) == pin, (
            "nor what a repair finds in the lake"
        )
        new = act.TieredSnapshot(3, {0: 6, 1: 1}, starts={0: 5, 1: 1})
        assert take_latest_snapshot(state, new).hot == {0: OffsetRange(6, 7)}
        assert take_latest_snapshot(state, new).lake is new

    def test_a_read_as_of_a_time_before_the_truncation_fails(self):
        state = created()
        state = folded(state, act.Append((segment(0, 2, time_ms=1000),)), time_ms=1000)
        state = folded(state, act.TieredSnapshot(1, {0: 2}, 1000), time_ms=1000)
        state = truncated(state, time_ms=2000)
        with pytest.raises(OffsetsTrimmedError, match=r"truncated later, by commit 4 at 2000 ms.*\$lake"):
            take_snapshot_as_of(state, 1999)
        assert take_snapshot_as_of(state, 2000).hot == {}
        state = folded(state, act.Append((segment(2, 3, commit=5, time_ms=3000),)), time_ms=3000)
        with pytest.raises(OffsetsTrimmedError, match="truncated later"):
            take_snapshot_as_of(state, 1500)
        assert take_snapshot_as_of(state, 2500).hot == {}
        assert take_snapshot_as_of(state, 2500).lake is None
        assert take_snapshot_as_of(state, 3000).hot == {0: OffsetRange(2, 5)}
        state = folded(state, act.TieredSnapshot(2, {0: 5}, 3500, {0: 2}), time_ms=3500)
        assert take_snapshot_as_of(state, 3000).lake.snapshot_id == 2

    def test_rows_after_a_truncation_by_a_fast_clock_are_read(self):
        """A row that was committed behind it says that it happened before."""
        state = truncated(appended(segment(0, 2, time_ms=1000)), time_ms=9000)
        state = folded(state, act.Append((segment(2, 1, commit=4, time_ms=3000),)), time_ms=3000)
        assert take_snapshot_as_of(state, 3000).hot == {0: OffsetRange(2, 3)}
        with pytest.raises(OffsetsTrimmedError):
            take_snapshot_as_of(state, 2999)


def test_offsets_that_were_taken_away_say_so():
    state = truncated(filled())
    with pytest.raises(OffsetsTrimmedError, match="truncated or overwritten by commit 5 and starts at 5"):
        plan_range(state, 0, OffsetRange(3, 5))
    assert plan_range(state, 0, OffsetRange(5, 5)).segments == ()


def test_segments_that_are_gone_are_not_merged():
    state = filled()
    run = CompactionRun(0, state.buckets[0].segments)
    assert _is_still_live(state, run)
    assert not _is_still_live(truncated(state), run)


def test_trimming_waits_for_the_lake_to_begin_anew():
    state = truncated(folded(filled(), act.TieredSnapshot(1, {0: 5, 1: 1})))
    state = folded(state, act.Append((segment(5, 2, commit=7, uuid="n"), segment(7, 1, commit=7, uuid="m"))))
    late = 100 * HOUR_MS
    for lake_enabled in (True, False):
        assert plan_trim(state, late, HOUR_MS, lake_enabled=lake_enabled) == {}
    state = folded(state, act.TieredSnapshot(2, {0: 5, 1: 1}))
    assert plan_trim(state, late, HOUR_MS, lake_enabled=True) == {}, "a late pair of before allows nothing"
    state = folded(state, act.TieredSnapshot(3, {0: 7, 1: 1}, starts={0: 5, 1: 1}))
    assert plan_trim(state, late, HOUR_MS, lake_enabled=True) == {0: 7}
    state = folded(state, act.CommitConsumerOffset("reader", {0: 3, 1: 0}), time_ms=late)
    assert plan_trim(state, late, HOUR_MS, lake_enabled=True) == {}, "a consumer behind the truncation still reads on"
