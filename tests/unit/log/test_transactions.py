"""Transactions and idempotency keys in a table's state: bounded by age, and no version is stored twice."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import FormatVersionError, Transaction, TransactionConflictError
from streamhouse_spark.core.types import OffsetRange, StreamBatch
from streamhouse_spark.core.warehouse_layout import checkpoint_key
from streamhouse_spark.errors import IdempotencyKeyReusedError
from streamhouse_spark.log import checkpoint, transactions
from streamhouse_spark.log.actions import Append, ExpireTransactions, ForgetTransactions, Payload
from streamhouse_spark.log.checkpoint import state_from_json, state_to_json
from streamhouse_spark.log.commit_validation import find_stored_transaction
from streamhouse_spark.log.framing import decode_frame
from streamhouse_spark.log.gc.retention import find_due_transactions
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.state import fold
from streamhouse_spark.log.transactions import (
    KEPT_MIN_MS,
    KEPT_MS,
    NO_REQUEST_KEYS,
    CompactedTransaction,
    RequestEntry,
    RequestKeys,
    hash_name,
    make_progress_batch,
    make_progress_id,
    past_from_bytes,
    past_to_bytes,
    select_progress_ids,
    source_record_of,
)
from unit.log.states import appended, record, segment

DAY_MS = 86_400_000
APPS = 500


def stored(state, app_id: str, version: int, owner: str | None = None, time_ms: int = 0):
    transaction = Transaction(app_id, version, owner)
    return fold(state, record(state.version + 1, transaction=transaction, time_ms=time_ms))


def header_bytes(state) -> int:
    payload = Payload()
    return len(str(state_to_json(state, payload))) + payload.size_bytes


class TestOfTables:
    @pytest.fixture
    def table(self, wh):
        return wh.create_table("t", "id BIGINT", buckets=16, properties={"bucket.key": "id"})

    def test_writers_that_have_not_written_for_the_ttl_leave_24_bytes(self, table, clock):
        rows = [{"id": i} for i in range(64)]
        for number in range(20):
            table.append(rows, transaction=Transaction(f"app-{number}", number, f"query-{number}"))
        full = header_bytes(table.state)
        clock.advance(30 * DAY_MS - 60_000)
        table.append(rows, transaction=Transaction("running", 7, "query"))
        table.maintain()
        assert len(table.state.transactions) == 21, "none is older than the ttl"
        clock.advance(120_000)
        table.maintain()
        assert set(table.refresh().transactions) == {"running"}
        assert len(past_to_bytes(table.state.past_transactions)) == 20 * 24
        assert header_bytes(table.state) < full

    @pytest.mark.parametrize("is_reopened", [False, True])
    def test_a_stream_that_slept_goes_on_where_it_was(self, table, wh, clock, other_process, is_reopened):
        """Or one that did not, under a clock that ran years ahead: the table cannot tell, and need not."""
        batch = Transaction("app", 3, "query")
        table.append([{"id": 1}], transaction=batch)
        clock.advance(2000 * DAY_MS)
        table.maintain()
        if is_reopened:
            table = other_process().table("t")
        assert table.refresh().transactions == {}
        for version in (2, 3):
            again = table.append([{"id": 1}], transaction=replace(batch, version=version))
            assert dict(again) == {}
        assert table.to_arrow()["id"].to_pylist() == [1]
        table.append([{"id": 2}], transaction=replace(batch, version=4))
        assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]
        assert table.state.transactions["app"].version == 4
        assert table.state.past_transactions == {}

    def test_another_query_of_the_name_is_refused_as_before(self, table, clock):
        table.append([{"id": 1}], transaction=Transaction("app", 3, "query"))
        clock.advance(31 * DAY_MS)
        table.maintain()
        with pytest.raises(TransactionConflictError, match="forget_transactions"):
            table.append([{"id": 2}], transaction=Transaction("app", 4, "new checkpoint"))
        table.forget_transactions("app")
        table.append([{"id": 2}], transaction=Transaction("app", 0, "new checkpoint"))
        assert table.num_buckets == 16
        assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]

    def test_the_property_says_how_long(self, table, clock):
        table.alter_properties({"table.transactions.ttl": "0"})
        table.append([{"id": 1}], transaction=Transaction("app", 3))
        clock.advance(4000 * DAY_MS)
        table.maintain()
        assert set(table.refresh().transactions) == {"app"}
        table.alter_properties({"table.transactions.ttl": "1h"})
        version = table.state.version
        table.maintain()
        assert table.refresh().transactions == {}
        assert table.state.version > version
        expired = table.state.version
        table.maintain()
        assert table.refresh().version == expired, "nothing is due: no record"

    def test_an_older_version_of_the_package_is_stopped_by_the_checkpoint(self, table, clock, store):
        """It would store a batch of a writer that it does not know a second time."""
        table.append([{"id": 1}], transaction=Transaction("app", 3))
        table.log.checkpoint(table.state)
        old = store.read(checkpoint_key(table.uuid, table.state.version))
        assert b'"version":1,' in old
        assert decode_frame("checkpoint", old, "here").header["transactions"][0][0] == "app"
        clock.advance(31 * DAY_MS)
        table.maintain()
        table.log.checkpoint(table.refresh())
        data = store.read(checkpoint_key(table.uuid, table.state.version))
        with pytest.raises(FormatVersionError):
            decode_frame("checkpoint", data, "here")
        assert checkpoint.read_checkpoint(store, table.uuid, table.state.version) == table.state


def test_many_past_writers_take_little():
    """A writer that wrote into 64 buckets had some 1,000 bytes."""
    state = appended()
    for number in range(APPS):
        state = stored(state, f"app-{number}", number, f"query-{number}")
    state = fold(state, record(state.version + 1, ExpireTransactions(tuple(state.transactions))))
    empty = header_bytes(replace(state, past_transactions={}))
    assert header_bytes(state) - empty <= 24 * APPS + 50
    for number in range(APPS):
        known = find_stored_transaction(state, Transaction(f"app-{number}", number, f"query-{number}"))
        assert known is not None
        assert find_stored_transaction(state, Transaction(f"app-{number}", number + 1)) is None


def test_times_survive_checkpoints_and_unknown_ones_are_late():
    state = stored(stored(appended(), "a", 1, time_ms=100), "b", 1, time_ms=5000)
    payload = Payload()
    header = state_to_json(state, payload)
    read = state_from_json(header, memoryview(b""))
    assert {k: t.time_ms for k, t in read.transactions.items()} == {"a": 100, "b": 5000}
    header.pop("transaction_times")
    older = state_from_json(header, memoryview(b""))
    assert older == state, "what an older version wrote means the same"
    assert {t.time_ms for t in older.transactions.values()} == {5000}
    assert find_due_transactions(state, 5000, 4900) == ("a",)
    assert find_due_transactions(older, 5000, 4900) == ()
    assert find_due_transactions(state, 10**15, 0) == ()


def test_forgetting_takes_what_is_past_too():
    state = stored(appended(), "a", 1)
    state = fold(state, record(state.version + 1, ExpireTransactions(("a", "unknown"))))
    assert state.past_transactions == {hash_name("a"): CompactedTransaction(1, 0)}
    state = fold(state, record(state.version + 1, ForgetTransactions(("a",))))
    assert state.past_transactions == {}


SUMS = st.integers(1, 2**64 - 1)


@given(
    st.dictionaries(SUMS, st.builds(CompactedTransaction, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)))
)
def test_past_writers_are_read_as_they_were_written(past):
    assert past_from_bytes(past_to_bytes(past)) == past


HOUR_MS = 3_600_000


def digest(number: int) -> str:
    return f"{number:032x}"


def keys_at(times_ms) -> RequestKeys:
    keys = NO_REQUEST_KEYS
    for number, time_ms in enumerate(times_ms):
        keys = keys.with_key(digest(number), RequestEntry(digest(number), number, time_ms, {}))
    return keys


def test_a_request_is_in_the_state_of_its_commit():
    request = Transaction.of_request(digest(1), digest(2))
    state = fold(appended(), record(2, Append((segment(0, 3),)), transaction=request, time_ms=7))
    assert state.transactions == {}
    assert state.request_keys.get(digest(1)) == RequestEntry(digest(2), 2, 7, {0: OffsetRange(0, 3)})
    assert find_stored_transaction(state, request).offsets == {0: OffsetRange(0, 3)}
    assert find_stored_transaction(state, Transaction.of_request(digest(9), digest(2))) is None
    with pytest.raises(IdempotencyKeyReusedError, match="commit 2"):
        find_stored_transaction(state, Transaction.of_request(digest(1), digest(3)))


def test_checkpoints_hold_the_keys_and_stop_older_versions_of_the_package(monkeypatch):
    state = appended()
    for number in range(100):
        request = Transaction.of_request(digest(number), digest(number))
        state = fold(state, record(state.version + 1, transaction=request, time_ms=number))
    payload = Payload()
    header = state_to_json(state, payload)
    assert state_from_json(header, memoryview(b"".join(payload.parts))) == state
    assert payload.size_bytes < 100 * 60
    assert "request_keys" not in state_to_json(replace(state, request_keys=NO_REQUEST_KEYS), Payload())
    assert checkpoint.as_stored(state) == state
    data = checkpoint._encode_checkpoint(state)
    monkeypatch.setattr(checkpoint, "NEWEST_VERSION", checkpoint.VARIANTS_VERSION)
    with pytest.raises(FormatVersionError):
        checkpoint._decode_checkpoint(data, state.table_uuid, state.version, "")


def test_a_key_is_kept_for_a_day():
    times_ms = [number * HOUR_MS // 4 for number in range(4 * 48)]
    keys = keys_at(times_ms)
    now_ms = times_ms[-1]
    ages_ms = {number: now_ms - time_ms for number, time_ms in enumerate(times_ms)}
    kept = {number for number in ages_ms if keys.get(digest(number)) is not None}
    assert kept >= {number for number, age_ms in ages_ms.items() if age_ms <= KEPT_MS}
    assert kept <= {number for number, age_ms in ages_ms.items() if age_ms <= KEPT_MS + HOUR_MS}


def test_too_many_keys_are_forgotten_from_the_oldest_but_none_within_an_hour(monkeypatch):
    monkeypatch.setattr(transactions, "KEYS_MAX", 100)
    monkeypatch.setattr(transactions, "_BLOCK_KEYS_MAX", 16)
    keys = keys_at(range(0, 4 * HOUR_MS, HOUR_MS // 500))
    kept = [number for number in range(2000) if keys.get(digest(number)) is not None]
    assert kept == list(range(2000 - len(kept), 2000))
    assert 500 <= len(kept) <= 520
    keys = keys_at([*range(300), KEPT_MIN_MS + 400])
    assert 100 <= len(keys) <= 100 + 16


def test_many_keys_are_in_few_blocks():
    keys = keys_at(range(20_000))
    assert len(keys) == 20_000
    assert len(keys.blocks) < 20
    assert all(keys.get(digest(number)).commit == number for number in range(0, 20_000, 97))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3 * KEPT_MS)), max_size=60))
def test_keys_are_read_as_they_were_written(added):
    keys = NO_REQUEST_KEYS
    for number, (key, time_ms) in enumerate(added):
        entry = RequestEntry(digest(number), number, time_ms, {number % 3: OffsetRange(number, number + 1)})
        keys = keys.with_key(digest(key), entry)
        assert keys.get(digest(key)) == entry
    assert RequestKeys.from_bytes(keys.to_bytes()) == keys


def test_places_are_found_by_their_application_alone():
    source = uuid4().hex
    own = [make_progress_id(app, source, bucket) for app in ("a", "a/b\n", "ä") for bucket in (0, 17)]
    others = ["a", f"a/{source}", f"a/{source}/x", f"a/{source[1:]}/0", f"a/b/c/{source}/0", "a/epoch"]
    assert select_progress_ids({"a", "a/b\n", "ä"}, [*own, *others]) == tuple(own)
    assert select_progress_ids({"b"}, own) == ()


def test_a_record_comes_back_from_its_note():
    record = HistoryPoint(12, "an attempt")
    assert source_record_of(make_progress_batch(record)) == record
    assert make_progress_batch(None) is None
    assert source_record_of(None) is None
    assert source_record_of(StreamBatch(None)) is None
