"""Every storage call of the sink of real-time mode meets every fault and a rival: each row is there once."""

from __future__ import annotations

import pytest

from faults.faulty_storage import Fault
from faults.real_time_sink import calls, new_store, rival_before, survive

pytestmark = pytest.mark.usefixtures("own_cache")
KINDS = [pytest.param(False, id="log"), pytest.param(True, id="keyed")]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("by_key", KINDS)
@pytest.mark.parametrize("tries", [1, 2], ids=["dies", "runs_again"])
def test_every_fault_at_every_call(by_key, tries, share):
    base = new_store(by_key=by_key)
    count = calls(base)
    assert count > 40
    for call in (call for call in range(count) if call in share):
        for fault in Fault:
            assert survive(base, {call: fault}, tries=tries).faults_fired


@pytest.mark.sampled(16)
@pytest.mark.parametrize("by_key", KINDS)
@pytest.mark.parametrize("has_begun", [False, True], ids=["begins_then", "began_before"])
def test_another_run_of_the_query_before_every_call(by_key, has_begun, share):
    base = new_store(by_key=by_key)
    for call in (call for call in range(calls(base)) if call in share):
        for steps in (1, 3):
            rival_before(base, call, has_begun=has_begun, steps=steps)
