"""Requests that a document costs on an object store: how many, and how many one after the other."""

from __future__ import annotations

import pytest

from kit.round_trips import RemoteStorage
from kit.tables import tier
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark.serve.iceberg.served_tables import VirtualTables


@pytest.fixture
def remote():
    return RemoteStorage(new_store())


def test_an_unchanged_table_and_one_with_new_rows(remote):
    warehouse = open_warehouse(remote, 1)
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
