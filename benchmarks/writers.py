"""Many writers of one table: threads and processes that append small durable batches at the same time,
and threads that upsert them.

``python -m benchmarks.writers URL THREADS BATCHES MEMBERS_MAX`` is one of the processes: it reads batches from a file
beside the table, says that it is ready, and begins with the next line of its input. With 0 members the batches go
through one `Table.writer`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.feather

from benchmarks import data
from benchmarks.measure import Bench, Figure, Runs, in_turns, timed
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.log import group_commit

BATCH_ROWS = 1000
NAME = "bench.rows"
ALONE = "a record each"
KEYS = 20_000
"""Rows of a table that upserts write to."""
CREWS = ((1, 1), (1, 2), (1, 4), (1, 8), (4, 1), (4, 4))
"""Processes, and threads of each."""
PRODUCERS = ((2, 1), (4, 1), (1, 4), (4, 4))
ONE_PRODUCER = "one thread of one process"
BY_WRITER = 0
"""Members of a record, of batches that are sent and not waited for."""


def many_writers(bench: Bench) -> Iterator[Figure]:
    """The same appends with common records and with one for each, in turns."""
    rows = data.load(bench.data, "orders", quick=True).slice(0, BATCH_ROWS).combine_chunks()
    for processes, threads in CREWS:
        batches = bench.rounds(400, 40) // (processes * threads)
        contestants = {
            "ours": _appending(bench.scratch, rows, processes, threads, batches, group_commit.MEMBERS_MAX),
            ALONE: _appending(bench.scratch, rows, processes, threads, batches, 1),
        }
        runs = in_turns(contestants, bench.rounds(5, 1), warm_up=1)
        who = f"{_of(processes, 'process', 'processes')}, {_of(threads, 'thread', 'threads')}"
        yield _batches_a_second(f"appends of 1,000 rows, {who}", runs, processes * threads * batches)


def many_producers(bench: Bench) -> Iterator[Figure]:
    """Batches that several processes send at once, each through a `Table.writer`, until all are durable; beside one."""
    rows = data.load(bench.data, "orders", quick=True).slice(0, BATCH_ROWS).combine_chunks()
    all_batches = bench.rounds(4000, 80)
    for processes, threads in PRODUCERS:
        batches = all_batches // (processes * threads)
        contestants = {
            "ours": _appending(bench.scratch, rows, processes, threads, batches, BY_WRITER),
            ONE_PRODUCER: _appending(bench.scratch, rows, 1, 1, all_batches, BY_WRITER),
        }
        runs = in_turns(contestants, bench.rounds(5, 1), warm_up=1)
        who = f"{_of(processes, 'process', 'processes')}, {_of(threads, 'thread', 'threads')}"
        yield _batches_a_second(f"batches of 1,000 rows sent, {who}", runs, all_batches, ONE_PRODUCER)


def many_upserters(bench: Bench) -> Iterator[Figure]:
    """Upserts of one process with common records and with one for each, in turns. Their keys overlap."""
    for batch_rows in (100, 1000):
        for threads in (1, 2, 4, 8):
            batches = bench.rounds(200, 24) // threads
            rows = [_keyed_rows(batch_rows, number) for number in range(threads * batches)]
            contestants = {
                "ours": _upserting(bench.scratch, rows, threads, group_commit.MEMBERS_MAX),
                ALONE: _upserting(bench.scratch, rows, threads, 1),
            }
            runs = in_turns(contestants, bench.rounds(5, 1), warm_up=1)
            name = f"upserts of {batch_rows:,} rows, {_of(threads, 'thread', 'threads')}"
            yield _batches_a_second(name, runs, len(rows))


def _keyed_rows(num_rows: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    keys = random.choice(KEYS, num_rows, replace=False)
    return pa.table({"id": keys, "name": [f"name {key}" for key in keys], "n": random.integers(0, KEYS, num_rows)})


def _upserting(scratch: Path, rows: Sequence[pa.Table], threads: int, members_max: int) -> Callable[[], float]:
    def run() -> float:
        url = str(scratch / "many-upserters")
        table = Warehouse(url).create_table(NAME, rows[0].schema, primary_key=["id"])
        table.upsert(_keyed_rows(KEYS, 0))
        os.sync()
        begin = threading.Barrier(threads)

        def work(number: int) -> None:
            begin.wait()
            for part in rows[number::threads]:
                table.upsert(part)

        def all_at_once() -> None:
            with mock.patch.object(group_commit, "MEMBERS_MAX", members_max), ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, range(threads)))

        seconds = timed(all_at_once)
        if table.to_arrow(columns=["id"]).num_rows != KEYS:
            raise AssertionError("the table should hold each key once")
        shutil.rmtree(url)
        return seconds

    return run


def _of(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _batches_a_second(name: str, runs: Runs, batches: int, peer: str = ALONE) -> Figure:
    mine, theirs = runs["ours"], runs[peer]
    ratio = statistics.median(b / a for a, b in zip(mine, theirs, strict=True))
    rates = [batches / statistics.median(seconds) for seconds in (mine, theirs)]
    return Figure(name, "batches/s", rates[0], peer, rates[1], ratio, len(mine))


def _appending(
    scratch: Path, rows: pa.Table, processes: int, threads: int, batches: int, members_max: int
) -> Callable[[], float]:
    def run() -> float:
        url = str(scratch / "many-writers")
        table = Warehouse(url).create_table(NAME, rows.schema)
        os.sync()  # nobody pays for another's dirty pages
        if processes == 1:
            seconds = timed(lambda: write(table, rows, threads, batches, members_max))
        else:
            seconds = _in_processes(url, rows, processes, (threads, batches, members_max))
        if table.to_arrow(columns=[rows.column_names[0]]).num_rows != processes * threads * batches * rows.num_rows:
            raise AssertionError("the table should hold each batch once")
        shutil.rmtree(url)
        return seconds

    return run


def write(table: Table, rows: pa.Table, threads: int, batches: int, members_max: int) -> None:
    """Write as many batches from each of the threads, with at most so many attempts in a record."""
    if members_max == BY_WRITER:
        with table.writer() as writer:
            _from_threads(threads, batches, lambda: writer.send(rows))
        return
    with mock.patch.object(group_commit, "MEMBERS_MAX", members_max):
        _from_threads(threads, batches, lambda: table.append(rows))


def _from_threads(threads: int, times: int, write_one: Callable[[], object]) -> None:
    begin = threading.Barrier(threads)

    def work(_number: int) -> None:
        begin.wait()
        for _ in range(times):
            write_one()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


def _in_processes(url: str, rows: pa.Table, processes: int, arguments: tuple[int, ...]) -> float:
    pyarrow.feather.write_feather(rows, f"{url}/rows.feather")
    command = [sys.executable, "-m", "benchmarks.writers", url, *map(str, arguments)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]

    def told_by_all() -> None:
        for process in running:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise AssertionError(f"a writer ended with {process.wait()}")

    def go() -> None:
        for process in running:
            assert process.stdin is not None
            print(file=process.stdin, flush=True)
        told_by_all()

    told_by_all()
    seconds = timed(go)
    for process in running:
        process.communicate()
    return seconds


def _be_a_writer(url: str, threads: int, batches: int, members_max: int) -> None:
    rows = pyarrow.feather.read_table(f"{url}/rows.feather")
    table = Warehouse(url).table(NAME)
    table.refresh()
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    write(table, rows, threads, batches, members_max)
    print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    _be_a_writer(sys.argv[1], *map(int, sys.argv[2:]))
