"""A fault at every storage call of tables with a primary key: writes, snapshots by key, trimming, lookups."""

from __future__ import annotations

import itertools
import os
from collections import Counter

import pytest

from faults.faulty_storage import sweep
from faults.sim import SimClock, sim_world
from streamhouse_spark.clock import World
from streamhouse_spark.kv import snapshots, staged_changes
from streamhouse_spark.kv.tablets import close_tablets
from streamhouse_spark.storage_memory import MemoryStorage
from streamhouse_spark.views import open_view
from streamhouse_spark.warehouse import Warehouse

HOUR_MS = 3600 * 1000
BEFORE = {i: {"id": i, "name": "a", "n": 1} for i in range(6)}


@pytest.fixture
def hosts(tmp_path, monkeypatch, own_cache):
    """Gives the table on a new host, with an empty cache."""
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(snapshots, "CHANGES_MIN", 4)
    numbers = itertools.count()

    def new_host(storage, seed=0, clock=None):
        close_tablets()
        os.environ["STREAMHOUSE_CACHE_DIR"] = str(tmp_path / str(next(numbers)))
        return Warehouse("wh", storage=storage, world=World(clock or SimClock(), sim_world(seed).ids)).table("t")

    return new_host


def prepared(hosts, *, snapshot):
    storage = MemoryStorage(sim_world())
    Warehouse("wh", storage=storage, world=sim_world(1)).create_table(
        "t", "id INT, name STRING, n BIGINT", primary_key=["id"], buckets=2,
        properties={"table.log.ttl": "1h", "table.datalake.enabled": "false"},
    )  # fmt: skip
    table = hosts(storage, 2)
    table.upsert([{"id": i, "name": "old", "n": 0} for i in range(7)])
    table.upsert(list(BEFORE.values()))
    table.delete([6])
    if snapshot:
        table.maintain()
        assert table.refresh().snapshots
        table.upsert([BEFORE[0]])
    return storage


def rows(table):
    found = table.to_arrow().to_pylist()
    by_key = {row["id"]: row for row in found}
    assert len(by_key) == len(found)
    looked_up = table.lookup(sorted(by_key), max_staleness_ms=0).to_pylist()
    assert [{**by_key[row["id"]], "_found": True} for row in looked_up] == looked_up
    return by_key


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inline", "snapshot"), [(True, True), (False, False)], ids=["inline, by a snapshot", "objects, by the log"]
)
def test_writing(hosts, inline, snapshot, monkeypatch):
    """Whatever the writer is told, its batch is there once or not at all, for every host."""
    if not inline:
        monkeypatch.setattr(staged_changes, "INLINE_BYTES_MAX", 0)
    after = {**BEFORE, 1: {**BEFORE[1], "n": 9}, 9: {"id": 9, "name": None, "n": 9}}

    def work(storage):
        table = hosts(storage, 3)
        table.upsert([{"id": 1, "n": 9}, {"id": 9, "n": 9}], columns=["n"])
        assert rows(table) == after

    outcomes = Counter()
    for attempt in sweep(lambda: prepared(hosts, snapshot=snapshot), work):
        table = hosts(attempt.store, 4)
        found = rows(table)
        assert found in ((BEFORE, after) if attempt.raised else (after,)), attempt
        table.upsert([{"id": 1, "n": 9}, {"id": 9, "n": 9}], columns=["n"])
        assert rows(table) == after, attempt
        outcomes[type(attempt.raised).__name__, found == after] += 1
    assert outcomes["Crash", True]
    assert outcomes["Crash", False]


@pytest.mark.slow
def test_maintaining(hosts):
    """Snapshots are published, the log is trimmed up to them, and files go: no row and no key is ever lost."""
    clocks = []

    def new_store():
        clocks.append(SimClock())
        return prepared(hosts, snapshot=False)

    def work(storage):
        clock = clocks[-1]
        clock.advance(2 * HOUR_MS)
        storage.inner._world = World(clock, sim_world().ids)  # the store's clock is the one that ages rows
        table = hosts(storage, 3, clock)
        table.maintain()
        assert rows(table) == BEFORE
        clock.advance(30 * HOUR_MS)
        table.upsert([BEFORE[0]])
        table.maintain()
        assert rows(hosts(storage, 5, clock)) == BEFORE

    trimmed = 0
    for attempt in sweep(new_store, work):
        table = hosts(attempt.store, 4, clocks[-1])
        assert rows(table) == BEFORE, attempt
        table.maintain()
        assert rows(hosts(attempt.store, 6, clocks[-1])) == BEFORE, attempt
        table.upsert([{"id": 3, "name": "z", "n": 3}])
        assert rows(table)[3]["name"] == "z"
        state = table.refresh()
        trimmed += any(log.start > 0 for log in state.buckets.values())
        for row in open_view(table, "changelog").to_arrow().to_pylist():
            assert row["id"] in range(7)
    assert trimmed
