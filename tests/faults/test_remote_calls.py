"""A fault at every call of verbs that ask a store side by side, where its requests take long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pytest

from faults.faulty_storage import WRITES, Fault, FaultyStorage, clock_of, sweep
from faults.sim import sim_world
from kit.tables import tier
from streamhouse_spark import StreamhouseError, Warehouse
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.prefetch import SupportsBatchReads
from streamhouse_spark.warehouse.table_batch import open_all

pytestmark = pytest.mark.sampled(12)
FORMATS = ["iceberg", pytest.param("paimon", marks=pytest.mark.paimon)]


class Remote:
    """A faulty store of which many objects can be asked for at once. It answers one after the other."""

    def __init__(self, inner: FaultyStorage) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def read_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self._found(key) for key in keys]

    def _found(self, key: str) -> bytes | None:
        try:
            return self.inner.read(key)
        except ObjectNotFoundError:
            return None


class OneByOne:
    """A pool without threads."""

    def __init__(self, _threads: int) -> None:
        self.map = map

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def one_thing_after_the_other(monkeypatch):
    """The calls of a run have an order, so that a fault can be placed at each."""
    monkeypatch.setattr("streamhouse_spark.core.concurrency.ThreadPoolExecutor", OneByOne)


def opened(storage: Storage, seed: int) -> Warehouse:
    return Warehouse("wh", storage=storage, world=sim_world(seed, clock_of(storage)))


def remote(storage: Storage, seed: int) -> Warehouse:
    found = Remote(storage)
    assert isinstance(found, SupportsBatchReads)
    return opened(found, seed)


def test_a_failed_creation_on_a_slow_store_is_repeatable(share):
    """There is a table or none, and creating it again makes sure of one."""
    create = lambda storage: remote(storage, 1).create_table("s.t", "id BIGINT")  # noqa: E731
    for attempt in sweep(MemoryStorage(sim_world()), create, share=share, each_state_once=True):
        found = remote(attempt.store, 2)
        try:
            names = found.tables()
        except StreamhouseError:
            names = []  # no warehouse yet
        assert names in ([], ["s.t"])
        table = found.create_table("s.t", "id BIGINT", if_not_exists=True)
        table.append([{"id": 1}])
        assert opened(attempt.store, 3).table("s.t").to_arrow().num_rows == 1
        assert attempt.raised is not None or names == ["s.t"]


@pytest.mark.parametrize("lake_format", FORMATS)
def test_failed_maintenance_on_a_slow_store_loses_no_row(lake_format, share):
    """No row goes, whatever fails, and the next maintenance goes on."""

    def new_store() -> Storage:
        """Create the table for each attempt: the process prefetches objects of the latest snapshot that it saw."""
        storage = MemoryStorage(sim_world())
        table = opened(storage, 1).create_table("s.t", "id BIGINT", properties={"table.datalake.format": lake_format})
        for number in range(6):
            table.append([{"id": number}])
            tier(table)
        clock_of(storage).advance(25 * 3_600_000)
        return storage

    def scenario(storage: FaultyStorage) -> None:
        remote(storage, 2).table("s.t").maintain()

    faults = (Fault.CRASH_AFTER, Fault.ERROR_BEFORE)
    for attempt in sweep(new_store, scenario, faults=faults, methods=WRITES, share=share):
        table = remote(attempt.store, 3).table("s.t")
        assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(6)), attempt
        table.maintain()
        table.append([{"id": 6}])
        tier(table)
        assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(7)), attempt


def test_a_listing_on_a_slow_store_is_whole_or_fails(share):
    """A listing that fails says so; none is short."""

    start = MemoryStorage(sim_world())
    for number in range(3):
        opened(start, 1 + number).create_table(f"s.t{number}", "id BIGINT").append([{"id": 1}])

    def scenario(storage: FaultyStorage) -> None:
        found = open_all(remote(storage, 9))
        assert len(found.tables) + len(found.failed) == 3

    for attempt in sweep(start, scenario, faults=(Fault.ERROR_BEFORE,), share=share):
        assert attempt.raised is None or isinstance(attempt.raised, StreamhouseError)
