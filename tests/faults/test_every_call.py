"""Every storage call of every scenario meets every fault; afterwards nothing is lost, doubled, torn or stuck."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults import scenarios as sc
from faults.faulty_storage import WRITES
from faults.group_appends import AppendTogether
from faults.scenarios import Scenario, scenario_parameters
from faults.sweep import sweep_scenario

ROUNDS_AGAIN = (sc.TierAndTrim, sc.TierOverwritten, sc.TierTruncated, sc.TierRenamedAndDropped, sc.RetierLake)
"""Most of their calls are those of a round, all of which `sc.TierFirst` meets; `make soak` meets all of theirs."""


@pytest.mark.sampled(26)
@pytest.mark.parametrize("scenario", scenario_parameters())
def test_every_fault_at_every_call(scenario: type[Scenario], record_property, share):
    if share.is_rest and issubclass(scenario, ROUNDS_AGAIN):
        share = replace(share, each=2)
    figures = sweep_scenario(scenario(), methods=scenario.tested_methods, share=share)
    record_property("figures", str(figures))
    print(f"{scenario.name}: {figures}")  # noqa: T201 - figures are what a sweep is read for
    assert figures.hit == {number for number in range(figures.calls) if number in share} or scenario.tested_methods
    assert figures.calls > 3


@pytest.mark.always
@pytest.mark.parametrize(
    "scenario",
    [sc.AppendTransaction, AppendTogether, sc.Truncate, sc.Trim, sc.Clean, sc.TierFirst, sc.TierFirstOnPaimon],
)
def test_every_call_of_one_history_of_each_protocol_meets_every_fault(scenario):
    figures = sweep_scenario(scenario())
    assert figures.hit == set(range(figures.calls))
    assert figures.calls > 3


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "scenario",
    [
        sc.AppendInline,
        sc.AppendObjects,
        sc.AppendThatMerges,
        sc.Trim,
        sc.Truncate,
        sc.Overwrite,
        sc.TierFirst,
    ],
)
def test_every_fault_at_every_write_of_a_local_disk(scenario, tmp_path, share):
    """Where commits cannot land late and segments are mapped, other branches decide."""
    methods = tuple(WRITES - {"create.write"})
    figures = sweep_scenario(scenario(), methods=methods, directory=tmp_path / "warehouse", share=share)
    print(f"{scenario.name} on a local disk: {figures}")  # noqa: T201
    assert figures.runs or share.is_rest
