"""Rows that are deleted one at a time: what that reads and writes of a large table, and what it costs who appends.

``python -m benchmarks.row_deletion URL`` deletes a row of the table there, again and again, until its input ends.
"""

from __future__ import annotations

import itertools
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, in_turns, ratio_at_least, ratio_at_most
from benchmarks.writers import BATCH_ROWS
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.storage.base import Bytes
from streamhouse_spark.storage.memory import MemoryStorage

NAME = "bench.rows"
COLUMNS = "id BIGINT, amount DOUBLE, note STRING"
STATISTICS = {"table.statistics.columns": "id"}
"""Else the log tells the ids of no segment, and each is read."""
STEP_ROWS = 1_000_000
ALONE = "alone"
ELSEWHERE = "beside the same work on another table"


class Metered(MemoryStorage):
    """The memory of this process, which counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = self.read_bytes = self.written_bytes = self.objects = 0

    def read(self, key: str) -> bytes:
        return self._sent(super().read(key))

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        whole = super().read(key)
        return [self._sent(whole[start:end]) for start, end in ranges]

    def size_bytes(self, key: str) -> int:
        return len(super().read(key))

    def put_if_absent(self, key: str, data: Bytes) -> None:
        super().put_if_absent(key, data)
        self._stored(data)

    def put(self, key: str, data: Bytes) -> None:
        super().put(key, data)
        self._stored(data)

    def _sent(self, data: bytes) -> bytes:
        self.requests += 1
        self.read_bytes += len(data)
        return data

    def _stored(self, data: Bytes) -> None:
        self.requests += 1
        self.objects += 1
        self.written_bytes += len(data)

    @contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        """What is asked for within."""
        names = ("requests", "read_bytes", "written_bytes", "objects")
        before, counts = {name: getattr(self, name) for name in names}, dict[str, int]()
        yield counts
        counts |= {name: getattr(self, name) - before[name] for name in names}


def row_deletion(bench: Bench) -> Iterator[Figure]:
    """DELETE of one row by its id, where all rows are in the log and where all are in the lake, and the round of
    tiering behind it; beside the same of a tenth of the rows.
    """
    many = 10_000_000 if not bench.quick else 1_000_000
    for where in ("log", "lake"):
        large, small = (_costs(rows, in_lake=where == "lake") for rows in (many, many // 10))
        for work, counts in large.items():
            note = f"{counts['requests']} requests, {counts['objects']} objects put"
            for verb, name in (("reads", "read_bytes"), ("writes", "written_bytes")):
                mine, theirs = counts[name] / 1e3, small[work][name] / 1e3
                figure = f"{work}, {many:,} rows in the {where}: {verb}"
                peer = f"ours with {many // 10:,}"
                yield Figure(figure, "KB", mine, peer, theirs, mine / theirs, 1, ratio_at_most(2), note)


def _costs(num_rows: int, *, in_lake: bool) -> dict[str, dict[str, int]]:
    store = Metered()
    table = Warehouse("memory", storage=store).create_table(NAME, COLUMNS, properties=STATISTICS)
    for start in range(0, num_rows, STEP_ROWS):
        table.append(_rows(start, min(STEP_ROWS, num_rows - start)))
    if in_lake:
        tier(table)
    found: dict[str, dict[str, int]] = {}
    _delete_one(table, num_rows // 3)  # what is opened once
    with store.counted() as found["DELETE of one row"]:
        _delete_one(table, num_rows // 2)
    if in_lake:
        with store.counted() as found["round behind a DELETE"]:
            tier(table)
    return found


def _rows(start: int, num_rows: int) -> pa.Table:
    ids = np.arange(start, start + num_rows)
    return pa.table({"id": ids, "amount": ids * 0.5, "note": [f"note {number}" for number in ids.tolist()]})


def _delete_one(table: Table, number: int) -> None:
    deleted = table.delete(where=[("id", "=", number)])
    if deleted != 1:
        raise AssertionError(f"{deleted} rows were deleted, expected 1")


@dataclass(frozen=True)
class Work:
    """The work of the other process, which runs a module of these benchmarks."""

    name: str
    module: str
    done: str
    appends: int
    rounds: int


DELETES = Work("deletes rows", "row_deletion", "rows deleted", 800, 9)
STATEMENTS = Work("runs DELETE, UPDATE and MERGE in SQL", "running_statements", "statements", 2_000, 4)


def appends_beside_deletes(bench: Bench) -> Iterator[Figure]:
    """Appends of 1,000 rows, alone and beside a process that changes rows of the same table without a pause: by
    statements of Spark, or by `Table.delete`, one row at a time. And beside one that does so with another table: the
    processor and the disk are shared there, and nothing else. Once with a core for each process, alone too, and once
    with all cores for both: there the other takes its share of the processor whatever table it works on, so the goal
    is beside work on another one.
    """
    for work, are_apart in itertools.product((STATEMENTS, DELETES), (True, False)):
        yield from _beside(bench, work, are_apart=are_apart)


def _beside(bench: Bench, work: Work, *, are_apart: bool) -> Iterator[Figure]:
    numbers, done = itertools.count(), {"ours": list[int](), ELSEWHERE: list[int]()}
    every = os.sched_getaffinity(0)
    own, others = ({min(every)}, {max(every)}) if are_apart else (every, every)

    def folder() -> Path:
        return bench.directory(f"{work.module}-{'apart' if are_apart else 'beside'}{next(numbers)}")

    def appending(who: str) -> float:
        mine = folder()
        if who == ALONE:
            table = _table(mine)
            with _on_cores(own):
                return _timed_appends(table, _rows(1_000_000, BATCH_ROWS), work.appends)
        return _appending(work, mine, mine if who == "ours" else folder(), done[who], own, others)

    contestants = {who: lambda who=who: appending(who) for who in ("ours", ALONE, ELSEWHERE)}
    runs = in_turns(contestants, bench.rounds(work.rounds, 1), warm_up=1)
    goals = {("ours", ALONE if are_apart else ELSEWHERE): ratio_at_least(0.9)}
    for who, peer in (("ours", ALONE), (ELSEWHERE, ALONE), ("ours", ELSEWHERE)):
        mine, theirs = (work.appends / statistics.median(runs[name]) for name in (who, peer))
        ratio = statistics.median(b / a for a, b in zip(runs[who], runs[peer], strict=True))
        note = f"{statistics.median(done[who]):.0f} {work.done} meanwhile"
        name = f"appends of 1,000 rows beside a process that {work.name}{' of another table' if who != 'ours' else ''}"
        name += ", a core each" if are_apart else ""
        yield Figure(name, "batches/s", mine, peer, theirs, ratio, len(runs[who]), goals.get((who, peer)), note)


def _table(folder: Path, num_hot: int = 0) -> Table:
    table = Warehouse(str(folder)).create_table(NAME, COLUMNS)
    table.append(_rows(0, 100_000))
    tier(table)
    for _ in range(num_hot):
        table.append(_rows(1_000_000, BATCH_ROWS))
    return table


@contextmanager
def _on_cores(cores: set[int]) -> Iterator[None]:
    """Keep all threads of this process, and processes that begin meanwhile, on some cores."""
    before = os.sched_getaffinity(0)
    _move(cores)
    try:
        yield
    finally:
        _move(before)


def _move(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def _appending(work: Work, folder: Path, other: Path, done: list[int], own: set[int], others: set[int]) -> float:
    """Append beside the other process, whose count is added to ``done``. A table of its own has as many rows as the
    one that grows has in the middle.
    """
    table, rows = _table(folder), _rows(1_000_000, BATCH_ROWS)
    if other != folder:
        _table(other, work.appends // 2)
    command = [sys.executable, "-m", f"benchmarks.{work.module}", str(other)]
    with _on_cores(others):
        started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with started as process, _on_cores(own):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        seconds = _timed_appends(table, rows, work.appends)
        process.stdin.close()
        done.append(int(process.stdout.readline()))
    return seconds


def _timed_appends(table: Table, rows: pa.Table, count: int) -> float:
    table.append(rows)
    began = time.perf_counter()
    for _ in range(count):
        table.append(rows)
    return time.perf_counter() - began


def _delete_until_the_input_ends(url: str) -> None:
    table, count = Warehouse(url).table(NAME), 0
    _delete_one(table, count)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], 0)[0]:
        count += 1
        _delete_one(table, count)
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    _delete_until_the_input_ends(sys.argv[1])
