"""Appends of several threads that wait for one log go into one record, and each has its own answer."""

import threading
import time

import pyarrow as pa
import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.core.model import OffsetRange, Transaction
from streamhouse_spark.errors import StorageError, StorageRefusedError, TransactionConflictError
from streamhouse_spark.log.commits.record import read_record
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.slots import Slot


@pytest.fixture
def table():
    return Warehouse("waiting", storage=MemoryStorage()).create_table("d.t", "id INT")


def together(table, *calls):
    """Run the calls in threads that all wait for the log before one may go on, queued in this order."""
    answers = [None] * len(calls)

    def run(at, rows, transaction):
        try:
            answers[at] = table.append(rows, transaction=transaction)
        except Exception as error:  # noqa: BLE001 - told to the test
            answers[at] = error

    threads = []
    with table.log._lock:
        for at, (ids, transaction) in enumerate(calls):
            rows = pa.table({"id": pa.array(ids, pa.int32())})
            threads.append(threading.Thread(target=run, args=(at, rows, transaction)))
            threads[-1].start()
            while len(table.log._queue) <= at:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    return answers


def rows_at(table, answer):
    ids = table.to_arrow()["id"].to_pylist()
    return ids[answer[0].start : answer[0].end]


def test_they_share_a_record_and_each_is_told_its_own_offsets(table):
    before = table.refresh().version
    calls = [([1, 2, 3], None), ([4], Transaction("a", 7)), ([5, 6], Transaction("b", 1))]
    answers = together(table, *calls)
    assert [rows_at(table, answer) for answer in answers] == [ids for ids, _ in calls]
    assert table.refresh().version == before + 1
    record, _ = read_record(table.storage, table.uuid, before + 1)
    assert sorted(len(part.actions) for part in record.attempts) == [1, 1, 1]
    assert table.state.transactions["a"].offsets == {0: OffsetRange(*[answers[1][0].start, answers[1][0].end])}


def test_one_that_is_refused_fails_alone(table):
    table.append([{"id": 0}], transaction=Transaction("a", 1, "owner"))
    answers = together(table, ([1], None), ([2], Transaction("a", 2, "other")), ([3], None))
    assert isinstance(answers[1], TransactionConflictError)
    assert rows_at(table, answers[0]) == [1]
    assert rows_at(table, answers[2]) == [3]
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 3]


def test_the_same_transaction_twice_is_stored_once(table):
    answers = together(table, ([1], Transaction("a", 1)), ([1], Transaction("a", 1)), ([2], None))
    assert answers[0] == answers[1]
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("lands", [False, True])
def test_a_put_that_reports_failure(table, monkeypatch, lands):
    put, failures = table.storage.put_if_absent, [1]

    def failing(key, data):
        if "/commits/0" in key and failures:
            failures.pop()
            if lands:
                put(key, data)
            raise StorageError("reset")
        put(key, data)

    monkeypatch.setattr(table.storage, "put_if_absent", failing)
    answers = together(table, ([1], None), ([2], Transaction("a", 1)), ([3], None))
    assert [rows_at(table, answer) for answer in answers] == [[1], [2], [3]]
    assert table.refresh().num_rows == 3


def test_a_store_that_refuses_fails_them_all(table, monkeypatch):
    def refusing(key, data):
        raise StorageRefusedError("no")

    with monkeypatch.context() as refused:
        refused.setattr(table.storage, "put_if_absent", refusing)
        answers = together(table, ([1], None), ([2], None))
    assert [type(answer) for answer in answers] == [StorageRefusedError] * 2
    table.append([{"id": 3}])
    assert table.to_arrow()["id"].to_pylist() == [3]


def test_nobody_is_answered_from_a_record_whose_put_was_interrupted(table, monkeypatch):
    take, interrupts = Slot.take, [1]

    def interrupted(slot, data):
        taken = take(slot, data)
        if interrupts:
            interrupts.pop()
            raise RuntimeError("interrupted")
        return taken

    monkeypatch.setattr(Slot, "take", interrupted)
    answers = together(table, ([1], None), ([2], None))
    assert all(isinstance(answer, Exception) for answer in answers)
    assert table.log._queue == []
    assert table.refresh().num_rows == 2
