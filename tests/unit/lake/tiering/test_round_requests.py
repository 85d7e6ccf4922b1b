"""How often a tiering round asks the storage: no more than the round before it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from faults.faulty_storage import FaultyStorage
from kit.tables import tier
from streamhouse_spark import Warehouse
from streamhouse_spark.core.warehouse_layout import WAREHOUSE_KEY


def round_of(table, counted: FaultyStorage, row: int) -> list[tuple[str, str]]:
    """The requests of one round that tiers one row, as the service has them: the table stays, its lake is opened."""
    (table.upsert if table.state.primary_key else table.append)([{"id": row}])
    counted.trace.clear()
    tier(table)
    return [(method, key) for _, method, key in counted.trace if method not in ("create.write", "create.close")]


@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "keyed"])
@pytest.mark.parametrize(("lake_format", "requests_max"), [("iceberg", 60), ("paimon", 70)])
def test_a_round_costs_as_much_as_the_one_before(counted, world, own_cache, lake_format, requests_max, key):
    """All of it, the look where the warehouse is at home included, which each round's lake takes once. By key, every
    round leaves a manifest that the next ones read, until a compaction, which is due after ten rounds.
    """
    warehouse = Warehouse("wh", storage=counted, world=world)
    properties = {"table.datalake.format": lake_format}
    table = warehouse.create_table("t", "id BIGINT NOT NULL", primary_key=key, properties=properties)
    rounds = [round_of(table, counted, row) for row in range(8)]
    assert [requests.count(("read", WAREHOUSE_KEY)) for requests in rounds] == [1] * 8
    sizes = [len(requests) for requests in rounds]
    grown = [after - before for before, after in pairwise(sizes[2:])]
    assert grown == [1 if key else 0] * 5, sizes
    assert sizes[2] <= requests_max, sizes
