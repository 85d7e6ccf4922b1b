"""A fault at every storage call of a change of the partitioning, and of the round behind it: it happened or not, no row
is lost or doubled, and the lake has one new spec.
"""

from __future__ import annotations

from collections import Counter

import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import Fault, sweep
from faults.sequential import one_thing_at_a_time
from faults.sim import sim_world
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.log.checkpoint import write_checkpoint
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

NEW = ("truncate(4, id)",)


def opened(storage: Storage, seed: int) -> Table:
    clear_manifest_cache()
    return Warehouse("wh", storage=storage, world=sim_world(seed)).table("t")


def rows(*numbers: int) -> list[dict[str, int]]:
    return [{"id": n, "third": n % 3} for n in numbers]


def new_store() -> MemoryStorage:
    storage = MemoryStorage(sim_world())
    table = Warehouse("wh", storage=storage, world=sim_world(1)).create_table(
        "t", "id INT, third INT", partition_by=["third"], buckets=2, properties={"bucket.key": "id"}
    )
    table.append(rows(0, 1, 2, 3))
    tier(table)
    table.append(rows(4, 5, 6))
    return storage


def check(storage: Storage, numbers: list[int]) -> Table:
    """What is there is whole: rows, whatever filter chooses them, and the specs of the lake."""
    table = opened(storage, 4)
    assert ids(table.to_arrow()) == numbers
    for third in range(3):
        assert ids(table.to_arrow(filter=[("third", "=", third)])) == [n for n in numbers if n % 3 == third]
    assert ids(table.to_arrow(filter=[("id", ">=", 4)])) == [n for n in numbers if n >= 4]
    lake = table.open_lake().binding.require()
    names = [[field.name for field in spec.fields] for spec in lake.metadata.partition_specs]
    assert names in ([["third", "id_bucket"]], [["third", "id_bucket"], ["id_trunc", "id_bucket"]])
    return table


@pytest.mark.sampled(9)
def test_a_failed_change_of_partitioning_happened_or_did_not(share):
    outcomes: Counter[tuple[str, bool]] = Counter()
    before = list(range(7))
    for attempt in sweep(
        new_store(), lambda storage: opened(storage, 3).set_partitioning(NEW), share=share, each_state_once=True
    ):
        found = check(attempt.store, before).state
        happened = found.parsed.partitioned_by == NEW
        assert happened or attempt.raised, attempt
        assert len(found.former_partitionings) == happened, attempt
        table = opened(attempt.store, 5)
        table.set_partitioning(NEW)
        assert len(table.state.former_partitionings) == 1, f"{attempt}: it happened twice"
        write_checkpoint(table.storage, table.state)
        table.append(rows(7))
        tier(table)
        check(attempt.store, [*before, 7])
        outcomes[type(attempt.raised).__name__, happened] += 1
    if share.is_rest:
        assert outcomes["Crash", True], outcomes
        assert outcomes["Crash", False], outcomes


@pytest.mark.sampled(61)
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param((Fault.CRASH_AFTER, Fault.LOST_ACK), id="few"),
        pytest.param(tuple(Fault), id="all", marks=pytest.mark.soak),
    ],
)
def test_the_round_after_a_change_of_partitioning_loses_no_row(share, faults):
    start = new_store()
    opened(start, 2).set_partitioning(NEW)
    outcomes: Counter[int] = Counter()
    before = list(range(7))
    with one_thing_at_a_time():
        for attempt in sweep(
            start, lambda storage: tier(opened(storage, 3)), share=share, faults=faults, each_state_once=True
        ):
            lake = check(attempt.store, before).open_lake().binding.require()
            assert lake.metadata.default_spec_id in ((0, 1) if attempt.raised else (1,)), attempt
            outcomes[lake.metadata.default_spec_id] += 1
            table = opened(attempt.store, 5)
            table.append(rows(7))
            tier(table)
            table = check(attempt.store, [*before, 7])
            lake = table.open_lake().binding.require()
            assert (lake.metadata.default_spec_id, len(lake.metadata.partition_specs)) == (1, 2), attempt
            assert ids(lake.scan().to_arrow()) == [*before, 7], attempt
            assert {task.file.spec_id for task in lake.scan().plan_files()} == {0, 1}, attempt
    if share.is_rest:
        assert outcomes[0], outcomes
        assert outcomes[1], outcomes
