"""Folding records: what each does to a table, and that a record that cannot follow is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamhouse_spark import CorruptDataError, OffsetRange, Transaction
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.log.actions import (
    Append,
    CommitConsumerOffset,
    ConfirmDeleted,
    Create,
    Drop,
    ForgetTransactions,
    MarkOrphans,
    Payload,
    Replace,
    SetProperties,
    SetSchema,
    TieredSnapshot,
    Trim,
)
from streamhouse_spark.log.checkpoint import state_from_json, state_to_json
from streamhouse_spark.log.object_existence import list_referenced_keys
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.state import LAKE_HISTORY_MAX, fold
from streamhouse_spark.schema.table_schema import Column, TableSchema

UUID = "0" * 32
SCHEMA = TableSchema.of("id BIGINT")
CREATE = Create("a.t", SCHEMA, (), 2, {"comment": "x"}, "lake/a/t")


def record(number, *actions, transaction=None, manifest=None):
    return Record(number, UUID, f"{number:032x}", 1000 * number, actions, transaction, manifest)


def segment(bucket, base, rows, commit, name=None):
    inline = None if name else (0, 8)
    return Segment(bucket, base, rows, 100, 1, commit, 1000 * commit, 1000 * commit, uuid=name, inline=inline)


def folded(*steps, state=None):
    """Each step is the actions of one record."""
    for actions in steps:
        number = 1 if state is None else state.version + 1
        state = fold(state, record(number, *actions))
    return state


def appended():
    return folded(
        (CREATE,),
        (Append((segment(0, 0, 3, 2), segment(1, 0, 2, 2, "a" * 32))),),
        (Append((segment(0, 3, 4, 3, "b" * 32),)),),
    )


def test_a_create_record_makes_an_empty_table():
    state = folded((CREATE,))
    assert (state.version, state.name, state.num_buckets, state.schema_id) == (1, "a.t", 2, 1)
    assert state.ends == {0: 0, 1: 0}
    assert state.created_ms == state.time_ms == 1000


def test_appends_without_gaps_follow_each_other():
    state = appended()
    assert state.ends == {0: 7, 1: 2}
    assert [s.base_offset for s in state.buckets[0].segments] == [0, 3]
    for base in (0, 6, 8):
        with pytest.raises(CorruptDataError, match="expected offset 7"):
            folded((Append((segment(0, base, 1, 4),)),), state=state)


def test_two_segments_of_one_bucket_in_one_record():
    state = folded((CREATE,), (Append((segment(0, 0, 3, 2), segment(0, 3, 2, 2))),))
    assert state.ends == {0: 5, 1: 0}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: record(s.version, Drop()),
        lambda s: record(s.version + 2, Drop()),
        lambda s: record(s.version + 1, CREATE),
    ],
)
def test_records_that_cannot_follow(wrong):
    state = appended()
    with pytest.raises(CorruptDataError):
        fold(state, wrong(state))


@pytest.mark.parametrize("first", [record(1), record(1, Drop()), record(2, CREATE)])
def test_what_cannot_begin_a_table(first):
    with pytest.raises(CorruptDataError, match="does not create a table"):
        fold(None, first)


def test_replace_and_trim_condemn_what_they_free():
    state = appended()
    merged = folded((Replace(0, 0, 7, (segment(0, 0, 7, 4, "c" * 32),)),), state=state)
    assert merged.ends == state.ends
    assert [s.uuid for s in merged.buckets[0].segments] == ["c" * 32]
    assert set(merged.condemned) == {segment_key(UUID, "b" * 32)}
    assert not next(iter(merged.condemned.values())).orphan
    trimmed = folded((Trim({0: 7}),), state=merged)
    assert trimmed.buckets[0].offsets == OffsetRange(7, 7)
    assert set(trimmed.condemned) == {segment_key(UUID, "b" * 32), segment_key(UUID, "c" * 32)}
    assert list_referenced_keys(trimmed) == {segment_key(UUID, "a" * 32)}
    again = folded((Trim({0: 3}),), state=trimmed)
    assert again.buckets[0].start == 7, "a start never goes back"


@pytest.mark.parametrize(("start", "end"), [(0, 5), (1, 7), (7, 9)])
def test_a_replace_that_does_not_fit_the_segments(start, end):
    with pytest.raises(CorruptDataError, match="replaces segments that the log does not have"):
        folded((Replace(0, start, end, (segment(0, start, end - start, 4, "c" * 32),)),), state=appended())


def test_a_bounded_history_of_tiered_snapshots_is_kept():
    pairs = [(TieredSnapshot(i, {0: i % 8}, i),) for i in range(LAKE_HISTORY_MAX + 5)]
    state = folded((CREATE,), *pairs)
    assert state.lake.snapshot_id == LAKE_HISTORY_MAX + 4
    assert len(state.lake_history) == LAKE_HISTORY_MAX
    assert state.lake_offset(0) == (LAKE_HISTORY_MAX + 4) % 8
    assert state.lake_offset(1) == 0


def test_records_change_properties_schemas_and_consumers():
    changed = TableSchema((Column(1, "id", pa.int64()), Column(2, "b", pa.string())))
    state = folded(
        (CREATE,),
        (SetProperties({"table.log.ttl": "1d"}, ("comment",)),),
        (SetSchema(2, changed),),
        (MarkOrphans(("x", "y")),),
        (ConfirmDeleted(("x",)),),
        (CommitConsumerOffset("c", {0: 1}), CommitConsumerOffset("d", {0: 2})),
        (CommitConsumerOffset("d", None),),
    )
    assert state.properties == {"table.log.ttl": "1d"}
    assert state.schema == changed
    assert set(state.schemas) == {1, 2}
    assert set(state.condemned) == {"y"}
    assert state.condemned["y"].orphan
    assert {k: dict(c.offsets) for k, c in state.consumers.items()} == {"c": {0: 1}}
    assert folded((Drop(),), state=state).dropped


def test_transactions_remember_their_offsets():
    state = folded((CREATE,))
    state = fold(state, record(2, Append((segment(1, 0, 5, 2),)), transaction=Transaction("app", 4, "q")))
    entry = state.transactions["app"]
    assert (entry.version, entry.owner, entry.commit, dict(entry.offsets)) == (4, "q", 2, {1: OffsetRange(0, 5)})
    state = fold(state, record(3, Append(()), transaction=Transaction("app", 5)))
    assert dict(state.transactions["app"].offsets) == {}
    assert folded((ForgetTransactions(("app", "other")),), state=state).transactions == {}


def test_folding_does_not_change_the_given_state():
    state = appended()
    before = state_to_json(state, Payload())
    folded((Trim({0: 7}),), (Drop(),), state=state)
    assert state_to_json(state, Payload()) == before


def test_a_checkpoint_is_the_state():
    merged = Replace(0, 0, 7, (segment(0, 0, 7, 4, "c" * 32),))
    state = folded(
        (merged, TieredSnapshot(7, {0: 2}, 5), MarkOrphans(("k",)), CommitConsumerOffset("c", {1: 1})), state=appended()
    )
    state = fold(state, record(5, Append((segment(1, 2, 1, 5),)), transaction=Transaction("a", 1), manifest="d" * 32))
    payload = Payload()
    data = state_to_json(state, payload)
    assert state_from_json(data, memoryview(b"".join(payload.parts))) == state
