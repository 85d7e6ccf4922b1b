"""Random histories of followers of one name: no row is lost, and a position has only processed rows before it."""

from __future__ import annotations

import random
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from faults.sim import SimClock
from kit.tables import new_table
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark import StreamhouseError, Table
from streamhouse_spark.read import follow
from streamhouse_spark.read.follow import Follower
from streamhouse_spark.read.tail import Tail
from streamhouse_spark.write.auto_compaction import compact_inline_rows

NAME, APP = "d.t", "app"
STEPS = 40


class Processes:
    """Several processes that follow a table under one name, each now and then, and never end in an orderly way."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = SimClock()
        self.store = new_store(seed, self.clock)
        self.seeds = iter(range(seed * 1000 + 1, seed * 1000 + 999))
        new_table(open_warehouse(self.store, next(self.seeds), self.clock), name=NAME)
        self.writer = self.open()
        self.followers: list[tuple[Follower, list[dict]]] = []
        self.newest: Follower | None = None
        self.processed: set[tuple[int, int]] = set()
        self.num_rows = 0

    def open(self) -> Table:
        return open_warehouse(self.store, next(self.seeds), self.clock).table(NAME)

    def append(self) -> None:
        rows = [{"id": self.num_rows + n, "day": self.random.randrange(9)} for n in range(self.random.randrange(1, 5))]
        self.num_rows += len(rows)
        self.writer.append(rows)

    def merge(self) -> None:
        compact_inline_rows(self.writer)

    def start(self) -> None:
        self.newest = self.open().follow(APP, include_metadata=True, available_now=True)
        self.followers.append((self.newest, []))

    def process(self) -> None:
        """Let a follower, perhaps one that was fenced, request a batch: so it has finished with the one before."""
        if self.followers:
            self.request(*self.random.choice(self.followers))

    def request(self, follower: Follower, batch: list[dict]) -> bool:
        self.processed |= {(row["_bucket"], row["_log_offset"]) for row in batch}
        batch.clear()
        with suppress(StreamhouseError, StopIteration):
            batch += next(follower).to_pylist()
        assert not batch or follower is self.newest, "a follower got rows although a newer one has the name"
        return bool(batch)

    def crash(self) -> None:
        if self.followers:
            self.followers.remove(self.random.choice(self.followers))

    def check(self) -> None:
        position = self.writer.consumer_position(APP)
        for bucket, end in (position or {}).items():
            lost = {(bucket, offset) for offset in range(end)} - self.processed
            assert not lost, f"rows before the position were not processed: {sorted(lost)}"

    def finish(self) -> None:
        """The last process processes what is left."""
        self.start()
        while self.request(*self.followers[-1]):
            pass
        ends = self.writer.refresh().ends
        assert self.processed == {(bucket, offset) for bucket, end in ends.items() for offset in range(end)}


def live(seed: int) -> None:
    processes = Processes(seed)
    for _ in range(STEPS):
        step = processes.random.choice(
            [processes.append] * 3 + [processes.process] * 5 + [processes.start, processes.crash, processes.merge]
        )
        step()
        processes.check()
    processes.finish()


@pytest.mark.parametrize("seed", range(60))
def test_followers_of_one_name_process_every_row(seed, monkeypatch):
    monkeypatch.setattr(follow, "BATCH_BYTES", 1 if seed % 2 else 1 << 20)
    live(seed)


def commit_first(self: Follower) -> pa.RecordBatch:
    batch = Tail._next(self)
    self.commit()
    return batch


@pytest.mark.parametrize(
    ("kind", "name", "bug", "finding"),
    [
        (follow.HeldConsumer, "require_held", lambda *_: None, "a newer one has the name"),
        (Follower, "_next", commit_first, "were not processed"),
    ],
    ids=["a follower without the name goes on", "a commit before the loop body"],
)
def test_a_planted_bug_is_found(kind, name, bug, finding, monkeypatch):
    monkeypatch.setattr(follow, "BATCH_BYTES", 1)
    monkeypatch.setattr(kind, name, bug)
    with pytest.raises(AssertionError, match=finding):
        live_all(60)


def live_all(lives: int) -> None:
    for seed in range(lives):
        live(seed)


CONDITIONS = (
    ("id >= 7 AND id < 12", (pc.field("id") >= 7) & (pc.field("id") < 12)),
    ("day IN (1, 4) OR id = 3", pc.field("day").isin([1, 4]) | (pc.field("id") == 3)),
    ("NOT day = 2", pc.field("day") != 2),
    ("day IS NULL", pc.field("day").is_null()),
    ("id = 5", pc.field("id") == 5),
)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_filter_of_a_tail_keeps_exactly_the_rows_that_match(seed, keyed):
    draw = random.Random(seed)
    table = new_table(open_warehouse(new_store(seed), 1), keyed=keyed, name=NAME)
    for _ in range(8):
        rows = [{"id": draw.randrange(15), "day": draw.choice([None, *range(5)])} for _ in range(draw.randrange(1, 6))]
        (table.upsert if keyed else table.append)(rows)
        if draw.random() < 0.3:
            compact_inline_rows(table)
    if keyed:
        table.delete([draw.randrange(15)])
    elif draw.random() < 0.5:
        table.delete(where=[("id", "=", draw.randrange(15))])
    whole = read(table)
    for text, expression in CONDITIONS:
        for condition in (text, expression):
            for columns in (None, ["day"], ["day", "id"]):
                metadata = [name for name in whole.column_names if name.startswith("_")]
                expected = whole.filter(expression).select([*metadata, *(columns or ["id", "day"])])
                assert read(table, filter=condition, columns=columns).to_pylist() == expected.to_pylist(), (
                    text,
                    columns,
                )


def read(table: Table, **options) -> pa.Table:
    tail = table.tail("earliest", include_metadata=True, until_ms=0, **options)
    batches = list(tail)
    assert tail.position.offsets == table.refresh().ends
    return pa.Table.from_batches(batches) if batches else table.schema.empty_table()
