"""Appends of several threads that wait for one log share a record, and the counts of commits say so."""

from __future__ import annotations

import multiprocessing
import threading
import time

import pyarrow as pa
import pytest

from faults.turns import in_turns
from streamhouse_spark import OffsetRange, StorageError, Transaction, Warehouse
from streamhouse_spark.errors import (
    CommitStateUnknownError,
    StorageRefusedError,
    TransactionConflictError,
)
from streamhouse_spark.log import checkpoint, commit_log, group_commit
from streamhouse_spark.log.group_commit import COMMITS, CommitQueue, PendingCommit
from streamhouse_spark.log.record import RecordBody, read_record
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.put_if_absent import Slot
from streamhouse_spark.write import log_writer


@pytest.fixture
def table():
    return Warehouse("waiting", storage=MemoryStorage()).create_table("d.t", "id INT, text STRING")


def rows_of(ids, chars=1):
    return pa.table({"id": pa.array(ids, pa.int32()), "text": ["x" * chars] * len(ids)})


def together(table, *calls, **turns):
    """Append all at the same time: each call is its rows' ids and a transaction."""
    return in_turns([lambda c=c: table.append(rows_of(c[0]), transaction=c[1]) for c in calls], **turns)


def rows_at(table, answer):
    ids = table.to_arrow()["id"].to_pylist()
    return ids[answer[0].start : answer[0].end]


def attempts(table, number):
    return read_record(table.storage, table.uuid, number)[0].attempts


def test_they_share_a_record_and_each_is_told_its_own_offsets(table):
    before = table.refresh().version
    calls = [([1, 2, 3], None), ([4], Transaction("a", 7)), ([5, 6], Transaction("b", 1))]
    answers = together(table, *calls)
    assert [rows_at(table, answer) for answer in answers] == [ids for ids, _ in calls]
    assert table.refresh().version == before + 1
    assert [len(part.actions) for part in attempts(table, before + 1)] == [1, 1, 1]
    assert table.state.transactions["a"].offsets == {0: OffsetRange(3, 4)}
    assert len(table.log._queue) == 0


def test_the_one_that_has_the_log_comes_first_and_the_others_as_they_came(table):
    answers = together(table, ([1], None), ([2], None), ([3], None), order=(1, 2, 0))
    assert table.to_arrow()["id"].to_pylist() == [2, 1, 3]
    assert [rows_at(table, answer) for answer in answers] == [[1], [2], [3]]


def test_one_alone_is_written_as_ever(table):
    table.append(rows_of([1]))
    record, _ = read_record(table.storage, table.uuid, table.state.version)
    assert record.members == ()


def test_one_that_is_refused_fails_alone(table):
    table.append(rows_of([0]), transaction=Transaction("a", 1, "owner"))
    answers = together(table, ([1], None), ([2], Transaction("a", 2, "other")), ([3], None))
    assert isinstance(answers[1], TransactionConflictError)
    assert rows_at(table, answers[0]) == [1]
    assert rows_at(table, answers[2]) == [3]
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 3]


def test_one_that_is_refused_first_leads_nobody(table):
    table.append(rows_of([0]), transaction=Transaction("a", 1, "owner"))
    answers = together(table, ([2], Transaction("a", 2, "other")), ([3], None), ([4], None))
    assert isinstance(answers[0], TransactionConflictError)
    assert [rows_at(table, answer) for answer in answers[1:]] == [[3], [4]]


def test_one_that_cannot_be_encoded_fails_alone(table, monkeypatch):
    add = RecordBody.add

    def failing(body, actions, **options):
        if actions[0].segments[0].num_rows == 2:
            raise ValueError("no JSON")
        return add(body, actions, **options)

    monkeypatch.setattr(RecordBody, "add", failing)
    answers = together(table, ([1], None), ([2, 2], None), ([3], None))
    assert isinstance(answers[1], ValueError)
    assert [rows_at(table, answers[0]), rows_at(table, answers[2])] == [[1], [3]]


def test_the_same_transaction_twice_is_stored_once(table):
    answers = together(table, ([1], Transaction("a", 1)), ([1], Transaction("a", 1)), ([2], None))
    assert answers[0] == answers[1]
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("lands", [False, True])
def test_a_put_that_reports_failure_is_read_back(table, monkeypatch, lands):
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


def test_a_store_that_refuses_fails_each_with_an_error_of_its_own(table, monkeypatch):
    def refusing(key, data):
        raise StorageRefusedError("no")

    with monkeypatch.context() as refused:
        refused.setattr(table.storage, "put_if_absent", refusing)
        answers = together(table, ([1], None), ([2], None))
    assert [type(answer) for answer in answers] == [StorageRefusedError] * 2
    assert answers[0] is not answers[1]
    table.append(rows_of([3]))
    assert table.to_arrow()["id"].to_pylist() == [3]


def test_an_unknown_outcome_names_the_attempt_of_each(table, monkeypatch):
    put, read, version = table.storage.put_if_absent, table.storage.read, table.refresh().version

    def put_and_lose(key, data):
        put(key, data)
        if f"{version + 1:020d}" in key:
            monkeypatch.setattr(table.storage, "read", unreadable)
            raise StorageError("reset")

    def unreadable(key):
        raise StorageError("down")

    monkeypatch.setattr(table.storage, "put_if_absent", put_and_lose)
    answers = together(table, ([1], None), ([2], None), ([3], None))
    monkeypatch.setattr(table.storage, "read", read)
    assert [type(answer) for answer in answers] == [CommitStateUnknownError] * 3
    stored = attempts(table, version + 1)
    assert all(part.attempt in str(answer) for part, answer in zip(stored, answers, strict=True))
    table.refresh()
    shown = table.inspect.commits()["attempt"].to_pylist()
    assert shown[-3:] == [part.attempt for part in stored]


@pytest.mark.parametrize("bound", ["members", "bytes"])
def test_a_record_takes_so_many(table, monkeypatch, bound):
    if bound == "members":
        monkeypatch.setattr(group_commit, "MEMBERS_MAX", 2)
    else:
        monkeypatch.setattr(group_commit, "GROUP_BYTES_MAX", 5000)
    before = table.refresh().version
    rows = [rows_of([n], 1 if bound == "members" else 2000) for n in range(5)]
    answers = in_turns([lambda r=r: table.append(r) for r in rows])
    assert [rows_at(table, answer) for answer in answers] == [[n] for n in range(5)]
    taken = [len(attempts(table, n + 1)) for n in range(before, table.refresh().version)]
    assert sum(taken) == 5
    assert set(taken) == {1, 2}


def test_an_append_of_more_than_a_record_takes_goes_alone(table, monkeypatch):
    monkeypatch.setattr(group_commit, "GROUP_BYTES_MAX", 5000)
    rows = [rows_of([1], 9000), rows_of([2]), rows_of([3])]
    assert [len(a) for a in in_turns([lambda r=r: table.append(r) for r in rows])] == [1, 1, 1]
    assert table.to_arrow()["id"].to_pylist() == [1, 2, 3]
    assert len(attempts(table, table.state.version)) == 2


def test_neighbours_of_an_interrupted_put_find_their_record(table, monkeypatch):
    take, interrupts = Slot.take, [1]

    def interrupted(slot, data):
        taken = take(slot, data)
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        return taken

    monkeypatch.setattr(Slot, "take", interrupted)
    answers = together(table, ([1], None), ([2], None), ([3], None))
    assert isinstance(answers[0], KeyboardInterrupt)
    assert [rows_at(table, answer) for answer in answers[1:]] == [[2], [3]]
    assert len(table.log._queue) == 0
    assert table.refresh().num_rows == 3


def test_an_interrupted_record_that_may_not_survive_is_no_answer(table, monkeypatch):
    take, interrupts = Slot.take, [1]

    def interrupted(slot, data):
        taken = take(slot, data)
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        return taken

    def lost(key):
        raise StorageError("not on the disk")

    monkeypatch.setattr(Slot, "take", interrupted)
    monkeypatch.setattr(table.storage, "ensure_durable", lost)
    answers = together(table, ([1], None), ([2], None))
    assert isinstance(answers[1], CommitStateUnknownError)
    assert attempts(table, table.refresh().version)[1].attempt in str(answers[1])


def test_one_that_is_interrupted_while_it_waits_is_not_written(table):
    """Its thread goes before anybody takes its call."""
    answer, gone = commit_log.CommitLog._wait_or_lead, []

    def interrupted(log, call):
        gone.append(call)
        raise KeyboardInterrupt

    def interrupts():
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(commit_log.CommitLog, "_wait_or_lead", interrupted)
            with pytest.raises(KeyboardInterrupt):
                table.append(rows_of([9]))

    answers = together(table, ([1], None), ([2], None), when_all_wait=interrupts)
    assert commit_log.CommitLog._wait_or_lead is answer
    assert [rows_at(table, answer) for answer in answers] == [[1], [2]]
    assert table.refresh().num_rows == 2


def test_one_of_them_does_the_work_that_is_due_behind_the_record(table, monkeypatch):
    checkpoints, merges = [], []
    monkeypatch.setattr(checkpoint, "CHECKPOINT_INTERVAL", 1)
    monkeypatch.setattr(checkpoint, "write_checkpoint", lambda *_, **__: checkpoints.append(1))
    monkeypatch.setattr(log_writer, "compact_if_due", lambda *_: merges.append(1))
    together(table, ([1], None), ([2], None), ([3], None))
    assert len(checkpoints) == len(merges) == 1


# -- waiting for an answer, not for the lock --------------------------------------------------------------------------


def call(attempt, *, is_shared=True):
    return PendingCommit(lambda *_: (), None, 0, attempt, is_shared)


def waiting(calls, *names):
    """Let calls wait in threads while another leads."""
    calls.is_led, found, threads = True, [call(name) for name in names], []
    for one in found:
        calls.add(one)
        threads.append(threading.Thread(target=calls.wait, args=(one,)))
        threads[-1].start()
        while one.ready is None or not one.ready._cond._waiters:
            time.sleep(0.001)
    return found, threads


@pytest.fixture
def calls(monkeypatch):
    monkeypatch.setattr(group_commit, "FOLLOWER_WAIT_S_MAX", 100)
    return CommitQueue()


def test_those_with_an_answer_wake_and_the_first_of_the_others(calls):
    (first, second, third), threads = waiting(calls, "a", "b", "c")
    calls.is_led, first.error = False, ValueError()
    calls.wake()
    threads[0].join()
    threads[1].join()
    assert threads[2].is_alive()
    second.error = ValueError()
    calls.wake()
    threads[2].join()
    assert not third.is_done


def test_one_that_goes_without_an_answer_wakes_the_next(calls):
    (first, _), threads = waiting(calls, "a", "b")
    calls.is_led = False
    calls.wake()
    threads[0].join()
    calls.remove(first)
    threads[1].join()


def test_nobody_waits_where_nobody_leads(calls):
    calls.add(one := call("a"))
    assert calls.wait(one) is False


def test_a_leader_that_is_interrupted_before_it_says_so_is_not_waited_for_long(table, monkeypatch):
    monkeypatch.setattr(group_commit, "FOLLOWER_WAIT_S_MAX", 0.001)
    table.log._queue.is_led = True
    assert rows_at(table, table.append(rows_of([1]))) == [1]
    assert table.log._queue.is_led is False


# -- waiting for company ----------------------------------------------------------------------------------------------


class Moment:
    """An event whose wait lets calls come in. It counts how often it was waited for."""

    def __init__(self, come=lambda: None):
        self.come = come
        self.num_waits = self.num_sets = 0

    def clear(self):
        self.num_sets = 0

    def set(self):
        self.num_sets += 1

    def wait(self, _seconds):
        self.num_waits += 1
        self.come()


def answered(calls, *names):
    """Let calls come, be answered together, and go."""
    found = [call(name) for name in names]
    for one in found:
        calls.add(one)
    calls.note_group_size()
    for one in found:
        one.error = StorageError("told")
        calls.remove(one)


def test_a_leader_waits_for_as_many_as_there_were_before():
    calls, first, second = CommitQueue(), call("c"), call("d")
    answered(calls, "a", "b")
    calls._followers_ready = moment = Moment(lambda: calls.add(second))
    calls.add(first)
    assert moment.num_sets == 0
    calls.wait_for_followers(first)
    assert (moment.num_waits, moment.num_sets) == (1, 1)
    assert calls.eligible_for(first) == [first, second]


def test_a_leader_whose_company_is_there_waits_no_more():
    calls, first, second = CommitQueue(), call("c"), call("d")
    answered(calls, "a", "b")
    calls._followers_ready = moment = Moment()
    calls.add(first)
    calls.add(second)
    calls.wait_for_followers(first)
    assert moment.num_waits == 0


def test_calls_that_have_their_answer_are_no_company():
    calls, gone, first = CommitQueue(), call("a"), call("c")
    calls.add(gone)
    calls.add(call("b"))
    calls.note_group_size()
    for one in calls.eligible_for(gone):
        one.error = StorageError("told")
    calls._followers_ready = moment = Moment()
    calls.add(first)
    calls.wait_for_followers(first)
    assert moment.num_waits == 1
    assert calls.eligible_for(first) == [first]


@pytest.mark.parametrize("names", [(), ("a",)])
def test_one_alone_waits_for_nobody(names):
    calls, alone = CommitQueue(), call("c")
    answered(calls, *names)
    calls._followers_ready = moment = Moment()
    calls.add(alone)
    calls.wait_for_followers(alone)
    assert (moment.num_waits, moment.num_sets) == (0, 0)


def test_one_that_shares_nothing_waits_for_nobody():
    calls, alone = CommitQueue(), call("c", is_shared=False)
    answered(calls, "a", "b")
    calls._followers_ready = moment = Moment()
    calls.add(alone)
    calls.wait_for_followers(alone)
    assert moment.num_waits == 0


def test_where_nobody_comes_back_only_the_first_waits(table):
    table.log._queue._followers_ready = moment = Moment()
    together(table, ([1], None), ([2], None))
    waits = moment.num_waits
    for n in (3, 4, 5):
        table.append(rows_of([n]))
    assert moment.num_waits == waits + 1
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3, 4, 5]


@pytest.fixture
def counted_table(tmp_path):
    return Warehouse(str(tmp_path)).create_table("s.t", "id BIGINT")


def since(before):
    now = COMMITS.now()
    return now.commits - before.commits, now.conflicts - before.conflicts, now.failures - before.failures


def test_commits_and_their_time_are_counted(counted_table):
    before = COMMITS.now()
    counted_table.append([{"id": 1}])
    counted_table.append([])
    assert since(before) == (1, 0, 0)
    assert COMMITS.now().busy_ms >= before.busy_ms


def test_a_lost_race_of_a_commit_is_counted(counted_table, tmp_path, monkeypatch):
    other = Warehouse(str(tmp_path)).table("s.t")
    other.refresh()
    put = type(counted_table.storage.home).put_if_absent
    raced = []

    def racing(storage, key, body, *more):
        if "/commits/" in key and not raced:
            raced.append(key)
            before = COMMITS.now()
            other.append([{"id": 2}])
            assert since(before) == (1, 0, 0)
        return put(storage, key, body, *more)

    before = COMMITS.now()
    monkeypatch.setattr(type(counted_table.storage.home), "put_if_absent", racing)
    counted_table.append([{"id": 1}])
    assert since(before) == (2, 1, 0)


def test_a_failed_commit_is_counted_as_failed(counted_table, monkeypatch):
    def failing(*_):
        raise StorageError("the store is away")

    before = COMMITS.now()
    monkeypatch.setattr(type(counted_table.log), "_write_group", failing)
    with pytest.raises(StorageError):
        counted_table.append([{"id": 1}])
    assert since(before) == (0, 0, 1)


def _commits(queue):
    queue.put(COMMITS.now().commits)


def test_a_child_process_begins_at_zero(counted_table):
    counted_table.append([{"id": 1}])
    assert COMMITS.now().commits > 0
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_commits, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == 0
    child.join()
