"""Several threads share one table object, and several processes' objects one store: every row once, offsets dense."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from faults.checkers import check_all
from faults.faulty_storage import Fault, FaultyStorage
from faults.history import SCHEMA, History
from faults.scenarios import NAME, NO_LAKE
from faults.sim import sim_world
from streamhouse_spark import CommitStateUnknownError, StorageError, Transaction, Warehouse
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows

THREADS = 4
APPENDS = 25


def in_threads(work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def new_table(storage: Storage) -> None:
    properties = {**NO_LAKE, "bucket.key": "id"}
    Warehouse(storage.url, storage=storage).create_table(NAME, SCHEMA, buckets=2, properties=properties)


@pytest.mark.parametrize("shared", [True, False], ids=["one object", "an object each"])
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_threads_append_read_and_merge(kind, shared, tmp_path):
    storage = MemoryStorage() if kind == "memory" else LocalStorage(str(tmp_path / "wh"), fsync=False)
    new_table(storage)
    tables = [Warehouse(storage.url, storage=storage).table(NAME) for _ in range(1 if shared else THREADS)]
    history = History()
    batches = [[history.new_batch(3, transaction=Transaction(f"app-{n}", i + 1) if i % 3 == 0 else None)
                for i in range(APPENDS)] for n in range(THREADS)]  # fmt: skip

    def work(number: int) -> None:
        table = tables[number % len(tables)]
        before = 0
        for at, batch in enumerate(batches[number]):
            history.append(table, batch)
            if at % 10 == 9:
                rows = table.to_arrow(columns=["id"]).column("id").to_pylist()
                assert len(set(rows)) == len(rows) >= before + 30
                before = len(rows)
                compact_inline_rows(table)

    in_threads(work)
    ledger = check_all(storage, NAME, history)
    assert len(ledger.all_ids()) == 3 * THREADS * APPENDS


def test_threads_of_one_object_meet_lost_answers():
    """Whose record it is, is told by the attempt, whichever thread reads it first."""
    memory = MemoryStorage()
    new_table(memory)
    chance = sim_world(5).ids

    def plan(_: int, method: str, key: str) -> Fault | None:
        if method != "put_if_absent" or "/commits/" not in key:
            return None
        faults = (Fault.LOST_ACK, Fault.OWN_EXISTS, Fault.ERROR_BEFORE, None, None)
        return faults[int(chance.jitter() * len(faults))]

    storage = FaultyStorage(memory, plan)
    table = Warehouse(storage.url, storage=storage).table(NAME)
    history = History()
    appends = APPENDS * THREADS  # as many records as ever, also where all of them always share one
    batches = [[history.new_batch(2) for _ in range(appends)] for _ in range(THREADS)]

    def work(number: int) -> None:
        for batch in batches[number]:
            try:
                history.append(table, batch)
            except (StorageError, CommitStateUnknownError):
                continue

    in_threads(work)
    assert len(storage.faults_fired) > 50
    check_all(memory, NAME, history)
