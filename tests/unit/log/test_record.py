"""Records are read as they were written, and forged or newer ones are rejected."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark import CorruptDataError, FormatVersionError, OffsetRange, Transaction, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.warehouse_layout import commit_key, manifest_key
from streamhouse_spark.log.actions import Append, TieredSnapshot, Trim, action_from_json
from streamhouse_spark.log.framing import decode_frame, encode_frame
from streamhouse_spark.log.record import (
    GROUP_VERSION,
    RECORD_BYTES_MAX,
    CommitAttempt,
    GroupMember,
    Record,
    encode_record,
    read_attempt,
    read_record,
)
from streamhouse_spark.log.segments.writer import SegmentOptions
from streamhouse_spark.log.staging import BucketRouter, RowStager
from streamhouse_spark.log.state import fold
from streamhouse_spark.storage.memory import MemoryStorage
from unit.log.states import UUID, created, record, segment

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


MANIFEST_UUID = "f" * 32


@pytest.mark.parametrize("repeated", [1, 2000], ids=["in the record", "in a manifest"])
def test_the_stored_form_is_what_reading_gives(repeated):
    storage = MemoryStorage()
    days = pa.array(np.arange(100, dtype=np.int32)).cast(pa.date32())
    rows = pa.table({"id": np.arange(100), "day": days, "name": ["x"] * 100})
    shape = SegmentOptions(1, ("name",), ("id", "day", "name"))
    inline = RowStager(storage, UUID, shape, BucketRouter(4, ("id",)), World()).stage(rows)
    objects = RowStager(storage, UUID, shape, BucketRouter(4, ("id",)), World(), inline_bytes_max=0).stage(rows)
    staged = (*inline.segments, *objects.segments) * repeated
    placed = tuple(s.segment.placed(10 * i, 7, 1234) for i, s in enumerate(staged))
    record = Record(
        number=7,
        table_uuid=UUID,
        attempt="a",
        time_ms=1234,
        actions=(Append(placed, tuple(s.inline_rows for s in staged)), Trim({1: 5}), TieredSnapshot(3, {0: 9}, 8)),
        transaction=Transaction("app", 3, "owner"),
    )

    encoded = encode_record(record, MANIFEST_UUID)
    assert (encoded.manifest is not None) == (len(encoded.data) + len(encoded.manifest or b"") > RECORD_BYTES_MAX)
    storage.put_if_absent(commit_key(UUID, 7), encoded.data)
    if encoded.manifest is not None:
        storage.put_if_absent(manifest_key(UUID, MANIFEST_UUID), encoded.manifest)

    stored, payload = read_record(storage, UUID, 7)
    assert stored == encoded.stored
    for stored_segment, piece in zip(stored.actions[0].segments, staged, strict=True):
        if piece.inline_rows is not None:
            assert payload[slice(*stored_segment.inline)] == piece.inline_rows


@pytest.fixture
def storage():
    return MemoryStorage(World())


@pytest.fixture
def first(storage):
    table = Warehouse("memory://wh", storage=storage).create_table("s.t", "id BIGINT")
    return f"tables/{table.uuid}/commits/{1:020d}.json"


def forge(storage, key, change):
    frame = decode_frame("commit", storage.read(key), "here", newest=99)
    header = dict(frame.header)
    change(header)
    storage.put(key, encode_frame("commit", header, [bytes(frame.payload)], version=frame.version))


def opened(storage):
    return Warehouse("memory://wh", storage=storage).table("s.t")


@pytest.mark.parametrize("buckets", [10**30, 16_385, 0, -1, "2", 1.5, True, None])
def test_a_forged_record_with_too_many_buckets_is_corrupt_data(storage, first, buckets):
    """The state has an entry for each bucket, so this would go on for ever."""
    forge(storage, first, lambda header: header["actions"][0].update(buckets=buckets))
    with pytest.raises(CorruptDataError, match=r"creates a table with .* buckets"):
        opened(storage)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("attempt"),
        lambda header: header.pop("actions"),
        lambda header: header.update(actions=5),
        lambda header: header["actions"][0].pop("columns"),
        lambda header: header["actions"][0].update(columns=[[]]),
        lambda header: header.update(manifest=7),
        lambda header: header.update(transaction=[1]),
        lambda header: header.update(by=[1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_a_forged_record_with_wrong_fields_is_corrupt_data(storage, first, change):
    forge(storage, first, change)
    with pytest.raises(CorruptDataError, match="another program wrote it; restore this file"):
        opened(storage)


def test_an_action_of_a_newer_version_says_so():
    with pytest.raises(FormatVersionError, match=r"'teleport'.*upgrade streamhouse-spark"):
        action_from_json({"type": "teleport"}, memoryview(b""))
