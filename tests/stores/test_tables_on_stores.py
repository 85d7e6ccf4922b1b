"""Tables on real servers of each protocol: answers that get lost, faults of all kinds, and kills."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from faults.sim import SimClock, SimIds
from kills.rounds import kill_rounds_elsewhere
from kit.tables import tier
from s3.test_tables_through_faults import (
    stored,
    test_a_transaction_is_retried_until_it_is_stored_once,
    test_two_writers_store_each_row_once_through_random_faults,
)
from storage.s3_proxy import Fault, S3Proxy, nothing, running_s3_proxy
from storage.s3_server import ServerClock
from streamhouse_spark import Warehouse
from streamhouse_spark.core.clock import World

__all__ = [
    "test_a_transaction_is_retried_until_it_is_stored_once",
    "test_two_writers_store_each_row_once_through_random_faults",
]

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("own_cache")]

KILL_SECONDS = float(os.environ.get("STREAMHOUSE_TEST_KILL_SECONDS", "180"))


@pytest.fixture
def proxy(server) -> Iterator[S3Proxy]:
    with running_s3_proxy(server) as running:
        yield running


@pytest.fixture
def clock() -> SimClock:
    return ServerClock()


@pytest.fixture
def location(server) -> str:
    return server.new_url()


@pytest.fixture
def faulty(proxy, server, clock, location) -> Warehouse:
    return Warehouse(location, server.settings_at(proxy.port), world=World(clock, SimIds(1)))


@pytest.fixture
def direct(server, clock, location) -> Warehouse:
    return Warehouse(location, server.settings, world=World(clock, SimIds(2)))


def test_a_keyed_table_survives_random_faults_of_a_store(proxy, faulty, direct):
    """Upserts, deletes, rounds and upkeep, each tried again until it went through; the lake is the table at the end."""
    direct.create_table("t", "k BIGINT NOT NULL, v BIGINT", primary_key=["k"], buckets=2)
    table, rng, wanted = faulty.table("t"), random.Random(7), {}
    faults = [Fault.LOST_ACK, Fault.ERROR_AFTER, Fault.ERROR_BEFORE, Fault.DROP_BEFORE, Fault.SLOW_DOWN]
    proxy.plan = lambda _: rng.choice(faults) if rng.random() < 0.15 else None

    def until_stored(act) -> None:
        while not stored(act):
            pass

    for turn in range(12):
        keys = rng.sample(range(50), 8)
        until_stored(lambda: table.upsert([{"k": k, "v": turn} for k in keys]))  # noqa: B023
        wanted |= dict.fromkeys(keys, turn)
        gone = rng.choice(keys)
        until_stored(lambda: table.delete([{"k": gone}]))  # noqa: B023
        wanted.pop(gone)
        if turn % 4 == 3:
            until_stored(lambda: tier(table))
            until_stored(table.maintain)
    assert proxy.faults_fired > 15
    proxy.plan = nothing
    found = direct.table("t")
    assert dict(zip(*found.to_arrow().select(["k", "v"]).to_pydict().values(), strict=True)) == wanted
    tier(found)
    assert dict(zip(*found.lake.to_arrow().select(["k", "v"]).to_pydict().values(), strict=True)) == wanted


def test_kills_of_eight_writers_lose_no_acknowledged_row(server, tmp_path):
    figures = kill_rounds_elsewhere(
        tmp_path, server.new_url(), server.settings, writers=8, seconds=KILL_SECONDS, seed=11
    )
    print(figures)  # noqa: T201
    assert figures.kills > 4
