"""The effect of each action of a record on a table, and records that cannot be."""

from __future__ import annotations

import pytest

from streamhouse_spark import CorruptDataError, OffsetRange, Transaction
from streamhouse_spark.core.warehouse_layout import commit_key, segment_key
from streamhouse_spark.log import actions as act
from streamhouse_spark.log.checkpoint import state_from_json, state_to_json
from streamhouse_spark.log.object_existence import list_referenced_keys
from streamhouse_spark.log.state import fold
from unit.log.states import SCHEMA, UUID, appended, created, record, segment


def test_segments_go_behind_each_other_in_their_bucket():
    state = appended(segment(0, 3, uuid="a"), segment(0, 2, bucket=1, uuid="b"), segment(3, 1, uuid="c"), buckets=2)
    assert state.ends == {0: 4, 1: 2}
    assert [s.uuid for s in state.buckets[0].segments] == ["a", "c"]
    assert state.version == 4


@pytest.mark.parametrize("base", [0, 2, 4])
def test_a_segment_that_leaves_a_gap_or_overlaps_is_refused(base):
    state = appended(segment(0, 3))
    with pytest.raises(CorruptDataError, match="expected offset 3"):
        fold(state, record(3, act.Append((segment(base, 1),))))


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_record_follows_the_one_before_it(number):
    state = appended(segment(0, 3))
    with pytest.raises(CorruptDataError):
        fold(state, record(number, act.Append((segment(3, 1),))))


def test_only_the_first_record_creates():
    create = act.Create("d.t", SCHEMA, (), 1, {}, "lake/d/t")
    with pytest.raises(CorruptDataError):
        fold(created(), record(2, create))
    with pytest.raises(CorruptDataError):
        fold(None, record(2, create))
    with pytest.raises(CorruptDataError):
        fold(None, record(1, act.Drop()))


def test_a_replacement_takes_the_place_of_its_inputs_and_condemns_their_files():
    state = appended(segment(0, 3, uuid="a"), segment(3, 2), segment(5, 1, uuid="c"))
    merged = segment(0, 5, uuid="m")
    after = fold(state, record(5, act.Replace(0, 0, 5, (merged,)), time_ms=77))
    assert [s.uuid for s in after.buckets[0].segments] == ["m", "c"]
    assert after.buckets[0].offsets == OffsetRange(0, 6)
    assert set(after.condemned) == {segment_key(UUID, "a")}, "the inline rows have no file of their own"
    assert after.condemned[segment_key(UUID, "a")].time_ms == 77


@pytest.mark.parametrize(("start", "end"), [(0, 4), (1, 5), (2, 3), (6, 9), (3, 3)])
def test_a_replacement_of_segments_that_are_not_there_is_refused(start, end):
    state = appended(segment(0, 3, uuid="a"), segment(3, 2, uuid="b"))
    with pytest.raises(CorruptDataError, match="the log does not have"):
        fold(state, record(4, act.Replace(0, start, end, (segment(start, 1, uuid="m"),))))


def test_trimming_advances_the_start_and_never_moves_it_back():
    state = appended(segment(0, 3, uuid="a"), segment(3, 2, uuid="b"))
    state = fold(state, record(4, act.Trim({0: 3})))
    assert state.buckets[0].offsets == OffsetRange(3, 5)
    assert segment_key(UUID, "a") in state.condemned
    state = fold(state, record(5, act.Trim({0: 1})))
    assert state.buckets[0].offsets == OffsetRange(3, 5)


def test_a_transaction_remembers_the_offsets_of_its_record():
    transaction = Transaction("app", 7, "query")
    added = act.Append((segment(3, 2), segment(0, 1, bucket=1)))
    state = fold(appended(segment(0, 3), buckets=2), record(3, added, transaction=transaction))
    entry = state.transactions["app"]
    assert (entry.version, entry.owner, entry.commit) == (7, "query", 3)
    assert dict(entry.offsets) == {0: OffsetRange(3, 5), 1: OffsetRange(0, 1)}
    assert "app" not in fold(state, record(4, act.ForgetTransactions(("app",)))).transactions


def test_condemned_files_are_remembered_until_they_are_purged():
    state = fold(appended(segment(0, 3, uuid="a")), record(3, act.MarkOrphans(("x", "y")), time_ms=1))
    state = fold(state, record(4, act.MarkOrphans(("x",)), time_ms=9))
    assert state.condemned["x"].time_ms == 1, "the grace counts from the first time"
    assert set(fold(state, record(5, act.ConfirmDeleted(("x",)))).condemned) == {"y"}


def test_folding_changes_nothing_that_was_there():
    state = appended(segment(0, 3, uuid="a"))
    before = state_to_json(state, act.Payload())
    fold(state, record(3, act.Append((segment(3, 1),)), act.Trim({0: 3}), act.Drop()))
    assert state_to_json(state, act.Payload()) == before


def test_a_state_goes_through_its_checkpoint_unchanged():
    state = appended(segment(0, 3, uuid="a", time_ms=5), segment(3, 2))
    state = fold(state, record(4, act.TieredSnapshot(11, {0: 3}, 6), transaction=Transaction("app", 1)))
    state = fold(state, record(5, act.SetProperties({"k": "v"}), act.MarkOrphans(("x",))))
    payload = act.Payload()
    data = state_to_json(state, payload)
    assert state_from_json(data, memoryview(b"".join(payload.parts))) == state


def test_readers_need_the_segments_and_the_records_with_inline_rows():
    state = appended(segment(0, 3, uuid="a"), segment(3, 2, commit=3))
    assert list_referenced_keys(state) == {segment_key(UUID, "a"), commit_key(UUID, 3)}
    assert state.oldest_inline_commit() == 3
    assert appended(segment(0, 3, uuid="a")).oldest_inline_commit() is None


def test_properties_are_parsed_again_only_where_they_or_the_columns_changed():
    state = appended(segment(0, 3))
    parsed = state.parsed
    after = fold(state, record(3, act.Append((segment(3, 1),))))
    assert after.parsed is parsed
    packed = fold(after, record(4, act.SetProperties({"table.log.arrow.compression.type": "zstd"})))
    assert (parsed.log_compression, packed.parsed.log_compression) == ("none", "zstd")
    assert fold(packed, record(5, act.Append((segment(4, 1),)))).parsed is packed.parsed
