"""Turns of threads that look up rows: only a hint, so none of them may wait for long, whatever another one does."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from kit.waiting import wait_for
from streamhouse_spark.lookup import point_lookup as module
from streamhouse_spark.lookup.point_lookup import LOOKUPS_MAX, LookupScheduler

FOR_EVER_S = 600.0
ANSWER_S = 60.0


class Worker:
    """A thread that does one thing after another."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[tuple[Callable[[], object], Future[object]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            action, result = self._orders.get()
            result.set_result(action())

    def begin(self, action: Callable[[], object]) -> Future[object]:
        result: Future[object] = Future()
        self._orders.put((action, result))
        return result

    def do(self, action: Callable[[], object]) -> object:
        return self.begin(action).result(ANSWER_S)


@pytest.fixture
def turns():
    return LookupScheduler()


@pytest.fixture
def patient(monkeypatch):
    """Who waits is woken by others alone."""
    monkeypatch.setattr(module, "WAIT_S", FOR_EVER_S)


def _waiting(turns: LookupScheduler, worker: Worker) -> Future[object]:
    before = len(turns._waiting)
    result = worker.begin(turns.acquire)
    wait_for(lambda: len(turns._waiting) > before, "a wait")
    return result


@pytest.mark.usefixtures("patient")
def test_who_waits_has_the_turn_next(turns):
    first, second, third = Worker(), Worker(), Worker()
    assert first.do(turns.acquire)
    waits = [_waiting(turns, worker) for worker in (second, third)]
    first.do(turns.release)
    assert waits[0].result(ANSWER_S)
    assert not waits[1].done()
    second.do(turns.release)  # neither came back, so nobody keeps the turn
    assert waits[1].result(ANSWER_S)
    third.do(turns.release)
    assert first.do(turns.acquire)


@pytest.mark.usefixtures("patient")
def test_who_comes_back_keeps_the_turn_for_a_while(turns):
    first, second = Worker(), Worker()
    assert first.do(turns.acquire)
    wait = _waiting(turns, second)
    first.do(turns.release)
    assert wait.result(ANSWER_S)
    wait = _waiting(turns, first)
    for _ in range(LOOKUPS_MAX):
        second.do(turns.release)
        assert not wait.done()
        assert second.do(turns.acquire)
    second.do(turns.release)
    assert wait.result(ANSWER_S)
    assert _waiting(turns, second).done() is False
    for _ in range(LOOKUPS_MAX):  # for as long as the other one
        first.do(turns.release)
        assert first.do(turns.acquire)
    assert turns._waiting
    first.do(turns.release)
    assert not turns._waiting


def test_an_owner_that_is_at_something_else_stops_nobody(turns):
    first, second = Worker(), Worker()
    assert first.do(turns.acquire)  # and reads the log for long, or was interrupted
    assert second.do(turns.acquire)
    second.do(turns.release)
    assert second.do(turns.acquire)
    second.do(turns.release)
    first.do(turns.release)
    assert first.do(turns.acquire)


@pytest.mark.usefixtures("patient")
def test_a_turn_that_was_kept_in_vain_is_taken(turns):
    first, second, third = Worker(), Worker(), Worker()
    assert first.do(turns.acquire)
    wait = _waiting(turns, second)
    first.do(turns.release)
    assert wait.result(ANSWER_S)
    wait = _waiting(turns, first)
    second.do(turns.release)  # it keeps the turn, because the other one came back, and does not come back itself
    assert not wait.done()
    turns._check_progress(turns._waiting[0], 0)
    assert wait.result(ANSWER_S)
    wait = _waiting(turns, third)
    first.do(turns.release)  # and nobody is taken for one that comes back any more
    assert wait.result(ANSWER_S)


@pytest.mark.usefixtures("patient")
def test_where_lookups_are_slow_all_go_on_at_once(turns):
    first, second, third = Worker(), Worker(), Worker()
    assert first.do(turns.acquire)
    waits = [_waiting(turns, worker) for worker in (second, third)]
    turns._check_progress(turns._waiting[1], module._FEW)
    assert turns._waiting
    turns._check_progress(turns._waiting[1], module._FEW - 1)  # of the owner, meanwhile
    assert [wait.result(ANSWER_S) for wait in waits] == [False, False]
    assert [worker.do(turns.acquire) for worker in (second, third)] == [False, False]
    first.do(turns.release)
    assert second.do(turns.acquire)


@pytest.mark.usefixtures("patient")
def test_who_is_interrupted_while_it_waits_gives_its_turn_to_the_next(turns, monkeypatch):
    class Interrupted:
        def is_set(self) -> bool:
            return False

        def set(self) -> None:
            pass

        def wait(self, _timeout: float) -> bool:
            first.do(turns.release)  # which gives this one the turn
            raise KeyboardInterrupt

    first, second = Worker(), Worker()
    assert first.do(turns.acquire)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(module, "new_event", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            turns.acquire()
    assert not turns._waiting
    assert second.do(turns.acquire)


@pytest.mark.usefixtures("patient")
def test_a_child_has_a_free_turn(turns):
    assert turns.acquire()
    child = os.fork()
    if not child:
        os._exit(0 if turns.acquire() and not turns._waiting else 1)
    assert os.waitpid(child, 0)[1] == 0
