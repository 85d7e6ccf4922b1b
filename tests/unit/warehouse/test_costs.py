"""Costs of a whole warehouse: those of its tables together, whatever becomes of one of them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from streamhouse_spark import InvalidOptionError, TableNotFoundError, Warehouse
from streamhouse_spark.core.warehouse_layout import commit_key, table_prefix
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.request_metrics import METER, RequestCounts
from streamhouse_spark.table.costs import CostEstimate

PLAIN = {"table.datalake.enabled": "false"}


@pytest.fixture
def memory(world, request) -> MemoryStorage:
    """A store of its own: requests are counted by the store's URL."""
    return MemoryStorage(world, request.node.name)


@pytest.fixture
def wh(memory, world) -> Warehouse:
    found = Warehouse("wh", storage=memory, world=world)
    for name, commits in (("s.busy", 30), ("s.quiet", 1), ("other.t", 5)):
        table = found.create_table(name, "id BIGINT", properties=PLAIN)
        for number in range(commits):
            table.append([{"id": number}])
    return found


def test_costs_of_a_warehouse_are_the_sum_of_its_tables(wh):
    found = wh.costs({"puts_usd_per_1000": 0.01})
    assert sorted(found.tables) == ["other.t", "s.busy", "s.quiet"]
    assert not found.failed
    for field in fields(CostEstimate):
        if field.name != "prices":
            together = sum(getattr(costs.estimate, field.name) for costs in found.tables.values())
            assert getattr(found.estimate, field.name) == pytest.approx(together)
    assert found.estimate.prices.puts_usd_per_1000 == 0.01
    assert found.estimate.total_usd > found.tables["s.busy"].estimate.total_usd > 0
    assert found.tables["s.busy"].to_json() == wh.table("s.busy").costs({"puts_usd_per_1000": 0.01}).to_json()
    assert found.to_json()["tables"]["s.quiet"]["workload"]["buckets"] == 1


def test_costs_are_limited_to_one_database(wh):
    assert list(wh.costs(database="other").tables) == ["other.t"]
    with pytest.raises(TableNotFoundError, match="database"):
        wh.costs(database="nothing")


def test_an_empty_warehouse_costs_nothing(memory, world):
    wh = Warehouse("wh", storage=memory, world=world)
    wh.create_database("s")
    found = wh.costs()
    assert (found.estimate.total_usd, dict(found.tables)) == (0, {})


def test_a_damaged_table_is_named_and_left_out(wh, memory):
    uuid = wh.table("s.quiet").uuid
    memory.put(commit_key(uuid, 2), b"damaged")
    found = Warehouse("wh", storage=memory).costs()
    assert sorted(found.tables) == ["other.t", "s.busy"]
    assert "CORRUPT_DATA" in found.failed["s.quiet"]


def test_requests_of_the_process_are_those_for_all_of_the_store(wh, memory):
    before = wh.costs().requests
    METER.note(memory.url, f"{table_prefix(wh.table('s.busy').uuid)}commits/1", RequestCounts(puts=3))
    METER.note(memory.url, "streamhouse.json", RequestCounts(gets=1))
    found = wh.costs()
    assert found.requests - before == RequestCounts(puts=3, gets=1)
    assert found.tables["s.busy"].requests == RequestCounts(puts=3)


def test_prices_that_cannot_be(wh):
    with pytest.raises(InvalidOptionError, match="price"):
        wh.costs({"puts": 1})
