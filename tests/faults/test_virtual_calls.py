"""A fault at every storage call that makes a document, or deletes what former ones needed: the next one is right."""

from __future__ import annotations

import itertools

import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import Fault, FaultyStorage, clock_of, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import sim_world
from kit.iceberg_documents import rows_of
from kit.tables import tier
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.serve.iceberg import served_tables
from streamhouse_spark.serve.iceberg.served_tables import ServedMetadata, ServedTables
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = pytest.mark.sampled(3)
FEW = (Fault.CRASH_AFTER, Fault.LOST_ACK)
GRACE_MS = 600_000


@pytest.fixture(autouse=True)
def caches(monkeypatch, tmp_path):
    """Give each attempt an empty cache of rows by key: all attempts have tables with the same uuid."""
    numbers = itertools.count()

    def renew() -> None:
        close_tablets()
        monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / f"cache-{next(numbers)}"))

    renew()
    yield renew
    close_tablets()


def opened(storage: Storage, seed: int) -> Warehouse:
    return Warehouse("wh", storage=storage, world=sim_world(seed, clock_of(storage)))


def new_store(*, keyed: bool) -> MemoryStorage:
    storage = MemoryStorage(sim_world())
    warehouse = opened(storage, 1)
    columns = "id BIGINT NOT NULL, n INT" if keyed else "id BIGINT, n INT"
    table = warehouse.create_table("s.t", columns, primary_key=["id"] if keyed else [], buckets=2)
    write(table, range(6), 0)
    tier(table)
    write(table, range(4, 9), 1)
    if not keyed:
        table.delete(where=[("id", "in", [0, 8])])
    return storage


def write(table: Table, ids: range, n: int) -> None:
    rows = [{"id": i, "n": n} for i in ids]
    table.upsert(rows) if table.state.primary_key else table.append(rows)


def made(storage: Storage, seed: int) -> ServedMetadata:
    return ServedTables(opened(storage, seed), grace_ms=GRACE_MS).table("s.t").latest_metadata()


def shown(storage: Storage, seed: int) -> list[tuple[int, int]]:
    return found_in(storage, made(storage, seed))


def found_in(storage: Storage, document: ServedMetadata) -> list[tuple[int, int]]:
    return sorted((row["id"], row["n"]) for row in rows_of(storage, document))


def of_table(storage: Storage) -> list[tuple[int, int]]:
    return sorted((row["id"], row["n"]) for row in opened(storage, 90).table("s.t").to_arrow().to_pylist())


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_a_document_is_made(keyed, caches, share, monkeypatch):
    monkeypatch.setattr(served_tables, "run_tasks_in_threads", run_tasks_locally)

    start = new_store(keyed=keyed)
    expected = of_table(start)

    def make(storage: FaultyStorage) -> None:
        caches()
        clear_manifest_cache()
        with one_thing_at_a_time():
            document = made(storage, 3)
        assert found_in(storage.inner, document) == expected

    for attempt in sweep(start, make, share=share, faults=FEW, each_state_once=True):
        clear_manifest_cache()
        before = opened(attempt.store, 4).table("s.t").refresh().version
        assert shown(attempt.store, 5) == expected, attempt
        table = opened(attempt.store, 6).table("s.t")
        assert table.refresh().version == before, f"{attempt}: the log has a record of it"
        write(table, range(20, 22), 2)
        tier(table)
        write(table, range(30, 31), 3)
        assert shown(attempt.store, 7) == of_table(attempt.store), attempt


def test_former_documents_are_deleted(share):
    start = new_store(keyed=False)
    shown(start, 3)
    tier(opened(start, 4).table("s.t"))
    shown(start, 5)
    clock_of(start).advance(2 * GRACE_MS)

    def clean(storage: Storage) -> None:
        ServedTables(opened(storage, 6), grace_ms=GRACE_MS).clean()

    for attempt in sweep(start, clean, share=share, faults=FEW, each_state_once=True):
        clear_manifest_cache()
        assert shown(attempt.store, 7) == of_table(attempt.store), attempt
        clean(attempt.store)
        assert len(attempt.store.list_names("lake/.virtual/")) == 1, attempt
