"""A record with several attempts reads back as it was made, and means what a record of each would."""

import dataclasses

import pytest

from streamhouse_spark import CorruptDataError, FormatVersionError, OffsetRange, Transaction
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.log.actions import Append
from streamhouse_spark.log.framing import decode_frame, encode_frame
from streamhouse_spark.log.record import (
    GROUP_VERSION,
    CommitAttempt,
    GroupMember,
    Record,
    encode_record,
    read_attempt,
    read_record,
)
from streamhouse_spark.log.state import fold
from streamhouse_spark.storage.memory import MemoryStorage
from unit.log.commits.states import UUID, created, record, segment

FIRST, SECOND, THIRD = Append((segment(0, 3, uuid="a"),)), Append((segment(3, 2, uuid="b"),)), Append(())
GROUP = Record(
    2, UUID, "group", 5, (FIRST, SECOND, THIRD),
    members=(
        GroupMember("one", 1, Transaction("app-1", 7)), GroupMember("two", 1),
        GroupMember("three", 1, Transaction("app-3", 0)),
    ),
)  # fmt: skip


def test_the_attempts_read_back_with_their_own_transactions_and_actions():
    storage = MemoryStorage()
    storage.put_if_absent(commit_key(UUID, 2), encode_record(GROUP, "f" * 32).data)
    stored, _ = read_record(storage, UUID, 2)
    assert stored.attempts == (
        CommitAttempt("one", (FIRST,), Transaction("app-1", 7)),
        CommitAttempt("two", (SECOND,), None),
        CommitAttempt("three", (THIRD,), Transaction("app-3", 0)),
    )
    assert read_attempt(storage, UUID, 2) == "group"


def test_each_transaction_gets_the_offsets_of_its_own_rows():
    state = fold(created(), GROUP)
    assert state.transactions["app-1"].offsets == {0: OffsetRange(0, 3)}
    assert state.transactions["app-3"].offsets == {}
    assert {entry.commit for entry in state.transactions.values()} == {2}


def test_the_rows_are_those_of_a_record_for_each():
    alone = fold(fold(created(), record(2, FIRST)), record(3, SECOND))
    assert fold(created(), GROUP).buckets == alone.buckets


def test_a_reader_that_knows_one_attempt_a_record_refuses_it():
    with pytest.raises(FormatVersionError, match="upgrade streamhouse-spark"):
        decode_frame("commit", encode_record(GROUP, "f" * 32).data, "here")


def test_a_record_of_one_attempt_is_written_as_ever():
    alone = dataclasses.replace(GROUP, members=(), transaction=Transaction("app-1", 7))
    frame = decode_frame("commit", encode_record(alone, "f" * 32).data, "here")
    assert frame.version == 1
    assert "members" not in frame.header


@pytest.mark.parametrize(
    "shares", [(1, 1), (1, 1, 2), (0, 2, 1), (-1, 2, 2), ()], ids=["fewer", "more", "none", "negative", "nobody"]
)
def test_attempts_that_do_not_share_the_actions_are_damage(shares):
    members = tuple(GroupMember(f"m{n}", share) for n, share in enumerate(shares))
    storage = MemoryStorage()
    data = encode_record(GROUP, "f" * 32).data
    frame = decode_frame("commit", data, "here", newest=GROUP_VERSION)
    header = {**frame.header, "members": [{"attempt": m.attempt, "actions": m.num_actions} for m in members]}
    storage.put_if_absent(commit_key(UUID, 2), encode_frame("commit", header, [frame.payload], version=GROUP_VERSION))
    with pytest.raises(CorruptDataError, match="restore this file"):
        read_record(storage, UUID, 2)


def test_attempts_in_the_format_of_one_are_damage():
    storage = MemoryStorage()
    frame = decode_frame("commit", encode_record(GROUP, "f" * 32).data, "here", newest=GROUP_VERSION)
    storage.put_if_absent(commit_key(UUID, 2), encode_frame("commit", frame.header, [frame.payload]))
    with pytest.raises(CorruptDataError, match="restore this file"):
        read_record(storage, UUID, 2)
