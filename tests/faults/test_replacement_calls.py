"""A fault at every storage call of a replacement of a part, with and without a primary key: all of it happened once, or
nothing.
"""

from __future__ import annotations

import pytest

from faults.faulty_storage import sweep
from faults.sim import sim_world
from kit.rows import ids
from streamhouse_spark import Table, Transaction, Warehouse
from streamhouse_spark.kv import change_staging
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log import record
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = pytest.mark.sampled(3)
HOT = {"table.datalake.enabled": "false"}
BEFORE = list(range(12))
AFTER = sorted([*(n for n in BEFORE if n % 3 != 1), 1, 31, 34])


def rows(*numbers: int) -> list[dict[str, int]]:
    return [{"id": n, "third": n % 3} for n in numbers]


def new_store(*, keyed: bool) -> Storage:
    storage = MemoryStorage(sim_world())
    key = {"primary_key": ["id", "third"]} if keyed else {}
    warehouse = Warehouse("wh", storage=storage, world=sim_world(1))
    table = warehouse.create_table("t", "id INT, third INT", partition_by=["third"], buckets=2, properties=HOT, **key)
    for first in range(0, 12, 4):
        add(table, *range(first, first + 4))
    return storage


def add(table: Table, *numbers: int) -> None:
    (table.upsert if table.state.primary_key else table.append)(rows(*numbers))


@pytest.mark.parametrize("small", [True, False], ids=["in the record", "as objects"])
@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_a_replacement_of_a_part_happens_once_despite_any_fault(on_host, monkeypatch, share, keyed, small):
    if not small:
        monkeypatch.setattr(change_staging, "INLINE_BYTES_MAX", 0)
        monkeypatch.setattr(record, "RECORD_BYTES_MAX", 300)

    def replace(table: Table) -> None:
        table.overwrite(rows(1, 31, 34), where=[("third", "=", 1)], transaction=Transaction("job", 1))

    close_tablets()
    for attempt in sweep(
        new_store(keyed=keyed), lambda storage: replace(on_host(storage, 3)), share=share, each_state_once=True
    ):
        found = ids(on_host(attempt.store, 4))
        assert found in ((BEFORE, AFTER) if attempt.raised else (AFTER,)), attempt
        replace(on_host(attempt.store, 5))
        add(on_host(attempt.store, 6), 37)
        replace(on_host(attempt.store, 7))
        assert ids(on_host(attempt.store, 8)) == [*AFTER, 37], f"{attempt}: it did not happen once"
