"""Followers under a fault at every storage call: no row is lost, and only an uncommitted batch is repeated."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from faults.faulty_storage import Crash, Fault, FaultyStorage
from faults.sim import sim_world
from streamhouse_spark import StreamhouseError, Table, Warehouse
from streamhouse_spark.read import async_tail, follow
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

SOURCE, SINK, APP = "s.events", "s.copy", "app"
ROWS = 6
PROPERTIES = {"table.datalake.enabled": "false", "bucket.key": "id"}
Life = Callable[[Storage, int, list[list[int]]], None]


@pytest.fixture(autouse=True)
def one_commit_a_batch(monkeypatch):
    for module in (follow, async_tail):
        monkeypatch.setattr(module, "BATCH_BYTES", 1)


def new_store() -> MemoryStorage:
    store = MemoryStorage(sim_world(0))
    warehouse = Warehouse("wh", storage=store, world=sim_world(1))
    source = warehouse.create_table(SOURCE, "id BIGINT", buckets=2, properties=PROPERTIES)
    warehouse.create_table(SINK, "id BIGINT", properties={"table.datalake.enabled": "false"})
    for number in range(ROWS):
        source.append([{"id": number}])
    return store


def open_table(storage: Storage, seed: int, name: str) -> Table:
    return Warehouse("wh", storage=storage, world=sim_world(seed)).table(name)


def process(storage: Storage, seed: int, processed: list[list[int]]) -> None:
    """Process all rows as a job does: what it has processed outlives it."""
    follower = open_table(storage, seed, SOURCE).follow(APP, available_now=True)
    processed.extend(batch["id"].to_pylist() for batch in follower)


def process_in_loop(storage: Storage, seed: int, processed: list[list[int]]) -> None:
    """Process all rows in an event loop."""

    async def run() -> None:
        async for batch in open_table(storage, seed, SOURCE).aio.follow(APP, available_now=True):
            processed.append(batch["id"].to_pylist())  # noqa: PERF401 - it outlives an error

    asyncio.run(run())


def copy(storage: Storage, seed: int, processed: list[list[int]]) -> None:
    """Copy all rows to a table, with its transaction."""
    sink = open_table(storage, seed, SINK)
    with open_table(storage, seed, SOURCE).follow(APP, sink=sink, available_now=True) as follower:
        for batch in follower:
            sink.append(batch, transaction=follower.transaction)
            processed.append(batch["id"].to_pylist())


def calls(life: Life) -> list[int]:
    probe = FaultyStorage(new_store())
    life(probe, 2, [])
    return [number for number, _, _ in probe.trace]


def first_life(life: Life, storage: FaultyStorage) -> list[list[int]]:
    processed: list[list[int]] = []
    try:
        life(storage, 2, processed)
    except (Crash, StreamhouseError):
        pass
    return processed


@pytest.mark.parametrize("life", [process, process_in_loop])
@pytest.mark.parametrize("fault", list(Fault))
def test_a_restarted_follower_repeats_only_the_batch_that_was_not_committed(fault, life):
    numbers = calls(life)
    assert len(numbers) > 20
    outcomes: Counter[int] = Counter()
    for number in numbers:
        storage = FaultyStorage(new_store(), {number: fault})
        before = first_life(life, storage)
        assert storage.faults_fired
        after: list[list[int]] = []
        process(storage.inner, 3, after)
        rows = [row for batch in [*before, *after] for row in batch]
        repeated = Counter(rows) - Counter(range(ROWS))
        assert set(rows) == set(range(ROWS)), f"rows are missing after {fault} at call {number}"
        assert sorted(repeated.elements()) in ([], sorted(before[-1]) if before else []), f"{fault} at call {number}"
        outcomes[len(repeated)] += 1
    assert outcomes[0], "some faults hit calls between batches"


@pytest.mark.parametrize("fault", list(Fault))
def test_a_sink_has_each_row_once(fault):
    for number in calls(copy):
        storage = FaultyStorage(new_store(), {number: fault})
        first_life(copy, storage)
        follow.BATCH_BYTES = 1 << 20  # the next process cuts other batches
        copy(storage.inner, 3, [])
        follow.BATCH_BYTES = 1
        rows = open_table(storage.inner, 9, SINK).to_arrow()["id"].to_pylist()
        assert sorted(rows) == list(range(ROWS)), f"{fault} at call {number}"


def test_the_position_before_the_body_has_finished_would_lose_rows(monkeypatch):
    """The planted bug: a commit before the loop body."""
    original = follow.Follower._next

    def commit_first(self):
        batch = original(self)
        self.commit()
        return batch

    monkeypatch.setattr(follow.Follower, "_next", commit_first)
    with pytest.raises(AssertionError, match="rows are missing"):
        test_a_restarted_follower_repeats_only_the_batch_that_was_not_committed(Fault.CRASH_AFTER, process)
