"""Cancelled calls of the asyncio interface, at every storage call and step of the loop: whole or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from faults.faulty_storage import FaultyStorage
from faults.sim import sim_world
from streamhouse_spark import Table, Transaction, Warehouse
from streamhouse_spark.core import async_calls
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

NAME, APP = "s.t", "app"
ROWS = [{"id": number, "text": "x" * 50_000} for number in range(8)]
TRANSACTION = Transaction("writer", 1)


def new_store() -> MemoryStorage:
    store = MemoryStorage(sim_world(0))
    properties = {"table.datalake.enabled": "false", "bucket.key": "id"}
    table = Warehouse("wh", storage=store, world=sim_world(1)).create_table(
        NAME, "id BIGINT, text STRING", buckets=2, properties=properties
    )
    table.append([{"id": -1}])
    return store


def open_table(storage: Storage, seed: int) -> Table:
    return Warehouse("wh", storage=storage, world=sim_world(seed)).table(NAME)


def stored(store: Storage) -> list[int]:
    return sorted(open_table(store, 9).to_arrow()["id"].to_pylist())


def finish_calls() -> None:
    """Wait until the threads have finished with calls that were cancelled: each meets all others once."""
    barrier = threading.Barrier(async_calls.THREADS_MAX)
    for done in [async_calls._POOL.executor.submit(barrier.wait) for _ in range(async_calls.THREADS_MAX)]:
        done.result()


class CancellingStorage(FaultyStorage):
    """Cancels a task at a storage call, and goes on with the call only after the task has ended."""

    def __init__(self, inner: Storage, at: int) -> None:
        super().__init__(inner, self._cancel)
        self.at = at
        self.cancel: Callable[[], None] | None = None
        self.has_ended = threading.Event()
        self.count = 0

    def _cancel(self, _number: int, _method: str, _key: str) -> None:
        if self.cancel is None:
            return
        self.count += 1
        if self.count == self.at + 1:
            self.cancel()
            self.has_ended.wait()


def cancelled_at_call(at: int, transaction: Transaction | None) -> tuple[bool, list[int]]:
    """Append while the call is cancelled at its storage call ``at``; return whether it was, and the stored rows."""
    storage = CancellingStorage(new_store(), at)
    table = open_table(storage, 2)
    table.refresh()

    async def work() -> bool:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(table.aio.append(ROWS, transaction=transaction))
        task.add_done_callback(lambda _: storage.has_ended.set())
        storage.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait([task])
        storage.cancel = None
        return task.cancelled()

    was_cancelled = asyncio.run(work())
    finish_calls()
    if transaction is not None:  # the way to find out: repeat it
        asyncio.run(table.aio.append(ROWS, transaction=transaction))
    asyncio.run(table.aio.append([{"id": 100}]))
    return was_cancelled, stored(storage.inner)


@pytest.mark.parametrize("transaction", [None, TRANSACTION])
def test_an_append_that_is_cancelled_at_a_storage_call_is_whole_or_absent(transaction):
    whole, absent = [-1, *range(8), 100], [-1, 100]
    for at in range(100):
        was_cancelled, rows = cancelled_at_call(at, transaction)
        assert rows in (whole, absent), f"cancelled at call {at}"
        if not was_cancelled:
            break
        assert rows == whole, "a thread that has begun with a write completes it"
    assert at >= 3


@pytest.mark.parametrize("transaction", [None, TRANSACTION])
def test_an_append_that_is_cancelled_at_a_step_of_the_loop_is_whole_or_absent(transaction):
    outcomes = set()
    for steps in range(12):
        store = new_store()
        table = open_table(store, 2)

        async def work(table=table, steps=steps) -> bool:
            task = asyncio.ensure_future(table.aio.append(ROWS, transaction=transaction))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            return task.cancelled()

        was_cancelled = asyncio.run(work())
        finish_calls()
        asyncio.run(table.aio.append([{"id": 100}]))
        rows = stored(store)
        assert rows in ([-1, *range(8), 100], [-1, 100])
        outcomes.add((was_cancelled, len(rows)))
        if transaction is not None:  # the way to find out: repeat it
            asyncio.run(table.aio.append(ROWS, transaction=transaction))
            assert stored(store) == [-1, *range(8), 100]
    assert (True, 2) in outcomes


def test_a_follower_that_is_cancelled_at_any_storage_call_loses_no_row():
    for at in range(100):
        storage = CancellingStorage(new_store(), at)
        table = open_table(storage, 2)
        seen: list[int] = []

        async def work(storage=storage, table=table, seen=seen) -> bool:
            loop = asyncio.get_running_loop()

            async def process() -> None:
                async for batch in table.aio.follow(APP, available_now=True):
                    seen.extend(batch["id"].to_pylist())

            task = asyncio.ensure_future(process())
            task.add_done_callback(lambda _: storage.has_ended.set())
            storage.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            await asyncio.wait([task])
            storage.cancel = None
            return task.cancelled()

        was_cancelled = asyncio.run(work())
        finish_calls()
        for batch in open_table(storage.inner, 3).follow(APP, available_now=True):
            seen += batch["id"].to_pylist()
        assert seen in ([-1], [-1, -1]), f"cancelled at call {at}"
        if not was_cancelled:
            break
    assert at > 5
