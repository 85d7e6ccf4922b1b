"""A fault at every storage call of a deletion of rows: all of them are gone, or none, and no other."""

from __future__ import annotations

import pytest

from faults.faulty_storage import Fault, sweep
from faults.sim import sim_world
from streamhouse_spark.core.model import Transaction
from streamhouse_spark.log.commits import record
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.sampled(3)
HOT = {"table.datalake.enabled": "false"}
BEFORE, AFTER = list(range(30)), [n for n in range(30) if n % 3]


def opened(storage: Storage, seed: int) -> Table:
    return Warehouse("wh", storage=storage, world=sim_world(seed)).table("t")


def new_store() -> Storage:
    storage = MemoryStorage(sim_world())
    warehouse = Warehouse("wh", storage=storage, world=sim_world(1))
    table = warehouse.create_table("t", "id INT, third INT", buckets=2, properties=HOT)
    for first in range(0, 30, 6):
        table.append([{"id": n, "third": n % 3} for n in range(first, first + 6)])
    return storage


def delete(storage: Storage, seed: int) -> None:
    transaction = Transaction("clean", 1)
    opened(storage, seed).delete(where=[("third", "=", 0)], transaction=transaction)


def ids(table: Table) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("in_manifest", [False, True])
def test_it_holds(in_manifest, monkeypatch, share):
    if in_manifest:
        monkeypatch.setattr(record, "RECORD_BYTES_MAX", 300)
    for attempt in sweep(new_store, lambda storage: delete(storage, 3), share=share, faults=tuple(Fault)):
        found = ids(opened(attempt.store, 4))
        assert found in ((BEFORE, AFTER) if attempt.raised else (AFTER,)), attempt
        delete(attempt.store, 5)
        opened(attempt.store, 6).append([{"id": 30, "third": 0}])
        delete(attempt.store, 7)
        assert ids(opened(attempt.store, 8)) == [*AFTER, 30], f"{attempt}: it did not happen once"
        assert opened(attempt.store, 9).state.num_rows == len(AFTER) + 1
