"""Sending as event producers do: batches of 1,000 rows and single events, by one thread and by eight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import data
from benchmarks.measure import Bench, Figure, in_turns, rate_figure, timed
from streamhouse_spark import Table, Warehouse

BATCH_ROWS = 1000
THREADS = (1, 8)
PEER = "append of each"


def producer(bench: Bench) -> Iterator[Figure]:
    """All rows are durable when the time ends. One event in 20 is appended by the peer, which has a commit for each."""
    orders = data.load(bench.data, "orders", quick=bench.quick)
    batches = [orders.slice(i * BATCH_ROWS, BATCH_ROWS).combine_chunks() for i in range(40)]
    events = orders.slice(0, 4000).to_pylist()
    for kind, sends, share in (("batches of 1,000 rows", batches * 4, 1), ("single events", events, 20)):
        num_rows = sum(BATCH_ROWS if kind.startswith("batches") else 1 for _ in sends)
        for num_threads in THREADS:
            table, other = (
                Warehouse(str(bench.scratch / f"{kind}-{num_threads}" / who)).create_table("bench.rows", orders.schema)
                for who in ("ours", "peer")
            )
            runs = in_turns(
                {
                    "ours": lambda t=table, s=sends, n=num_threads: timed(lambda: _sent(t, s, n)),
                    PEER: lambda t=other, s=sends[::share], n=num_threads, k=share: (
                        k * timed(lambda: _appended(t, s, n))
                    ),
                },
                bench.rounds(5, 1),
                warm_up=1,
            )
            seconds = sorted(runs["ours"])[len(runs["ours"]) // 2]
            note = f"{len(sends) / seconds:,.0f} sends/s"
            yield rate_figure(f"producer: {kind}, {num_threads} threads", runs, PEER, num_rows, note=note)


def _sent(table: Table, sends: list[Any], num_threads: int) -> None:
    with table.writer(producer_id="producer") as writer:
        _shared(writer.send, sends, num_threads)


def _appended(table: Table, sends: list[Any], num_threads: int) -> None:
    _shared(lambda rows: table.append([rows] if isinstance(rows, dict) else rows), sends, num_threads)


def _shared(write: Callable[[Any], object], sends: list[Any], num_threads: int) -> None:
    def work(number: int) -> None:
        for rows in sends[number::num_threads]:
            write(rows)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
