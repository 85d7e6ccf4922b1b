"""Every storage call of every scenario meets every fault; afterwards nothing is lost, doubled, torn or stuck."""

from __future__ import annotations

import pytest

from faults import scenarios as sc
from faults.faulty_storage import WRITES
from faults.scenarios import Scenario, scenario_parameters
from faults.sweep import sweep_scenario


@pytest.mark.sampled(13)
@pytest.mark.parametrize("scenario", scenario_parameters())
def test_every_fault_at_every_call(scenario: type[Scenario], record_property, share):
    figures = sweep_scenario(scenario(), methods=scenario.tested_methods, share=share)
    record_property("figures", str(figures))
    print(f"{scenario.name}: {figures}")  # noqa: T201 - figures are what a sweep is read for
    assert figures.hit == {number for number in range(figures.calls) if number in share} or scenario.tested_methods
    assert figures.calls > 3


@pytest.mark.sampled(4)
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
