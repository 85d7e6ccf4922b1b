"""A producer without a thread: it sends numbered rows, and each step of its writer is a call of the test."""

from __future__ import annotations

from concurrent.futures import Future

import pyarrow as pa

from faults.faulty_storage import Fault, FaultyStorage
from faults.sim import sim_world
from streamhouse_spark import BucketOffsets, StreamhouseError, Warehouse
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.log_writer import LogTableWriter
from streamhouse_spark.write.producer.accumulator import COLUMN_BYTES, SEND_BYTES, BatchLimits
from streamhouse_spark.write.producer.writer import Writer, make_sender_thread

NAME = "sales.events"
PRODUCER = "source-1"
SENDS = 6
IDS_EACH = 100
BUCKETS = 2
ONE_SEND_BYTES = SEND_BYTES + 2 * COLUMN_BYTES + 64
PROPERTIES = {"table.datalake.enabled": "false", "bucket.key": "id"}


def new_store() -> Storage:
    storage = MemoryStorage(sim_world(0))
    Warehouse("wh", storage=storage, world=sim_world(1)).create_table(
        NAME, "id BIGINT, text STRING", buckets=BUCKETS, properties=PROPERTIES
    )
    return storage


def ids_of(sequence: int) -> list[int]:
    return [sequence * IDS_EACH + n for n in range(sequence % 3 + 1)]


def rows_of(sequence: int) -> pa.Table:
    ids = ids_of(sequence)
    return pa.table({"id": pa.array(ids, pa.int64()), "text": ["x"] * len(ids)})


class Process:
    """One life of the producer. Batches hold ``sends_each`` sends."""

    def __init__(self, storage: Storage, seed: int, *, sends_each: int, producer_id: str | None = PRODUCER) -> None:
        table = Warehouse("wh", storage=storage, world=sim_world(seed)).table(NAME)
        log_writer = LogTableWriter(table)
        limits = BatchLimits(0, sends_each * ONE_SEND_BYTES, 1 << 30)
        self.flusher = make_sender_thread(log_writer, None, producer_id, limits, delivery_timeout_ms=60_000)
        self.writer = Writer(self.flusher, log_writer, None)
        self.answers: dict[int, Future[BucketOffsets]] = {}

    def send(self, sequence: int) -> None:
        self.answers[sequence] = self.writer.send(rows_of(sequence), sequence=sequence)

    def run(self, first: int = 0, end: int = SENDS) -> None:
        for sequence in range(first, end):
            self.send(sequence)
        self.deliver()

    def deliver(self) -> None:
        while self.flusher.step():
            pass

    def acknowledged(self) -> dict[int, BucketOffsets]:
        return {
            sequence: answer.result()
            for sequence, answer in self.answers.items()
            if answer.done() and answer.exception() is None
        }


def stored(storage: Storage) -> dict[tuple[int, int], int]:
    """The ids by bucket and offset, as a new process reads them."""
    table = Warehouse("wh", storage=storage, world=sim_world(99)).table(NAME)
    found: dict[tuple[int, int], int] = {}
    for batch in table.tail("earliest", include_metadata=True, until_ms=0):
        columns = (batch.column(name).to_pylist() for name in ("_bucket", "_log_offset", "id"))
        found |= {(bucket, offset): key for bucket, offset, key in zip(*columns, strict=True)}
    return found


def check_answers(storage: Storage, acknowledged: dict[int, BucketOffsets]) -> None:
    """What was answered is stored, at the offsets of the answer."""
    found = stored(storage)
    there = set(found.values())
    for sequence, offsets in acknowledged.items():
        assert set(ids_of(sequence)) <= there, f"send {sequence} was answered and is not stored"
        if offsets:
            at = [found[bucket, offset] for bucket, r in offsets.items() for offset in range(r.start, r.end)]
            assert sorted(at) == ids_of(sequence), f"send {sequence} was answered with offsets of {at}"


def check_whole(storage: Storage, end: int = SENDS) -> None:
    """Every row once, in the order of the sends."""
    found = stored(storage)
    assert sorted(found.values()) == [key for sequence in range(end) for key in ids_of(sequence)]
    for bucket in range(BUCKETS):
        keys = [key for (of, _), key in sorted(found.items()) if of == bucket]
        assert keys == sorted(keys), f"bucket {bucket} has its rows in another order: {keys}"


def restarted(storage: Storage, *, replay_from: int | None = None) -> None:
    """The producer comes back with other batches, goes on where the table says, and everything is there once."""
    process = Process(storage, 7, sends_each=3)
    last = process.writer.last_sequence
    process.run(first=(-1 if last is None else last) + 1 if replay_from is None else replay_from)
    check_answers(storage, process.acknowledged())
    check_whole(storage)


def one_life(storage: Storage) -> list[dict[int, BucketOffsets]]:
    """A process that sends all rows, and ends wherever the storage ends it. Returns what it was answered."""
    process = None
    try:
        process = Process(storage, 2, sends_each=2)
        process.run()
    except StreamhouseError:
        pass
    finally:
        answers.append({} if process is None else process.acknowledged())
    return answers


answers: list[dict[int, BucketOffsets]] = []
"""Of each `one_life`, also of one that crashed."""


def unknown_at(call: int) -> dict[int, Fault]:
    """A call that is applied without an answer, and cannot be looked after."""
    return {call: Fault.LOST_ACK, call + 1: Fault.ERROR_BEFORE}


def survive(plan: dict[int, Fault]) -> FaultyStorage:
    """Run one life under a plan of faults and another after it. Raises AssertionError where rows are lost or twice."""
    from faults.faulty_storage import Crash

    storage = FaultyStorage(new_store(), plan)
    answers.clear()
    try:
        one_life(storage)
    except Crash:
        pass
    check_answers(storage.inner, answers[-1])
    for replay_from in (None, 0):
        restarted(storage.inner, replay_from=replay_from)
    return storage
