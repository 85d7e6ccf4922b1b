"""A fault at every storage call while one table takes the place of another under its name."""

from __future__ import annotations

import pytest

from faults.faulty_storage import sweep
from faults.sim import SimClock, sim_world
from streamhouse_spark import Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.warehouse.creation import make_create_action
from streamhouse_spark.warehouse.replacement import publish_table, stage_table

PATH = TablePath("d", "t")
NEW = "number BIGINT, day INT"


def staged(wh):
    table = stage_table(wh, PATH, make_create_action(PATH, NEW, (), ("day",), None, {}))
    table.append([{"number": 7, "day": 1}])
    return table


@pytest.mark.sampled(3)
def test_a_name_means_the_old_or_the_new_table_whichever_call_fails(share):
    """The name means the old table or the new one, and a second run finishes."""

    def opened(storage, seed):
        return Warehouse("wh", storage=storage, world=World(SimClock(), sim_world(seed).ids))

    start = MemoryStorage(sim_world())
    opened(start, 1).create_table("d.t", "id BIGINT").append([{"id": 1}])

    def replace(storage, seed):
        warehouse = opened(storage, seed)
        publish_table(warehouse, PATH, staged(warehouse).uuid, warehouse.table("d.t").uuid)

    before, after = [{"id": 1}], [{"number": 7, "day": 1}]
    for attempt in sweep(start, lambda storage: replace(storage, 3), share=share, each_state_once=True):
        found = opened(attempt.store, 4).table("d.t").to_arrow().to_pylist()
        assert found in ((before, after) if attempt.raised else (after,)), attempt
        assert opened(attempt.store, 5).tables() == ["d.t"], attempt
        replace(attempt.store, 6)
        assert opened(attempt.store, 7).table("d.t").to_arrow().to_pylist() == after, attempt
