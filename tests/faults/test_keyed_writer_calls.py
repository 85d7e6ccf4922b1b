"""Upserts and deletions of a writer: its every storage call meets every fault, and its producer restarts.

Sums tell whether a row was merged twice or never, a table whose last row wins whether their order was kept.
"""

from __future__ import annotations

from contextlib import suppress
from unittest import mock

import numpy as np
import pytest

from faults.faulty_storage import WRITES, Crash, Fault, FaultyStorage
from faults.sim import sim_world
from streamhouse_spark import StreamhouseError, Warehouse
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.log_writer import LogTableWriter
from streamhouse_spark.write.producer.accumulator import COLUMN_BYTES, SEND_BYTES, BatchLimits
from streamhouse_spark.write.producer.sender import Producer
from streamhouse_spark.write.producer.upsert_target import UpsertTarget
from streamhouse_spark.write.producer.writer import Writer, make_sender_thread
from streamhouse_spark.write.upsert import PrimaryKeyTable

SUMS, LAST = "a.sums", "a.last"
SENDS = 6
KEYS = 2
ONE_SEND_BYTES = SEND_BYTES + 2 * COLUMN_BYTES + 64


@pytest.fixture(autouse=True)
def _cache(own_cache):
    pass


def new_store() -> Storage:
    storage = MemoryStorage(sim_world(0))
    wh = Warehouse("wh", storage=storage, world=sim_world(1))
    plain = {"table.datalake.enabled": "false"}
    merged = {"table.merge-engine": "aggregation", "fields.v.agg": "sum"}
    wh.create_table(SUMS, "id BIGINT NOT NULL, v BIGINT", primary_key=["id"], properties=plain | merged)
    wh.create_table(LAST, "id BIGINT NOT NULL, v BIGINT", primary_key=["id"], properties=plain)
    return storage


class Process:
    """One life of the producer, without a thread: a send is a row, and in the table whose last row wins each third one
    deletes a key.
    """

    def __init__(self, storage: Storage, name: str, seed: int, sends_each: int) -> None:
        table = Warehouse("wh", storage=storage, world=sim_world(seed)).table(name)
        log_writer, keyed = LogTableWriter(table), UpsertTarget(PrimaryKeyTable(table))
        limits = BatchLimits(0, sends_each * ONE_SEND_BYTES, 1 << 30)
        self.flusher = make_sender_thread(log_writer, keyed, "source-1", limits, delivery_timeout_ms=60_000)
        self.writer = Writer(self.flusher, log_writer, keyed)
        self.deletes = name == LAST

    def run(self, first: int = 0) -> None:
        for sequence in range(first, SENDS):
            key = sequence % KEYS
            if self.deletes and sequence % 3 == 2:
                self.writer.delete(key, sequence=sequence)
            else:
                self.writer.send({"id": key, "v": 1 << sequence}, sequence=sequence)
        while self.flusher.step():
            pass


def expected(name: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for sequence in range(SENDS):
        key = sequence % KEYS
        if name == LAST and sequence % 3 == 2:
            found.pop(key, None)
        else:
            found[key] = (found.get(key, 0) if name == SUMS else 0) + (1 << sequence)
    return found


def stored(storage: Storage, name: str) -> dict[int, int]:
    rows = Warehouse("wh", storage=storage, world=sim_world(99)).table(name).to_arrow().to_pylist()
    return {row["id"]: row["v"] for row in rows}


def lives(name: str, plan: dict[int, Fault]) -> FaultyStorage:
    """Run one life under a plan of faults, and another that begins where the table says, or repeats everything."""
    for repeats in (False, True):
        storage = FaultyStorage(new_store(), plan)
        with suppress(Crash, StreamhouseError):
            Process(storage, name, 2, sends_each=2).run()
        after = Process(storage.inner, name, 7, sends_each=3)
        last = after.writer.last_sequence
        after.run(0 if last is None or repeats else last + 1)
        assert stored(storage.inner, name) == expected(name)
    return storage


def calls(name: str) -> list[tuple[int, str]]:
    probe = FaultyStorage(new_store())
    Process(probe, name, 2, sends_each=2).run()
    return [(number, method) for number, method, _ in probe.trace]


@pytest.mark.parametrize("name", [pytest.param(SUMS, marks=pytest.mark.long), LAST])
def test_every_fault_at_every_call_leaves_each_change_once_and_in_order(name):
    numbers = calls(name)
    assert len(numbers) > 10
    for number, method in numbers:
        for fault in Fault:
            assert lives(name, {number: fault}).faults_fired
        if method in WRITES:
            lives(name, {number: Fault.LOST_ACK, number + 1: Fault.ERROR_BEFORE})


def test_two_lives_at_once_write_each_change_once():
    store = new_store()
    old = Process(store, SUMS, 2, sends_each=4)
    for sequence in range(4):
        old.writer.send({"id": sequence % KEYS, "v": 1 << sequence}, sequence=sequence)
    Process(store, SUMS, 3, sends_each=2).run()
    while old.flusher.step():
        pass
    assert stored(store, SUMS) == expected(SUMS)


def left_by_an_older_life_that_goes_on() -> dict[int, int]:
    """Return what is stored where the newer life wrote a row of one sequence, and the older one has it and the next."""
    store = new_store()
    old = Process(store, SUMS, 2, sends_each=2)
    for sequence in range(2):
        old.writer.send({"id": sequence % KEYS, "v": 1 << sequence}, sequence=sequence)
    new = Process(store, SUMS, 3, sends_each=1)
    new.writer.send({"id": 0, "v": 1}, sequence=0)
    new.flusher.step()
    while old.flusher.step():
        pass
    return stored(store, SUMS)


def test_a_planted_bug_is_found_nobody_looks_whose_epoch_it_is():
    assert left_by_an_older_life_that_goes_on() == {0: 1}
    with mock.patch.object(Producer, "require_newest", return_value=None):
        assert left_by_an_older_life_that_goes_on() != {0: 1}


def left_by_turns() -> tuple[dict[int, int], int]:
    """Return what one life stores of upserts and deletions that take turns, and the version that it leaves."""
    store = new_store()
    Process(store, LAST, 2, sends_each=SENDS).run()
    return stored(store, LAST), Warehouse("wh", storage=store, world=sim_world(99)).table(LAST).state.version


def test_turns_are_one_record_and_a_planted_bug_is_found_their_order_is_lost():
    found, version = left_by_turns()
    assert (found, version) == (expected(LAST), 3), "the table, the producer, and all turns"
    real = UpsertTarget.change

    def unordered(to, *of, deleted, **how):
        return real(to, *of, deleted=np.sort(deleted), **how)

    with mock.patch.object(UpsertTarget, "change", unordered):
        assert left_by_turns()[0] != expected(LAST)
