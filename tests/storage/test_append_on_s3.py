"""Appends through a faulty S3: what is acknowledged is stored once, and what fails says so."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import streamhouse_spark as sh
from faults.sim import SimIds
from storage.s3_proxy import Fault, S3Proxy, nothing, nth
from storage.s3_server import ServerClock, settings_for
from streamhouse_spark.core.clock import World

pytestmark = pytest.mark.s3

FAULTS = [
    Fault.LOST_ACK,
    Fault.ERROR_AFTER,
    Fault.ERROR_BEFORE,
    Fault.DROP_BEFORE,
    Fault.SLOW_DOWN,
    Fault.CONFLICT,
]


@pytest.fixture
def table(proxy: S3Proxy) -> sh.Table:
    proxy.plan = nothing
    world = World(ServerClock(), SimIds(7))
    location = f"s3://{proxy.server.new_bucket()}/wh"
    return sh.Warehouse(location, settings_for(proxy.endpoint), world=world).create_table("sales.orders", "id bigint")


def stored_ids(proxy: S3Proxy, table: sh.Table) -> Counter[int]:
    proxy.plan = nothing
    return Counter(table.to_arrow().column("id").to_pylist())


def test_an_append_is_stored_once_whichever_request_fails(proxy, table):
    """A warm append is one PUT; after another's it reads the log as well."""
    attempts = [(fault, method, number) for fault in FAULTS for method in ("GET", "PUT") for number in (0, 1)]
    attempts.append((Fault.PRECONDITION_BARE, "PUT", 0))
    acknowledged, other = [], sh.Warehouse(table.storage.url, table.settings, world=table.world).table(table.name)
    for row_id, (fault, method, number) in enumerate(attempts):
        if method == "GET":
            other.append([{"id": -1 - row_id}])
        proxy.plan = nth(method, number, fault)
        offsets = table.append([{"id": row_id}])
        assert offsets.num_rows == 1
        acknowledged.append(row_id)
        assert number == 1 or proxy.faults_fired == 1, (fault, method)
    assert Counter(i for i in stored_ids(proxy, table).elements() if i >= 0) == Counter(acknowledged)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_acknowledged_rows_survive_random_faults_of_s3(proxy, table, seed):
    rng = random.Random(seed)
    acknowledged, unclear, kinds = [], [], set()
    proxy.plan = lambda _: rng.choice(FAULTS) if rng.random() < 0.25 else None
    for row_id in range(40):
        try:
            table.append([{"id": row_id}])
        except sh.StreamhouseError as error:
            kinds.add(error.kind)
            unclear.append(row_id)
        else:
            acknowledged.append(row_id)
    assert proxy.faults_fired > 3
    assert kinds <= {sh.ErrorKind.UNAVAILABLE}
    stored = stored_ids(proxy, table)
    assert set(stored.values()) == {1}
    assert set(acknowledged) <= set(stored) <= {*acknowledged, *unclear}
    assert len(acknowledged) > 25
