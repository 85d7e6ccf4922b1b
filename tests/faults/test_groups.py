"""Appends that wait together: each storage call meets each fault, each step an interrupt, and each answer is right."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from faults import interleave as il
from faults.group_appends import AppendTogether, AppendTogetherObjects, num_attempts, the_same_transaction_twice
from faults.scenarios import Run, prepared
from faults.share import few_of
from faults.sweep import sweep_scenario
from faults.turns import in_turns
from streamhouse_spark import CommitConflictError, StreamhouseError
from streamhouse_spark.log.record import read_record
from unit.core.test_fork_safety import child_status, held_by_another_thread

GROUPS = [pytest.param(kind, id=kind.name.replace(" ", "_")) for kind in (AppendTogether, AppendTogetherObjects)]
COMMIT_PATH = tuple(
    f"/log/{module}.py"
    for module in [
        "commit_log",
        "group_commit",
        "commit_validation",
        "bootstrap",
        "checkpoint",
        "record",
        "actions",
        "state",
        "transactions",
        "history",
        "history_index",
        "low_watermark",
        "object_existence",
        "framing",
        "segment",
        "deletion_vectors",
    ]
)
STEPS_OF = (
    *COMMIT_PATH,
    "/storage/put_if_absent.py",
    "/storage/memory.py",
)
"""The code whose steps are interrupted."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scenario", GROUPS)
def test_every_fault_at_every_call(scenario, share, record_property):
    figures = sweep_scenario(scenario(), share=share)
    record_property("figures", str(figures))
    assert figures.hit == {number for number in range(figures.calls) if number in share}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scenario", GROUPS)
def test_every_fault_at_every_call_of_a_local_disk(scenario, tmp_path, share):
    assert sweep_scenario(scenario(), directory=tmp_path / "warehouse", share=share).runs


@pytest.mark.parametrize("order", few_of(itertools.islice(itertools.permutations(range(5)), 0, 120, 13), 4), ids=str)
def test_whoever_has_the_log_first(order):
    class InOrder(AppendTogether):
        pass

    InOrder.order = order
    assert sweep_scenario(InOrder(), methods=("put_if_absent",)).runs >= 5


@pytest.mark.parametrize("between", [*il.BETWEEN, *il.BETWEEN_THREADS])
def test_another_process_acts_before_each_call(between):
    scenario = AppendTogether()
    if between.startswith("sleeps"):
        scenario.expected = (CommitConflictError,)
    acts = {**il.BETWEEN, **il.BETWEEN_THREADS}[between]
    with il.small_limits():
        base = prepared(scenario)
        base.observe()
        for at in range(il.calls_of(base, scenario.work)):
            run, error = il.run_interleaved(base, scenario.work, acts, at)
            assert error is None
            run.append()
            run.check()


def test_they_are_one_record_and_the_refused_are_none_of_it():
    run = prepared(scenario := AppendTogether())
    scenario.work(run)
    assert num_attempts(run) == [1, 1, 3]
    run.check()


def test_a_transaction_in_two_calls_of_a_group_is_stored_once():
    run = the_same_transaction_twice()
    assert num_attempts(run) == [1, 2]


# -- interrupts -------------------------------------------------------------------------------------------------------


class Interrupts:
    """Raises `KeyboardInterrupt` where CPython looks for signals: as a function begins, and behind a call of C."""

    steps_of = STEPS_OF

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.steps = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "c_return") or not any(part in code.co_filename for part in self.steps_of):
            return
        if code.co_name == "<genexpr>":  # while one is closed, CPython drops what is raised
            return
        self.steps += 1
        if self.steps - 1 == self.at:
            raise KeyboardInterrupt

    def during(self, call: Callable[[], Any]) -> Any:
        sys.setprofile(self)
        try:
            return call()
        finally:
            sys.setprofile(None)


def interrupted(base: Run, thread: int, at: int | None, order: tuple[int, ...]) -> tuple[Run, list[Any], int]:
    """Append three batches together, with an interrupt at a step of one thread."""
    run = base.copy()
    table, interrupts = run.open(), Interrupts(at)
    table.refresh()
    batches = [run.history.new_batch(n + 1) for n in range(3)]
    calls: list[Callable[[], Any]] = [lambda batch=batch: run.history.append(table, batch) for batch in batches]
    send = calls[thread]
    calls[thread] = lambda: interrupts.during(send)
    answers = in_turns(calls, order=order)
    return run, answers, interrupts.steps


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("thread", "order"), [(0, (0, 1, 2)), (1, (0, 1, 2)), (1, (0, 2, 1)), (2, (2, 0, 1))], ids=str)
def test_an_interrupt_at_every_step_loses_and_doubles_no_row(thread, order, share):
    base = Run()
    base.create()
    base.append()
    _, _, steps = interrupted(base, thread, None, order)
    assert steps > 10
    for at in (number for number in range(steps) if number in share):
        run, answers, _ = interrupted(base, thread, at, order)
        log = run.open().log
        try:
            assert isinstance(answers[thread], KeyboardInterrupt)
            assert all(not isinstance(a, BaseException) for n, a in enumerate(answers) if n != thread), answers
            assert not [c for c in log._queue._by_attempt.values() if not c.is_done], "a call that nobody answers"
            assert not log._lock._is_owned()
            run.append()
            assert len(log._queue) == 0
            run.check()
        except (AssertionError, StreamhouseError) as error:
            raise AssertionError(f"interrupt at step {at} of thread {thread}: {error}") from error


# -- forks ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_does_not_inherit_waiting_calls(tmp_path):
    """A process forks while three calls wait and a thread holds the log: the child writes its own rows alone."""
    run = Run(directory=tmp_path / "warehouse")
    run.create()
    table = run.open()
    batches = [run.history.new_batch(n + 1) for n in range(3)]
    of_child = run.history.new_batch(5)
    statuses = []

    def work() -> bool:
        assert len(table.log._queue) == 0
        offsets = table.append(of_child.rows())
        newest = read_record(table.storage, table.uuid, table.refresh().version)[0]
        return offsets.num_rows == 5 and newest.members == () and table.refresh().num_rows == 5

    def fork() -> None:
        with held_by_another_thread(table.log._lock):
            statuses.append(child_status(work))

    answers = in_turns([lambda b=b: run.history.append(table, b) for b in batches], when_all_wait=fork)
    assert statuses == [0]
    assert [answer.num_rows for answer in answers] == [1, 2, 3]
    assert num_attempts(run) == [1, 3]
    assert table.to_arrow().num_rows == 11
