"""Any history of a producer: sends, steps of its writer, faults, deaths, lives beside each other, other batches."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from faults.faulty_storage import Crash, Fault, FaultyStorage
from faults.producing import Process, check_answers, check_whole, new_store
from streamhouse_spark import WriterStoppedError
from streamhouse_spark.storage.base import Storage

SENDS = 12


class Plan(NamedTuple):
    """What happens in one life of the producer."""

    sends: int
    steps: int
    faults: dict[int, Fault]
    """By the number of the call behind the opening of the writer."""
    lives_on: bool
    """Whether it is still there while the next one lives."""
    back: int
    """Sends before the first missing one that the next life repeats."""


PLANS = st.builds(
    Plan,
    st.integers(0, 6),
    st.integers(0, 3),
    st.dictionaries(st.integers(0, 12), st.sampled_from(list(Fault)), max_size=2),
    st.booleans(),
    st.integers(0, 3),
)


class Life:
    """A producer that sends what is not stored, from where the table says or from before."""

    def __init__(self, store: Storage, seed: int, back: int) -> None:
        self.lives_on = False
        self.faults: dict[int, Fault] = {}
        self.storage = FaultyStorage(store, self.faults)
        self.process = Process(self.storage, seed, sends_each=seed % 3 + 1)
        last = self.process.writer.last_sequence
        self.next = max(0, (-1 if last is None else last) + 1 - back)

    def send(self, count: int) -> None:
        for sequence in range(self.next, min(SENDS, self.next + count)):
            self.process.send(sequence)
            self.next = sequence + 1


@given(st.lists(PLANS, min_size=1, max_size=6))
def test_any_history_of_a_producer_is_stored_once_and_in_order(plans):
    store = new_store()
    lives: list[Life] = []
    for seed, plan in enumerate(plans, 10):
        life = Life(store, seed, plan.back)
        life.faults |= {len(life.storage.trace) + number: fault for number, fault in plan.faults.items()}
        lives = [one for one in lives if one.lives_on]
        lives.append(life)
        life.lives_on = plan.lives_on
        with suppress(Crash, WriterStoppedError):
            life.send(plan.sends)
            for _ in range(plan.steps):
                life.process.flusher.step()
        check_answers(store, life.process.acknowledged())
    for life in reversed(lives):
        with suppress(Crash):
            life.process.deliver()
        check_answers(store, life.process.acknowledged())
    last = Life(store, 99, 2)
    last.send(SENDS)
    last.process.deliver()
    assert last.process.writer.last_sequence == SENDS - 1
    check_whole(store, SENDS)
