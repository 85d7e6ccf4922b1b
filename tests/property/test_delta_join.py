"""Random histories of two tables: what a delta join leaves in its target is the join of both."""

from __future__ import annotations

import random

import pytest

from faults.share import few_of
from faults.sim import SimClock, sim_world
from property.delta_simulation import CASES, Simulation
from streamhouse_spark import Warehouse
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("seed", few_of(range(30), 6))
def test_a_delta_join_leaves_the_joined_rows_after_any_history(seed):
    world = sim_world(seed, SimClock())
    wh = Warehouse("wh", storage=MemoryStorage(world), world=world)
    chance = random.Random(seed)
    run = Simulation(wh, CASES[seed % len(CASES)], chance)
    for _ in range(6):
        for _ in range(chance.randint(0, 4)):
            run.change()
        run.micro_batch()
    run.finish()
    assert run.found() == run.expected()
    assert sum(run.target.state.ends.values()) > 5, "the history should join rows"
