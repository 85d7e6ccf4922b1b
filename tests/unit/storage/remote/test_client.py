"""The store's time, learnt from dates in whole seconds."""

from __future__ import annotations

from email.utils import formatdate
from random import Random

import pytest

from faults.sim import START_MS, SimClock
from streamhouse_spark.storage.remote.client import StoreClock


def answer(clock: SimClock, store: StoreClock, *, ahead_ms: int = 0, request_ms: int = 20) -> None:
    sent_ms = clock.boot_ms()
    clock.advance(request_ms / 2)
    date = formatdate((clock.now_ms() + ahead_ms) // 1000, usegmt=True)
    clock.advance(request_ms / 2)
    store.observe(date, sent_ms, clock.boot_ms())


@pytest.fixture
def clock() -> SimClock:
    return SimClock(START_MS + 137)


@pytest.fixture
def store(clock) -> StoreClock:
    return StoreClock(clock.boot_ms)


def test_it_knows_nothing_before_the_first_answer(store):
    assert store.now_ms() is None
    for date in (None, "", "yesterday"):
        store.observe(date, 0, 1)
    assert store.now_ms() is None


@pytest.mark.parametrize("ahead_ms", [0, 400, -90_000, 10**9])
def test_one_answer_tells_it_to_a_second_and_many_to_a_request(clock, store, ahead_ms):
    answer(clock, store, ahead_ms=ahead_ms)
    assert abs(store.now_ms() - clock.now_ms() - ahead_ms) <= 520
    for _ in range(200):
        clock.advance(77)
        answer(clock, store, ahead_ms=ahead_ms)
    assert abs(store.now_ms() - clock.now_ms() - ahead_ms) <= 60


def test_this_hosts_clock_may_jump(clock, store):
    answer(clock, store)
    expected_ms = clock.now_ms() + 5000
    clock.jump(-3_600_000)
    clock.advance(5000)
    assert abs(store.now_ms() - expected_ms) <= 520


def test_a_store_whose_clock_was_set_is_believed(clock, store):
    for _ in range(50):
        clock.advance(77)
        answer(clock, store)
    answer(clock, store, ahead_ms=7_200_000)
    assert abs(store.now_ms() - clock.now_ms() - 7_200_000) <= 520


@pytest.mark.parametrize("seed", range(20))
def test_what_is_told_never_goes_back_while_answers_agree(clock, store, seed):
    """Two commits of one process would have falling times, and a start at the time of the first would skip it."""
    chance, told = Random(seed), 0
    for _ in range(300):
        clock.advance(chance.choice([0, 1, 7, 300]))
        answer(clock, store, request_ms=chance.choice([2, 20, 400]))
        assert store.now_ms() >= told
        told = store.now_ms()
    clock.advance(100)
    assert abs(store.now_ms() - clock.now_ms()) <= 520
