"""Random histories of a table, decided by a seed."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from property import machine

LIMITS = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    stateful_step_count=40,
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink) if os.environ.get("STREAMHOUSE_PROPERTY_SHRINK") else (Phase.generate,),
)
"""A failing history is printed as it is; with STREAMHOUSE_PROPERTY_SHRINK set, a short one is looked for."""


def test_random_histories_of_log_tables_agree_with_a_dictionary():
    """The same histories in each test run; others in each soak run, or with STREAMHOUSE_PROPERTY_EXAMPLES set."""
    examples = machine.examples_wanted()
    how = settings(LIMITS, max_examples=examples or 60, derandomize=examples is None)
    run_state_machine_as_test(machine.TableMachine, settings=how)
    print(dict(machine.FIRED))  # noqa: T201


@pytest.mark.long
def test_the_same_seed_gives_the_same_writes():
    def run() -> list[str]:
        machine.FIRED.clear()
        machine.TRACES.clear()
        how = settings(LIMITS, max_examples=3)
        run_state_machine_as_test(seed(7)(machine.TableMachine), settings=how)
        return list(machine.TRACES)

    first = run()
    assert len(first) >= 3
    assert run() == first
