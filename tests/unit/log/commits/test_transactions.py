"""The memory of a table for writers: bounded by age, and no version is ever stored twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import FormatVersionError, Transaction, TransactionConflictError
from streamhouse_spark.core.warehouse_layout import checkpoint_key
from streamhouse_spark.log import checkpoint
from streamhouse_spark.log.actions import ExpireTransactions, ForgetTransactions, Payload
from streamhouse_spark.log.checkpoint import state_from_json, state_to_json
from streamhouse_spark.log.commit_validation import find_stored_transaction
from streamhouse_spark.log.framing import decode_frame
from streamhouse_spark.log.gc.retention import find_due_transactions
from streamhouse_spark.log.state import fold
from streamhouse_spark.log.transactions import CompactedTransaction, name_sum, past_from_bytes, past_to_bytes
from unit.log.commits.states import appended, record

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
    assert state.past_transactions == {name_sum("a"): CompactedTransaction(1, 0)}
    state = fold(state, record(state.version + 1, ForgetTransactions(("a",))))
    assert state.past_transactions == {}


SUMS = st.integers(1, 2**64 - 1)


@given(
    st.dictionaries(SUMS, st.builds(CompactedTransaction, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)))
)
def test_past_writers_are_read_as_they_were_written(past):
    assert past_from_bytes(past_to_bytes(past)) == past
