"""The answer of a log to a transaction that comes again, or out of its order."""

from dataclasses import replace

import pytest

from streamhouse_spark import OffsetRange, Transaction, Warehouse
from streamhouse_spark.core.types import StreamBatch
from streamhouse_spark.errors import CommitConflictError, DifferentHistoryError, TransactionConflictError
from streamhouse_spark.log.commit_validation import IN_REAL_TIME, find_stored_outcome, find_stored_transaction
from streamhouse_spark.log.record import transaction_from_json, transaction_to_json
from streamhouse_spark.log.transactions import CompactedTransaction, TransactionEntry, hash_name
from streamhouse_spark.storage.memory import MemoryStorage

STORED = TransactionEntry(5, "q", 9, {0: OffsetRange(3, 7)}, StreamBatch("five"))


def outcome(version, batch, *, entry=STORED, owner="q"):
    return find_stored_outcome(entry, Transaction("app", version, owner, batch), "d.t")


def test_a_stream_repeats_its_last_batch():
    assert outcome(5, StreamBatch("five")) is STORED
    assert outcome(5, StreamBatch()) is STORED, "its checkpoint cannot be read from here"
    assert outcome(6, StreamBatch("six")) is None
    assert outcome(9, StreamBatch("nine")) is None, "batches without rows are not stored"


@pytest.mark.parametrize("version", [0, 4])
def test_a_batch_below_the_last_is_an_error_and_not_a_replay(version):
    with pytest.raises(DifferentHistoryError, match=r"batch 5 is stored.*forget_transactions.*checkpointLocation"):
        outcome(version, StreamBatch())


def test_another_batch_of_the_same_number_is_an_error():
    with pytest.raises(DifferentHistoryError, match=r"of this number has other offsets \(commit 9\)"):
        outcome(5, StreamBatch("another five"))


def test_explicit_versions_of_batch_writes_skip_what_is_older():
    assert outcome(3, None, owner=None) == TransactionEntry(5, "q", 9, {})
    assert outcome(5, None, owner=None) is STORED


def test_missing_batches_are_noticed_where_every_batch_is_stored():
    each = StreamBatch(None, is_each_recorded=True)
    stored = TransactionEntry(5, "q", 9, {}, each)
    assert outcome(6, each, entry=stored) is None
    with pytest.raises(
        DifferentHistoryError, match=r"batches up to 5.*Table.append\(\[\], transaction=Transaction\('app', 8"
    ):
        outcome(9, each, entry=stored)
    assert outcome(9, each, entry=TransactionEntry(5, "q", 9, {})) is None, "stored by an older version"
    assert outcome(9, each, entry=TransactionEntry(8, "q", 9, {})) is None, "as the text advises"


def test_a_batch_of_another_query_is_a_conflict():
    with pytest.raises(TransactionConflictError):
        outcome(6, StreamBatch(), owner="another")


def test_a_query_that_wrote_in_real_time_mode_writes_no_micro_batch():
    mark = TransactionEntry(0, f"q{IN_REAL_TIME}", 9, {})
    with pytest.raises(TransactionConflictError, match=r"continue with a real-time trigger.*startingOffsets.*after"):
        outcome(6, StreamBatch(), entry=mark)
    assert outcome(0, None, entry=mark, owner=mark.owner) is mark


def test_the_id_of_a_query_in_real_time_mode_is_its_own():
    mark = TransactionEntry(1, f"q{IN_REAL_TIME}", 9, {})
    for owner in ("another", f"another{IN_REAL_TIME}"):
        with pytest.raises(TransactionConflictError, match=r"belongs to query q in real-time mode.*another txnAppId"):
            outcome(0, None, entry=mark, owner=owner)


def test_it_writes_none_when_its_mark_is_forgotten_either():
    table = Warehouse("past", storage=MemoryStorage()).create_table("d.t", "id INT")
    state = table.refresh()
    past = {hash_name("q"): CompactedTransaction(0, hash_name(f"q{IN_REAL_TIME}"))}
    with pytest.raises(TransactionConflictError, match="continue with a real-time trigger"):
        find_stored_transaction(replace(state, past_transactions=past), Transaction("q", 6, "q", StreamBatch()))
    with pytest.raises(TransactionConflictError, match="belongs to query another"):
        find_stored_transaction(replace(state, past_transactions=past), Transaction("q", 6, "other", StreamBatch()))


@pytest.mark.parametrize("batch", [None, StreamBatch(), StreamBatch("f"), StreamBatch("f", is_each_recorded=True)])
def test_a_stream_batch_comes_back_from_json(batch):
    transaction = Transaction("app", 3, "q", batch)
    assert transaction_from_json(transaction_to_json(transaction)) == transaction


def test_a_stream_batch_comes_back_from_a_checkpoint(wh, store):
    from streamhouse_spark.log.checkpoint import read_checkpoint

    table = wh.create_table("d.t", "id BIGINT")
    batch = StreamBatch("f", is_each_recorded=True)
    table.append([{"id": 1}], transaction=Transaction("app", 3, "q", batch))
    table.log.checkpoint(table.state)
    found = read_checkpoint(store, table.uuid, table.state.version)
    assert found == table.state
    assert found.transactions["app"].batch == batch
    with pytest.raises(DifferentHistoryError):
        table.append([{"id": 2}], transaction=Transaction("app", 2, "q", batch))
    assert table.to_arrow()["id"].to_pylist() == [1]
    table.forget_transactions("app")
    table.append([{"id": 2}], transaction=Transaction("app", 2, "q", batch))


@pytest.mark.parametrize(("version", "follows"), [(7, 4), (7, 6), (7, -1), (4, 3)])
def test_a_version_that_follows_another_one_than_the_stored_is_refused(version, follows):
    with pytest.raises(CommitConflictError, match=f"follows version {follows}, but version 5 is stored"):
        find_stored_outcome(STORED, Transaction("app", version, follows=follows), "d.t")


def test_a_version_that_follows_the_stored_one_is_new_and_comes_again_later():
    assert find_stored_outcome(STORED, Transaction("app", 7, follows=5), "d.t") is None
    assert find_stored_outcome(STORED, Transaction("app", 5, follows=2), "d.t") is STORED
    again = Transaction("app", 5, batch=STORED.batch, follows=2)
    assert find_stored_outcome(STORED, again, "d.t") is STORED
    with pytest.raises(CommitConflictError, match="follows version 2, but version 5 is stored"):
        find_stored_outcome(STORED, replace(again, batch=StreamBatch("another five")), "d.t")
    assert find_stored_outcome(None, Transaction("app", 5, follows=-1), "d.t") is None
    with pytest.raises(CommitConflictError, match="follows version 2, but version -1 is stored"):
        find_stored_outcome(None, Transaction("app", 5, follows=2), "d.t")


def test_records_do_not_keep_what_a_version_follows():
    assert transaction_from_json(transaction_to_json(Transaction("app", 5, follows=2))) == Transaction("app", 5)
