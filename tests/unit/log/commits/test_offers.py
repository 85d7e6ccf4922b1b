"""Appends of several processes in one record: whose offers are accepted, and the answer of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage
from faults.offered_appends import Given, Offering, another_process
from faults.scenarios import Run
from streamhouse_spark import CommitStateUnknownError, Transaction, Warehouse
from streamhouse_spark.core.clock import Author, World
from streamhouse_spark.log.commits import offers
from streamhouse_spark.log.commits.actions import Payload
from streamhouse_spark.log.commits.group_commit import CommitQueue, CommitResult, PendingCommit
from streamhouse_spark.log.commits.record import read_record
from streamhouse_spark.storage import local_commit_lock
from streamhouse_spark.storage.local import LocalStorage


def rows_of(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int32())})


def opened(root: Path, author: Author | None = None) -> Any:
    world = World(author=author)
    storage = LocalStorage(str(root), fsync=False, world=world)
    return Warehouse(str(root), storage=storage, world=world).table("d.t")


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(local_commit_lock, "WAIT_MS_MAX", 60_000)
    Warehouse(str(tmp_path / "w")).create_table("d.t", "id INT")
    return tmp_path / "w"


def meet(taker: Any, own: Callable[[], Any], waiting: list[Callable[[], Any]]) -> list[Any]:
    """Let the calls of others wait and offer while the taker has the turn; returns all answers, its own first."""
    answers: list[Any] = [None] * len(waiting)

    def run(number: int) -> None:
        answers[number] = waiting[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(waiting))]
    folder = f"{taker.storage.local_path('')}tables/{taker.uuid}/commits/.tmp-offers"
    take = local_commit_lock.LocalCommitLock.take

    def take_all(turn: local_commit_lock.LocalCommitLock) -> list[bytes]:
        if not any(thread.ident for thread in threads):
            for thread in threads:
                thread.start()
            for _ in range(12_000):
                if len(local_commit_lock._list_offers(folder)) == len(threads):
                    break
                time.sleep(0.005)
        return take(turn)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local_commit_lock.LocalCommitLock, "take", take_all)
        first = own()
        for thread in threads:
            thread.join(60)
    return [first, *answers]


def attempts(table: Any) -> list[int]:
    numbers = range(2, table.refresh().version + 1)
    return [len(read_record(table.storage, table.uuid, number)[0].attempts) for number in numbers]


def test_those_who_wait_are_in_the_record_of_the_one_whose_turn_it_is(root):
    taker, others = opened(root), [opened(root) for _ in range(3)]
    for table in (taker, *others):
        table.refresh()
    answers = meet(
        taker,
        lambda: taker.append(rows_of(0)),
        [lambda t=t, n=n: t.append(rows_of(n, n)) for n, t in enumerate(others, 1)],
    )
    assert attempts(taker) == [4]
    ids = opened(root).to_arrow()["id"].to_pylist()
    assert sorted(ids) == [0, 1, 1, 2, 2, 3, 3]
    assert [ids[a[0].start : a[0].end] for a in answers] == [[0], [1, 1], [2, 2], [3, 3]]


def test_a_transaction_goes_along_and_is_known_behind(root):
    taker, other = opened(root), opened(root)
    transaction = Transaction("app", 7)
    _, answer = meet(
        taker, lambda: taker.append(rows_of(0)), [lambda: other.append(rows_of(1), transaction=transaction)]
    )
    assert attempts(taker) == [2]
    assert opened(root).append(rows_of(1), transaction=transaction) == answer
    assert sorted(taker.to_arrow()["id"].to_pylist()) == [0, 1]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        pytest.param(Author("ann", "python/1"), Author("bob", "python/1"), id="user"),
        pytest.param(Author("ann", "python/1"), Author("ann", "spark/1"), id="engine"),
    ],
)
def test_a_record_has_one_author(root, mine, theirs):
    taker, other = opened(root, mine), opened(root, theirs)
    meet(taker, lambda: taker.append(rows_of(0)), [lambda: other.append(rows_of(1))])
    assert attempts(taker) == [1, 1]
    assert sorted(taker.to_arrow()["id"].to_pylist()) == [0, 1]


def test_rows_of_another_schema_are_left_to_their_process(root):
    taker, other = opened(root), opened(root)
    other.refresh()
    opened(root).add_columns("text STRING")
    taker.refresh()
    meet(taker, lambda: taker.append(rows_of(0)), [lambda: other.append(rows_of(1))])
    assert attempts(taker)[-2:] == [1, 1]
    assert sorted(taker.to_arrow()["id"].to_pylist()) == [0, 1]


@pytest.mark.parametrize(
    "damage", [b"", b"x", b'{"streamhouse":"offer","version":9,"xxh3":"' + b"0" * 32 + b'"}\n{}\n']
)
def test_an_offer_that_cannot_be_read_is_left_to_its_process(damage):
    run = Run()
    run.create()
    table, storage = run.open(), FaultyStorage(run.memory)
    given = Given([damage])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table.storage, "commit_lock", lambda _key, _offer=None: _entered(given), raising=False)
        run.append()
    assert given.offers == []
    run.check()
    assert another_process(run, storage).table(run.name).refresh().num_rows == 3


class _entered:  # noqa: N801 - a context manager
    def __init__(self, value: Any) -> None:
        self.value = value

    def __enter__(self) -> Any:
        return self.value

    def __exit__(self, *_: object) -> None:
        return None


def test_one_whose_offer_was_taken_and_that_begins_at_a_checkpoint_does_not_know(root):
    """Its attempt may be in a record that it did not read."""
    run = Run()
    run.create()
    waiting = Offering(run.memory)
    table = another_process(run, waiting).table(run.name)
    table.refresh()

    def others(_offer: bytes) -> bool:
        table.log._state = None  # as where a floor has passed what was known
        return True

    waiting.others = others
    with pytest.raises(CommitStateUnknownError, match="may be stored, and the log"):
        run.history.append(table, run.history.new_batch(2))
    run.history.append(table, run.history.new_batch(1))
    run.check()


@pytest.mark.parametrize("state", ["landed", "unanswered", "failures", "conflicts"])
def test_what_may_be_in_the_log_or_in_other_hands_is_offered_to_nobody(root, state):
    table = opened(root)
    calls: list[PendingCommit] = []
    commit = table.log._wait_or_lead
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table.log, "_wait_or_lead", lambda call: calls.append(call) or commit(call))
        table.append(rows_of(1))
    (call,) = calls
    assert call.landed is not None
    new = replace(call, landed=None, outcome=None)
    offer = offers._Offer([new], World())
    assert offer() is not None
    assert new.unanswered == 1
    offer.note_withdrawn()
    assert new.unanswered == 0
    setattr(new, state, call.landed if state == "landed" else 1)
    assert offers._Offer([new], World())() is None


def test_a_transaction_that_follows_a_version_is_offered_to_nobody(root):
    taker, other = opened(root), opened(root)
    transaction = Transaction("app", 7, follows=-1)
    calls: list[PendingCommit] = []
    answer = other.log._wait_or_lead
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(other.log, "_wait_or_lead", lambda call: calls.append(call) or answer(call))
        other.append(rows_of(1), transaction=transaction)
    (call,) = calls
    assert offers._Offer([replace(call, landed=None, outcome=None)], World())() is None
    assert taker.to_arrow().num_rows == 1


def test_only_few_rows_that_are_added_are_offered(root):
    table = opened(root)
    plans = []
    commit = table.log.commit
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table.log, "commit", lambda plan, **named: plans.append(plan) or commit(plan, **named))
        table.append(rows_of(1))
        table.append(rows_of(*range(200_000)))
        table.overwrite(rows_of(1))
        table.append([], transaction=Transaction("app", 1))
    assert [plan.to_json(Payload()) is not None for plan in (*plans[:3], plans[-1])] == [True, False, False, False]


def test_who_has_an_answer_keeps_it_where_sight_is_lost():
    calls = CommitQueue()
    given = {
        name: PendingCommit(lambda *_: (), None, 0, name, is_shared=True)
        for name in ("new", "foreign", "taken", "landed", "answered")
    }
    for name, call in given.items():
        call.unanswered = int(name not in ("new", "foreign"))
        calls.add(call)
    given["foreign"].is_foreign = True
    found = CommitResult(None, None)
    given["landed"].landed, given["answered"].outcome = found, found
    calls.fail_unresolved("a store")
    assert [name for name, call in given.items() if call.error is not None] == ["foreign", "taken"]
