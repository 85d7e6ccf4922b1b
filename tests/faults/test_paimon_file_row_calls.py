"""A fault at every storage call of a deletion of rows without offsets in a Paimon lake, and of the round that tiers it,
also behind pypaimon's rewrite: all of them are gone, or none, and no other.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from faults.faulty_storage import WRITES, Fault, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import sim_world
from interop.foreign_paimon import NAME, adopted, ids, paimon, rewritten, row, tier
from streamhouse_spark.core.model import Transaction
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.sampled(9)
FEW = (Fault.CRASH_AFTER, Fault.LOST_ACK)
BEFORE = [1, 1, 2, 3, 3, 4, 5, 6]
AFTER = [1, 1, 2, 4, 5]


def opened(storage: Storage, seed: int) -> Table:
    return Warehouse("wh", storage=storage, world=sim_world(seed)).table(NAME)


@pytest.fixture
def made():
    storage = MemoryStorage(sim_world())
    table = adopted(storage, sim_world(1), BEFORE[:-1])
    table.append([row(6)])
    return storage


def copies_of(made: MemoryStorage) -> Callable[[], Storage]:
    """The same store again and again: pypaimon's files have names of their own each time they are written."""

    def copied() -> Storage:
        storage = MemoryStorage(sim_world())
        storage._objects = dict(made._objects)
        return storage

    return copied


def delete(storage: Storage, seed: int) -> None:
    opened(storage, seed).delete(where=[("id", "in", [3, 6])], transaction=Transaction("clean", 1))


def in_lake(made: MemoryStorage, storage: Storage) -> list[int]:
    """Read the lake as pypaimon does, in one folder for all attempts."""
    seen = paimon(made)
    found = sorted(one["id"] for one in seen.on(storage).read(NAME))
    seen.on(made)
    return found


def test_a_statement(made, share):
    with one_thing_at_a_time():
        for attempt in sweep(copies_of(made), lambda storage: delete(storage, 3), share=share, faults=tuple(Fault)):
            found = ids(opened(attempt.store, 4).to_arrow())
            assert found in ((BEFORE, AFTER) if attempt.raised else (AFTER,)), attempt
            delete(attempt.store, 5)
            assert ids(opened(attempt.store, 6).to_arrow()) == AFTER, attempt
            tier(opened(attempt.store, 7))
            assert in_lake(made, attempt.store) == AFTER, attempt


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_a_round(made, is_rewritten, share):
    delete(made, 2)
    if is_rewritten:
        rewritten(made)
    whole = WRITES - {"create.write", "create.open"}
    with one_thing_at_a_time():
        for attempt in sweep(
            copies_of(made), lambda storage: tier(opened(storage, 3)), share=share, methods=whole, faults=FEW
        ):
            assert ids(opened(attempt.store, 4).to_arrow()) == AFTER, attempt
            tier(opened(attempt.store, 5))
            table = opened(attempt.store, 6)
            assert ids(table.to_arrow()) == AFTER, f"{attempt}: after another round"
            assert in_lake(made, attempt.store) == AFTER, attempt
            assert not any(deletion.files for deletion in table.refresh().deletions), attempt
