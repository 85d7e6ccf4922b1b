"""A fault at every storage call of cloning a table, and others that clean and empty the table before each: there is the
whole clone or none, the table loses nothing, and what an unfinished clone left goes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from faults.faulty_storage import RecordedStore, clock_of, race, sweep
from faults.share import Share
from faults.sim import sim_world
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import StreamhouseError, Table, Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.lake.iceberg import clone as lake_cloning
from streamhouse_spark.log.catalog import branches
from streamhouse_spark.log.gc import dropped_tables
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.warehouse import cloning

DAY_MS = 24 * 3600 * 1000
ROWS = list(range(9))
NEVER = {"table.log.ttl": "3650d"}


def stored_table(kind: str) -> MemoryStorage:
    """Return the store of a table of some kind: hot, tiered, or tiered by key."""
    storage = MemoryStorage(sim_world())
    properties = {"table.datalake.enabled": str(kind != "hot").lower(), **NEVER}
    key = ["id"] if "key" in kind else []
    table = Warehouse("wh", storage=storage, world=storage._world).create_table(
        "t", "id INT NOT NULL", buckets=1, properties=properties, primary_key=key
    )
    for part in (ROWS[:3], ROWS[3:6], ROWS[6:]):
        add(table, part)
        if kind != "hot" and part is not ROWS[6:]:
            tier(table)
    close_tablets()
    return storage


def add(table: Table, numbers: list[int]) -> None:
    (table.upsert if table.state.primary_key else table.append)([{"id": n} for n in numbers])


def opened(storage: Storage, seed: int) -> Warehouse:
    return Warehouse("wh", storage=storage, world=sim_world(seed, clock_of(storage)))


@pytest.fixture(scope="module", params=["hot", "tiered", "tiered by key"])
def start(request) -> MemoryStorage:
    return stored_table(request.param)


@pytest.fixture(scope="module")
def tiered() -> MemoryStorage:
    return stored_table("tiered by key")


def clean(storage: Storage, seeds: Callable[[], int], *names: str) -> None:
    """Do all that takes files away, in a process of its own, with days between."""
    for _ in range(3):
        clock_of(storage).advance(2 * DAY_MS)
        warehouse = opened(storage, seeds())
        for name in names:
            table = warehouse.table(name)
            table.maintain()
            if table.has_lake:
                table.lake.expire_snapshots(retain_last=1, older_than_ms=storage.now_ms())
                table.lake.remove_orphan_files()
        warehouse.clean_dropped()


def check(storage: Storage, *, is_told: bool | None = None) -> bool:
    """Tell whether the clone is there, and check that it or nothing is, and that the table is whole."""
    seeds = partial(next, count(100))
    warehouse = opened(storage, seeds())
    is_there = warehouse.exists("c")
    assert is_told in (None, is_there)
    clean(storage, seeds, "t", *(["c"] if is_there else []))
    warehouse = opened(storage, seeds())
    assert ids(warehouse.table("t")) == ROWS
    if is_there:
        assert ids(warehouse.table("c")) == ROWS
        warehouse.drop_table("c")
        clean(storage, seeds, "t")
    uuid = warehouse.table("t").uuid
    left = [info.key for info in storage.list("tables/") if f"/{uuid}/" not in info.key and "/floors/" not in info.key]
    assert left == []
    assert [tag.name for tag in opened(storage, seeds()).table("t").tags()] == []
    return is_there


def clone(storage: Storage) -> None:
    opened(storage, 3).clone_table("t", "c")


@pytest.mark.sampled(80)
def test_there_is_the_whole_clone_or_none(start, share):
    found = [
        check(attempt.store, is_told=None if attempt.raised else True)
        for attempt in sweep(start, clone, share=share, each_state_once=True)
    ]
    assert found, "no call was met"


def others_before_each_call(start: MemoryStorage, share: Share) -> set[bool]:
    """Let others empty the table and take away what nobody needs, before a storage call of a clone."""
    outcomes = set()

    def empty(storage: MemoryStorage) -> None:
        seeds = partial(next, count(50))
        table = opened(storage, seeds()).table("t")
        table.truncate()
        if table.has_lake:
            tier(table)
        clean(storage, seeds, "t")

    for met in race(RecordedStore(start).copy, clone, empty, share=share):
        is_there = opened(met.store, 90).exists("c")
        assert is_there or met.raised is not None
        if is_there:
            clean(met.store, partial(next, count(200)), "t", "c")
            rows = ids(opened(met.store, 91).table("c"))
            assert rows in (ROWS, []), met.op  # the version before, or the one behind
            outcomes.add(rows == ROWS)
    return outcomes


@pytest.mark.sampled(80)
def test_a_clone_is_whole_if_its_source_is_emptied_and_cleaned_meanwhile(start, share):
    others_before_each_call(start, share)


class TestPlantedBugs:
    """Mistakes that the checks here have to find."""

    def test_without_one_the_clone_is_there(self, start):
        storage = RecordedStore(start).copy()
        opened(storage, 3).clone_table("t", "c")
        assert check(storage, is_told=True)
        self.both_ways(start)

    def found(self, start: MemoryStorage) -> None:
        """Expect that a clone, or the table, is not whole once the other was emptied and cleaned."""
        with pytest.raises((StreamhouseError, AssertionError)):
            self.both_ways(start)

    def both_ways(self, start: MemoryStorage) -> None:
        seeds = partial(next, count(300))
        for emptied, other in (("t", "c"), ("c", "t")):
            storage = RecordedStore(start).copy()
            opened(storage, 3).clone_table("t", "c")
            table = opened(storage, seeds()).table(emptied)
            table.truncate()
            if table.has_lake:
                tier(table)
            clean(storage, seeds, "t", "c")
            assert ids(opened(storage, seeds()).table(other)) == ROWS
            opened(storage, seeds()).drop_table("t")
            clean(storage, seeds, "c")
            if emptied == "t":
                assert ids(opened(storage, seeds()).table("c")) == ROWS

    def test_the_other_table_keeps_nothing(self, tiered, monkeypatch):
        monkeypatch.setattr(cloning, "retain_version", lambda *_: None)
        self.found(tiered)

    def test_a_clone_that_takes_the_files_for_its_own(self, tiered, monkeypatch):
        monkeypatch.setattr(lake_cloning, "shared_locations", lambda _: ())
        self.found(tiered)

    def test_a_table_that_is_buried_before_its_clones(self, tiered, monkeypatch):
        monkeypatch.setattr(dropped_tables, "list_live_clones", lambda *_: [])
        self.found(tiered)

    def test_a_tag_that_goes_before_the_clone(self, tiered, monkeypatch):
        monkeypatch.setattr(branches, "_is_buried", lambda *_: True)
        self.found(tiered)
