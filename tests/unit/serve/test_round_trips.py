"""Requests that a document costs on an object store: how many, and how many one after the other."""

from __future__ import annotations

import pytest

from faults.sim import sim_world
from kit.round_trips import RemoteStorage
from kit.tables import tier
from streamhouse_spark import Warehouse
from streamhouse_spark.serve.iceberg.virtual_tables import VirtualTables
from streamhouse_spark.storage.memory import MemoryStorage


@pytest.fixture
def remote():
    return RemoteStorage(MemoryStorage(sim_world()))


def test_an_unchanged_table_and_one_with_new_rows(remote):
    warehouse = Warehouse("wh", storage=remote, world=sim_world(1))
    table = warehouse.create_table("s.t", "id BIGINT", buckets=2)
    table.append([{"id": n} for n in range(100)])
    tier(table)
    table.append([{"id": 100}])
    served = VirtualTables(warehouse)
    with remote.measured() as first:
        served.table("s.t").newest()
    with remote.measured() as unchanged:
        served.table("s.t").newest()
    table.append([{"id": 101}])
    with remote.measured() as further:
        served.table("s.t").newest()
    for name, cost, depth, requests in [
        ("first", first, 22, 48),
        ("unchanged", unchanged, 3, 5),
        ("further", further, 19, 38),
    ]:
        assert cost.depth <= depth, (name, cost)
        assert cost.requests <= requests, (name, cost)
