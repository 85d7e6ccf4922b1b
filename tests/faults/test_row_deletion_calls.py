"""A fault at every storage call of a deletion of rows, and of the round that tiers it: all of them are gone, or none,
and no other.
"""

from __future__ import annotations

import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import WRITES, Fault, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import sim_world
from kit.row_replacement import replace_rows
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import Table, Transaction, Warehouse
from streamhouse_spark.log import record
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = pytest.mark.sampled(3)
HOT = {"table.datalake.enabled": "false"}
FEW = (Fault.CRASH_AFTER, Fault.LOST_ACK)
BEFORE, AFTER = list(range(30)), [n for n in range(30) if n % 3]


def opened(storage: Storage, seed: int) -> Table:
    return Warehouse("wh", storage=storage, world=sim_world(seed)).table("t")


def new_store() -> MemoryStorage:
    storage = MemoryStorage(sim_world())
    warehouse = Warehouse("wh", storage=storage, world=sim_world(1))
    table = warehouse.create_table("t", "id INT, third INT", buckets=2, properties=HOT)
    for first in range(0, 30, 6):
        table.append([{"id": n, "third": n % 3} for n in range(first, first + 6)])
    return storage


def delete(storage: Storage, seed: int) -> None:
    transaction = Transaction("clean", 1)
    opened(storage, seed).delete(where=[("third", "=", 0)], transaction=transaction)


@pytest.mark.parametrize("in_manifest", [False, True])
def test_a_failed_deletion_deleted_all_its_rows_or_none(in_manifest, monkeypatch, share):
    if in_manifest:
        monkeypatch.setattr(record, "RECORD_BYTES_MAX", 300)
    for attempt in sweep(new_store(), lambda storage: delete(storage, 3), share=share, each_state_once=True):
        found = ids(opened(attempt.store, 4))
        assert found in ((BEFORE, AFTER) if attempt.raised else (AFTER,)), attempt
        delete(attempt.store, 5)
        opened(attempt.store, 6).append([{"id": 30, "third": 0}])
        delete(attempt.store, 7)
        assert ids(opened(attempt.store, 8)) == [*AFTER, 30], f"{attempt}: it did not happen once"
        assert opened(attempt.store, 9).state.num_rows == len(AFTER) + 1


@pytest.mark.parametrize("in_objects", [False, True])
def test_rows_are_replaced_together_or_not_at_all(in_objects, share):
    def replace(storage: Storage, seed: int) -> None:
        table, limit = opened(storage, seed), 0 if in_objects else 1 << 18
        replace_rows(table, lambda row: row["third"] == 0, lambda row: {**row, "third": 3}, inline_bytes_max=limit)
        is_new = table.state.version > 6
        assert not is_new or any(s.uuid for log in table.state.buckets.values() for s in log.segments) == in_objects

    after = [(n, n % 3 or 3) for n in BEFORE]
    before = [(n, n % 3) for n in BEFORE]
    for attempt in sweep(new_store(), lambda storage: replace(storage, 3), share=share, each_state_once=True):
        found = sorted((row["id"], row["third"]) for row in opened(attempt.store, 4).to_arrow().to_pylist())
        assert found in ((before, after) if attempt.raised else (after,)), attempt
        replace(attempt.store, 5)
        found = sorted((row["id"], row["third"]) for row in opened(attempt.store, 6).to_arrow().to_pylist())
        assert found == after, f"{attempt}: it did not happen once"


@pytest.mark.parametrize(
    ("lake", "has_new_rows"),
    [
        ("iceberg", False),
        ("iceberg", True),
        pytest.param("paimon", False, marks=pytest.mark.long),
        ("paimon", True),
    ],
)
def test_a_failed_round_brings_back_no_deleted_row(lake, has_new_rows, share):
    start = MemoryStorage(sim_world())
    table = Warehouse("wh", storage=start, world=sim_world(1)).create_table(
        "t", "id INT, third INT", properties={"table.datalake.format": lake}
    )
    table.append([{"id": n, "third": n % 3} for n in range(18)])
    tier(table)
    if has_new_rows:
        table.append([{"id": n, "third": n % 3} for n in range(18, 30)])
    delete(start, 2)

    def round_of(storage: Storage) -> None:
        clear_manifest_cache()
        tier(opened(storage, 3))

    after = [n for n in AFTER if has_new_rows or n < 18]
    whole = WRITES - {"create.write", "create.open"}
    with one_thing_at_a_time():
        for attempt in sweep(start, round_of, share=share, methods=whole, faults=FEW, each_state_once=True):
            clear_manifest_cache()
            assert ids(opened(attempt.store, 4)) == after, attempt
            tier(opened(attempt.store, 5))
            table = opened(attempt.store, 6)
            assert ids(table) == after, f"{attempt}: after another round"
            assert sorted(table.lake.to_arrow()["id"].to_pylist()) == after, attempt
            assert table.state.num_rows == len(after), attempt


def test_a_failed_purge_keeps_every_live_row(share):
    start = MemoryStorage(sim_world())
    table = Warehouse("wh", storage=start, world=sim_world(1)).create_table("t", "id INT, third INT")
    table.append([{"id": n, "third": n % 3} for n in range(18)])
    tier(table)
    table.delete(where=[("id", "in", [1, 2, 17])])
    tier(table)

    def purge(storage: Storage, seed: int) -> int:
        clear_manifest_cache()
        return opened(storage, seed).lake.compact(purge=True).purged_rows

    left = [n for n in range(18) if n not in (1, 2, 17)]
    whole = WRITES - {"create.write", "create.open"}
    with one_thing_at_a_time():
        for attempt in sweep(
            start, lambda storage: purge(storage, 3), share=share, methods=whole, faults=FEW, each_state_once=True
        ):
            clear_manifest_cache()
            assert ids(opened(attempt.store, 4)) == left, attempt
            again = purge(attempt.store, 5)
            assert again == 0 or (again == 3 and attempt.raised), attempt
            table = opened(attempt.store, 6)
            table.delete(where=[("id", "=", 16)])
            tier(table)
            clear_manifest_cache()
            assert ids(table) == sorted(table.lake.to_arrow()["id"].to_pylist()) == left[:-1], attempt
