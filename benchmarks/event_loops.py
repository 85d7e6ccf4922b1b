"""asyncio: concurrent calls next to calls in threads, and a thousand tails of one process."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.measure import Bench, Figure, in_turns, percentile, time_figure, timed
from streamhouse_spark import Table, Warehouse

CALLS = 1000
KEYS = 100_000
THREADS = 16
TABLES = 10
ROWS_S = 300
"""Rows that the writing process appends a second, to all tables together."""
QUIET = {"table.datalake.enabled": "false"}


def event_loops(bench: Bench) -> Iterator[Figure]:
    """1,000 concurrent calls, and tails of 10 tables that another process appends to."""
    warehouse = Warehouse(str(bench.scratch / "calls"))
    log = warehouse.create_table("bench.log", "id BIGINT, text STRING", properties=QUIET)
    keyed = warehouse.create_table("bench.keyed", "id BIGINT, text STRING", primary_key=["id"], properties=QUIET)
    keyed.upsert(pa.table({"id": range(KEYS), "text": ["x" * 20] * KEYS}))
    keyed.lookup_one(0)
    rounds = bench.rounds(5, 1)

    def appends(call: Callable[[Any], Any]) -> Callable[[int], Any]:
        return lambda number: call([{"id": number, "text": "x" * 20}])

    peer = f"{THREADS} threads, Table"
    for name, in_loop, blocking in (
        ("aio.append", appends(log.aio.append), appends(log.append)),
        ("aio.upsert", appends(keyed.aio.upsert), appends(keyed.upsert)),
        ("aio.lookup_one", keyed.aio.lookup_one, keyed.lookup_one),
    ):
        contestants = {"ours": _gathered(in_loop), peer: _in_threads(blocking)}
        yield time_figure(f"{CALLS:,} concurrent calls, {name}", in_turns(contestants, rounds, warm_up=1), peer)
    for num_tails, appends_s in ((1000, 10), (1000, 50), (10, 50)):
        yield _tails(bench, num_tails, appends_s, seconds=bench.rounds(20, 3))


def _gathered(call: Callable[[int], Coroutine[Any, Any, Any]]) -> Callable[[], float]:
    async def make_all() -> None:
        await asyncio.gather(*(call(number) for number in range(CALLS)))

    return lambda: timed(lambda: asyncio.run(make_all()))


def _in_threads(call: Callable[[int], Any]) -> Callable[[], float]:
    def make_all() -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(call, range(CALLS)))

    return lambda: timed(make_all)


def _tails(bench: Bench, num_tails: int, appends_s: int, *, seconds: int) -> Figure:
    """Delivery times to all tails. The peer is one tail with a thread of its own, in the same process."""
    path = bench.scratch / f"tails-{num_tails}-{appends_s}"
    tables = [
        Warehouse(str(path)).create_table(f"bench.t{i}", "began_ns BIGINT", properties=QUIET) for i in range(TABLES)
    ]
    before_mb, threads = _memory_mb(), threading.active_count()
    latencies_ms: list[float] = []
    of_thread_ms: list[float] = []
    peak: list[float] = []
    stop = threading.Event()

    def follow_in_thread(table: Table) -> None:
        of_thread_ms.extend(_age_ms(batch) for batch in table.tail(stop=stop))

    async def follow(table: Table) -> None:
        async for batch in table.aio.tail():
            latencies_ms.append(_age_ms(batch))  # noqa: PERF401 - the task is cancelled in the end

    async def run() -> None:
        tasks = [asyncio.ensure_future(follow(tables[number % TABLES])) for number in range(num_tails)]
        await asyncio.sleep(2)
        command = [sys.executable, "-m", "benchmarks.event_loops", str(path), str(appends_s), str(seconds)]
        writer = await asyncio.create_subprocess_exec(*command)
        await writer.wait()
        await asyncio.sleep(1)
        peak.extend((_memory_mb() - before_mb, threading.active_count() - threads - 1, time.process_time()))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    thread = threading.Thread(target=follow_in_thread, args=(Warehouse(str(path)).table("bench.t0"),))
    thread.start()
    began_s = time.process_time()
    asyncio.run(run())
    stop.set()
    thread.join()
    expected = num_tails // TABLES * appends_s * seconds
    memory_mb, num_threads, process_s = peak
    ours, peer = percentile(latencies_ms, 0.5), percentile(of_thread_ms, 0.5)
    return Figure(
        name=f"delivery to {num_tails:,} tails, {appends_s} appends/s",
        unit="ms",
        ours=ours,
        peer_name="a tail with a thread",
        peer=peer,
        ratio=ours / peer,
        pairs=1,
        note=(
            f"p99 {percentile(latencies_ms, 0.99):.0f}, peer's {percentile(of_thread_ms, 0.99):.0f} ms; "
            f"{memory_mb:.0f} MB, {num_threads} threads, {(process_s - began_s) / seconds:.0%} of a core; "
            f"{len(latencies_ms):,} batches of {expected:,} appends"
        ),
    )


def _age_ms(batch: pa.RecordBatch) -> float:
    """Return the age of the latest row of a batch."""
    return float(time.monotonic_ns() - batch.column("began_ns")[-1].as_py()) / 1e6


def _memory_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def main(path: str, appends_s: str, seconds: str) -> None:
    """Append to the tables in turn."""
    tables = [Warehouse(path).table(f"bench.t{i}") for i in range(TABLES)]
    interval_s = 1 / int(appends_s)
    rows = ROWS_S // int(appends_s)
    due_s = time.monotonic()
    for table in itertools.islice(itertools.cycle(tables), int(appends_s) * int(seconds)):
        table.append(pa.table({"began_ns": pa.array([time.monotonic_ns()] * rows)}))
        due_s += interval_s
        time.sleep(max(0.0, due_s - time.monotonic()))


if __name__ == "__main__":
    main(*sys.argv[1:])
