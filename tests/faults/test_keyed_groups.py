"""Writes by key that wait together: each storage call meets each fault."""

from __future__ import annotations

import functools
import itertools

import pytest

from faults import keyed_groups
from faults.faulty_storage import Crash, RecordedStore, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import sim_world
from faults.test_groups import COMMIT_PATH, Interrupts
from faults.turns import in_turns
from streamhouse_spark import Transaction, Warehouse
from streamhouse_spark.kv import change_staging
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.read.scan_executor import changelog_cache
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = pytest.mark.usefixtures("own_cache")
CASES = [
    keyed_groups.writes_together,
    keyed_groups.the_same_transaction_twice,
    keyed_groups.a_refused_write_among_others,
    keyed_groups.other_neighbours_behind_a_refusal,
    keyed_groups.a_record_that_lands_late,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_each_is_as_if_it_were_alone(case):
    case()


def prepared():
    storage = MemoryStorage(sim_world())
    table = Warehouse("wh", storage=storage, world=sim_world(1)).create_table(
        "t", "id BIGINT, name STRING, n BIGINT", primary_key=["id"], buckets=2
    )
    table.upsert([{"id": 1, "name": "first", "n": 0}, {"id": 2, "name": "first", "n": 0}])
    close_tablets()
    return storage


CALLS = [
    ("n", [{"id": 1, "n": 5}, {"id": 2, "n": 5}]),
    ("upsert", [{"id": 1, "name": "a", "n": 6}]),
    ("delete", [{"id": 2}]),
]


def each(table, number=1):
    return [
        lambda at=at, c=c: keyed_groups.called(table, c, Transaction(f"call {at}", number))
        for at, c in enumerate(CALLS)
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("inline", [True, False], ids=["inline", "objects"])
def test_every_fault_at_every_call(inline, monkeypatch, share, tmp_path):
    """Whatever each is told, its changes are there once or not at all, and once after it is sent again."""
    hosts = itertools.count()

    def new_host():
        close_tablets()
        changelog_cache.clear()
        monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / str(next(hosts))))

    if not inline:
        monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
    start = prepared()

    def opened(storage, seed):
        return Warehouse("wh", storage=storage, world=sim_world(seed)).table("t")

    def work(storage):
        new_host()
        table = opened(storage, 3)
        table.refresh()
        told = in_turns(each(table))
        stored = keyed_groups.attempts_since(opened(storage.inner, 6), 2)
        assert {n for n, answer in enumerate(told) if not isinstance(answer, BaseException)} <= {*stored}
        for crash in (answer for answer in told if isinstance(answer, Crash)):
            raise crash

    @functools.cache
    def alone(order):
        """Return the rows and the changelog behind the same calls, made one after the other."""
        new_host()
        table = opened(RecordedStore(start).copy(), 5)
        calls = each(table)
        for at in order:
            calls[at]()
        return keyed_groups.changes_and_rows(table)

    with one_thing_at_a_time():
        for attempt in sweep(start, work, share=share, each_state_once=True):
            new_host()
            table = opened(attempt.store, 4)
            stored = keyed_groups.attempts_since(table, 2)
            assert len(stored) == len(set(stored)), attempt
            keyed_groups.current_rows(table)
            for call in each(table):
                call()
            order = keyed_groups.attempts_since(table, 2)
            assert sorted(order) == [0, 1, 2], attempt
            assert keyed_groups.changes_and_rows(table) == alone(tuple(order)), attempt


class KeyedInterrupts(Interrupts):
    steps_of = (
        *COMMIT_PATH,
        "/kv/upsert_commit.py",
        "/kv/change_staging.py",
    )


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("thread", "order"), [(0, (0, 1, 2)), (1, (0, 2, 1))], ids=str)
def test_an_interrupt_at_every_step_loses_and_doubles_no_keyed_change(thread, order, share):
    def run(at):
        table = keyed_groups.started("interrupted")
        interrupts, calls = KeyedInterrupts(at), each(table)
        send = calls[thread]
        calls[thread] = lambda: interrupts.during(send)
        return table, in_turns(calls, order=order), interrupts.steps

    alone = functools.cache(lambda order: keyed_groups.changes_and_rows_alone(CALLS, order))
    steps = run(None)[2]
    assert steps > 20
    for at in (number for number in range(steps) if number in share):
        table, answers, _ = run(at)
        assert isinstance(answers[thread], KeyboardInterrupt), at
        assert all(not isinstance(a, BaseException) for n, a in enumerate(answers) if n != thread), (at, answers)
        for call in each(table):
            call()
        order_there = keyed_groups.attempts_since(table, 2)
        assert sorted(order_there) == [0, 1, 2], at
        assert keyed_groups.changes_and_rows(table) == alone(tuple(order_there)), at
