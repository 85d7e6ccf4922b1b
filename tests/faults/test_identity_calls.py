"""A fault, or another writer, at every storage call of an append that takes numbers: no number is given twice."""

from __future__ import annotations

import itertools
import os

import pytest

from faults.faulty_storage import Crash, FaultyStorage, sweep
from faults.sim import SimClock, sim_world
from streamhouse_spark import CommitConflictError, StreamhouseError, Table, Transaction, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log import identity_allocation
from streamhouse_spark.log.actions import Append
from streamhouse_spark.log.identity_allocation import IdentityRanges
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

HOT = {"table.datalake.enabled": "false", "table.identity.id": "ALWAYS"}


CACHES = itertools.count()


def opened(storage: Storage, seed: int) -> Table:
    new_cache()
    return Warehouse("wh", storage=storage, world=World(SimClock(), sim_world(seed).ids)).table("t")


def new_cache() -> None:
    """Go on as a new host, with an empty cache of rows by key."""
    close_tablets()
    cache = os.environ["STREAMHOUSE_CACHE_DIR"].partition("-host-")[0]
    os.environ["STREAMHOUSE_CACHE_DIR"] = f"{cache}-host-{next(CACHES)}"


def new_store() -> MemoryStorage:
    world = sim_world(0)
    storage = MemoryStorage(world)
    table = Warehouse("wh", storage=storage, world=world).create_table("t", "id BIGINT, v INT", properties=HOT)
    table.append([{"v": v} for v in range(3)])
    return storage


def keyed_store() -> MemoryStorage:
    world = sim_world(0)
    storage = MemoryStorage(world)
    new_cache()
    warehouse = Warehouse("wh", storage=storage, world=world)
    table = warehouse.create_table("t", "id BIGINT, v INT NOT NULL", primary_key=["v"], properties=HOT)
    table.upsert([{"v": v} for v in range(3)])
    return storage


def appended(storage: Storage) -> None:
    table = opened(storage, 3)
    for v in range(10, 13):
        table.append([{"v": v}, {"v": v}])


def upserted(storage: Storage) -> None:
    table = opened(storage, 3)
    for v in range(10, 13):
        table.upsert([{"v": v}, {"v": v + 10}])


def require_own_numbers(table: Table) -> list[tuple[int, int]]:
    found = [(row["v"], row["id"]) for row in table.to_arrow().to_pylist()]
    given = [number for _, number in found]
    assert None not in given
    assert len(set(given)) == len(given), found
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("make", "work"), [(new_store, appended), (keyed_store, upserted)], ids=["log", "by key"])
def test_a_writer_that_dies_anywhere_leaves_gaps_alone(share, own_cache, make, work):
    for attempt in sweep(make(), work, share=share, each_state_once=True):
        before = require_own_numbers(opened(attempt.store, 4))
        if not attempt.raised:
            assert len(before) == 9, attempt
        work(attempt.store)
        opened(attempt.store, 5)
        assert len(require_own_numbers(opened(attempt.store, 6))) == (9 if work is upserted else len(before) + 6), (
            attempt
        )


def met_by_another(at: int, writes: int) -> tuple[list[tuple[int, int]], int]:
    """Append while another process appends before the storage call ``at``. Returns the rows, and the calls."""
    store = new_store()
    other = opened(store, 7)

    def plan(number: int, _method: str, _key: str) -> None:
        if number == at:
            for v in range(100, 100 + writes):
                other.append([{"v": v}])

    storage = FaultyStorage(store, plan)
    try:
        appended(storage)
    except (StreamhouseError, Crash) as error:
        raise AssertionError(f"call {at}: {error}") from error
    return require_own_numbers(opened(store, 8)), len(storage.trace)


@pytest.mark.usefixtures("own_cache")
def test_writers_that_meet_anywhere_have_numbers_of_their_own():
    meet_everywhere()


def meet_everywhere():
    found, calls = met_by_another(-1, 0)
    assert len(found) == 9
    for at in range(calls):
        for writes in (1, 3):
            found, _ = met_by_another(at, writes)
            assert len(found) == 9 + writes
            ours = [number for v, number in found if 10 <= v < 100]
            assert ours == sorted(ours)


@pytest.mark.usefixtures("own_cache")
def test_a_writer_that_others_are_always_ahead_of_gives_up(monkeypatch):
    monkeypatch.setattr(identity_allocation, "TRIES_MAX", 3)
    store = new_store()
    counter = itertools.count()

    def plan(_number: int, method: str, key: str) -> None:
        if method == "put_if_absent" and "/commits/" in key and (met := next(counter)) < 3:
            opened(store, 20 + met).append([{"v": v} for v in range(8)])

    table = opened(FaultyStorage(store, plan), 3)
    with pytest.raises(CommitConflictError, match="cannot reserve identity values of column 'id': 3 attempts"):
        table.append([{"v": 1}])
    before = require_own_numbers(opened(store, 8))
    table.append([{"v": 1}])
    assert len(require_own_numbers(opened(store, 9))) == len(before) + 1


@pytest.mark.usefixtures("own_cache")
class TestPlantedBugs:
    """Mistakes that the checks here have to find."""

    def test_a_reused_range_of_another_writer_is_detected(self, monkeypatch):
        def careless(ranges, first, count):
            transaction = Transaction(ranges._identity.app_id, first + count)
            return ranges._log.commit(lambda *_: (Append((), ()),), transaction=transaction).duplicate_of is None

        monkeypatch.setattr(IdentityRanges, "_commit", careless)
        with pytest.raises(AssertionError):
            meet_everywhere()

    def test_a_child_that_goes_on_with_its_parents_numbers(self):
        table = opened(new_store(), 2)
        for v in range(4):
            table.append([{"v": v}])
        numbers = table.log_writer.identity_ranges(table.state)
        ahead = (numbers._first, numbers._end)
        assert ahead[0] < ahead[1]
        numbers.renew_in_child()
        assert numbers.take(1)[0].as_py() > ahead[1]
