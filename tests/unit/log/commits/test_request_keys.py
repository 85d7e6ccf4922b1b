"""Idempotency keys in a table's state: remembered for a stated time, with few copies, and stored in checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import FormatVersionError, Transaction
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import IdempotencyKeyReusedError
from streamhouse_spark.log import checkpoint, transactions
from streamhouse_spark.log.actions import Append, Payload
from streamhouse_spark.log.checkpoint import state_from_json, state_to_json
from streamhouse_spark.log.commit_validation import find_stored_transaction
from streamhouse_spark.log.state import fold
from streamhouse_spark.log.transactions import KEPT_MIN_MS, KEPT_MS, NO_REQUEST_KEYS, RequestEntry, RequestKeys
from unit.log.commits.states import appended, record, segment

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
