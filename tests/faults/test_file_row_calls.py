"""A fault at every storage call of a deletion of rows without offsets, and of the round that tiers it, also behind
another engine's rewrite: all of them are gone, or none, and no other.
"""

from __future__ import annotations

import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import WRITES, Fault, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import sim_world
from interop.foreign_engines import ENGINES
from interop.foreign_iceberg import NAME, row
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import Table, Transaction, Warehouse
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

pytestmark = pytest.mark.sampled(9)
FEW = (Fault.CRASH_AFTER, Fault.LOST_ACK)
BEFORE = [1, 1, 2, 3, 3, 4, 5, 6]
AFTER = [1, 1, 2, 4, 5]


def opened(storage: Storage, seed: int) -> Table:
    clear_manifest_cache()
    return Warehouse("wh", storage=storage, world=sim_world(seed)).table(NAME)


@pytest.fixture(params=ENGINES)
def engine(request):
    """Return the engine at the store that each attempt copies: an adopted table, and one row in the log."""
    engine = ENGINES[request.param](MemoryStorage(sim_world()), sim_world(1))
    engine.adopted(BEFORE[:-1]).append([row(6)])
    return engine


def delete(storage: Storage, seed: int) -> None:
    opened(storage, seed).delete(where=[("id", "in", [3, 6])], transaction=Transaction("clean", 1))


def test_a_statement_deletes_all_of_its_rows_or_none(engine, share):
    with one_thing_at_a_time():
        for attempt in sweep(engine.storage, lambda storage: delete(storage, 3), share=share, each_state_once=True):
            rows = ids(opened(attempt.store, 4).to_arrow())
            assert rows in ((BEFORE, AFTER) if attempt.raised else (AFTER,)), attempt
            delete(attempt.store, 5)
            assert ids(opened(attempt.store, 6).to_arrow()) == AFTER, attempt
            tier(opened(attempt.store, 7))
            assert engine.ids_in(attempt.store) == AFTER, attempt


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_a_round_brings_no_deleted_row_back(engine, is_rewritten, share):
    delete(engine.storage, 2)
    if is_rewritten:
        engine.rewrite()
    whole = WRITES - {"create.write", "create.open"}
    with one_thing_at_a_time():
        tier_again = lambda storage: tier(opened(storage, 3))  # noqa: E731
        for attempt in sweep(engine.storage, tier_again, share=share, methods=whole, faults=FEW, each_state_once=True):
            assert ids(opened(attempt.store, 4).to_arrow()) == AFTER, attempt
            tier(opened(attempt.store, 5))
            table = opened(attempt.store, 6)
            assert ids(table.to_arrow()) == AFTER, f"{attempt}: after another round"
            assert engine.ids_in(attempt.store) == AFTER, attempt
            assert not any(deletion.files for deletion in table.refresh().deletions), attempt
