"""The log and tables by key beside a real Kafka and a real Fluss, on loopback, one server of each.

``make bench-servers`` runs these. Maven fetches the servers and Fluss's Java client.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks import data
from benchmarks.keyed import KEY, Batches, own_cache
from benchmarks.measure import (
    Bench,
    Figure,
    Goal,
    Runs,
    in_turns,
    ours_at_least,
    ours_at_most,
    rate_figure,
    ratio_at_least,
    ratio_at_most,
    time_figure,
    timed,
)
from benchmarks.server_clients import Fluss, Kafka, Log, Ours
from benchmarks.server_processes import compiled_driver, running_fluss, running_kafka
from streamhouse_spark import Warehouse
from streamhouse_spark.kv.tablet import finish_apply_queues

KAFKA = "Kafka 4.3.1, page cache"
KAFKA_FSYNC = "Kafka 4.3.1, flush.messages=1"
FLUSS = "Fluss 0.9.1, page cache"
TWO_COLUMNS = ["l_orderkey", "l_extendedprice"]
BULK_ROWS = 6_000_000
CREWS = ((1, True), (4, True), (1, False), (4, False))
"""Writers, and whether each waits for a batch before it sends the next."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Both servers as they run, where their data lie, and the class path of Fluss's client."""

    kafka: str
    kafka_data: Path
    fluss: str
    fluss_data: Path
    driver: str
    scratch: Path

    def fluss_client(self) -> Fluss:
        return Fluss(self.fluss, self.fluss_data, self.scratch, self.driver)


@contextmanager
def running_servers(bench: Bench) -> Iterator[Servers]:
    kafka, fluss = bench.directory("kafka").resolve(), bench.directory("fluss").resolve()
    jars = _jars(bench)
    driver = compiled_driver(jars)
    with running_kafka(kafka, jars) as broker, running_fluss(fluss, jars) as coordinator:
        yield Servers(broker, kafka / "data", coordinator, fluss / "data", driver, bench.scratch.resolve())


def _jars(bench: Bench) -> Path:
    return (bench.data.parent / "servers").resolve()


def server_appends(bench: Bench) -> Iterator[Figure]:
    """Batches of 1,000 rows: how long one takes, and how many a second get through from one writer and from four."""
    orders = data.load(bench.data, "orders", quick=bench.quick).slice(0, 100_000)
    with running_servers(bench) as servers, closing(servers.fluss_client()) as fluss:
        fluss.load("rows", orders)
        ours = Ours(bench.directory("ours"), orders)
        logs: dict[str, Log] = {
            KAFKA: Kafka(servers.kafka, servers.kafka_data, orders),
            KAFKA_FSYNC: Kafka(servers.kafka, servers.kafka_data, orders, {"flush.messages": "1"}),
            FLUSS: fluss,
        }
        for number, log in enumerate([ours, *logs.values()]):
            log.create(f"one{number}")
        numbers = iter(range(1_000_000))
        one: dict[str, Callable[[], float]] = {
            who: lambda log=log, name=f"one{place}": _synced(lambda: log.append(name, next(numbers)))
            for place, (who, log) in enumerate(logs.items(), 1)
        }
        append = ours.appender("one0")
        runs = in_turns(
            {"ours": lambda: _synced(lambda: append(next(numbers))), **one}, bench.rounds(200, 20), warm_up=20
        )
        for peer in logs:
            yield time_figure("append of 1,000 rows, acknowledged", runs, peer, note="ours is fsynced")
        for crew, (writers, waits) in enumerate(CREWS):
            yield from _crew(bench, {"ours": ours, **logs}, crew, writers, waits=waits)


def _crew(bench: Bench, logs: Mapping[str, Log], crew: int, writers: int, *, waits: bool) -> Iterator[Figure]:
    names = {who: f"crew{crew}x{place}" for place, who in enumerate(logs)}
    for who, log in logs.items():
        log.create(names[who])
    batches = bench.rounds(400 if waits else 2000, 40) // writers
    runs = in_turns(
        {
            who: lambda log=log, name=names[who]: _synced(lambda: log.append_by(name, writers, batches, waits=waits))
            for who, log in logs.items()
        },
        bench.rounds(5, 1),
        warm_up=1,
    )
    how = "one after the other" if waits else "many under way"
    goal = ours_at_least(2500) if writers > 1 and not waits else None
    for peer in list(logs)[1:]:
        name = f"batches of 1,000 rows, {writers} writer{'s' if writers > 1 else ''}, {how}"
        yield _rate(name, "batches/s", runs, peer, writers * batches, goal)


def server_bulk(bench: Bench) -> Iterator[Figure]:
    """All of lineitem in, all of it read, 2 of 16 columns read, and the bytes of the log: default codecs."""
    rows = data.load(bench.data, "lineitem", quick=bench.quick).slice(0, BULK_ROWS)
    with running_servers(bench) as servers, closing(servers.fluss_client()) as fluss:
        fluss.load("rows", rows)
        logs: dict[str, Log] = {
            "ours": Ours(bench.directory("ours"), rows),
            KAFKA: Kafka(servers.kafka, servers.kafka_data, rows),
            FLUSS: fluss,
        }
        numbers = iter(range(1_000_000))
        last: dict[str, str] = {}

        def written(who: str) -> float:
            last[who] = f"bulk{next(numbers)}"
            logs[who].create(last[who])
            return _synced(lambda: logs[who].bulk(last[who]))

        runs = in_turns({who: lambda who=who: written(who) for who in logs}, bench.rounds(3, 1))
        peers = list(logs)[1:]
        for peer in peers:
            yield rate_figure("all of lineitem in", runs, peer, rows.num_rows, note="ours is fsynced")
        asked: tuple[tuple[str, list[str] | None, Goal | None], ...] = (
            ("all rows read", None, None),
            ("2 of 16 columns read", TWO_COLUMNS, ours_at_most(200)),
        )
        for what, columns, goal in asked:
            reads = {who: lambda who=who, columns=columns: logs[who].read(last[who], columns) for who in logs}
            runs = in_turns(reads, bench.rounds(5, 2), warm_up=1)
            for peer in peers:
                yield time_figure(what, runs, peer, goal)
        sizes = {who: log.log_bytes(last[who]) / 1e6 for who, log in logs.items()}
        for peer in peers:
            mine, theirs = sizes["ours"], sizes[peer]
            goal = ratio_at_most(1.3)
            yield Figure("bytes of the hot log, default codec", "MB", mine, peer, theirs, mine / theirs, 1, goal)


def server_keyed(bench: Bench) -> Iterator[Figure]:
    """Upserts into orders and lookups of it. Kafka has neither: its compacted topic takes the changes alone."""
    orders = data.load(bench.data, "orders", quick=bench.quick)
    changes = Batches(orders)
    size = 10_000 if bench.quick else 100_000
    compacted = {"cleanup.policy": "compact"}
    with own_cache(bench.directory("cache")), running_servers(bench) as servers:
        table = Warehouse(str(bench.scratch / "ours")).create_table("bench.orders", orders.schema, primary_key=[KEY])
        table.upsert(orders)
        kafka = Kafka(servers.kafka, servers.kafka_data, orders, compacted)
        kafka.create("orders")
        with closing(servers.fluss_client()) as fluss:
            fluss.load("rows", orders)
            fluss.create("orders", key=KEY)
            for start in range(0, orders.num_rows, size):
                fluss.upsert("orders", orders.slice(start, size))
            contestants: dict[str, Callable[[pa.Table], float]] = {
                "ours": lambda rows: timed(lambda: table.upsert(rows)),
                KAFKA: lambda rows: kafka.upsert("orders", rows, KEY),
                FLUSS: lambda rows: fluss.upsert("orders", rows),
            }
            runs: dict[str, list[float]] = {who: [] for who in contestants}
            for number in range(bench.rounds(6, 2)):
                rows = changes.make(size)
                for who, upsert in contestants.items():
                    seconds = _synced(lambda upsert=upsert, rows=rows: upsert(rows))
                    finish_apply_queues()  # nobody pays for what is done behind another's answer
                    if number:
                        runs[who].append(seconds)
            what = f"upsert of {size:,} rows into {orders.num_rows / 1e6:.2g} M, with changelog"
            yield time_figure(what, runs, KAFKA, note="a compacted topic: no rows before, no lookup; ours is fsynced")
            yield time_figure(what, runs, FLUSS, note="ours is fsynced")
            yield from _lookups(bench, orders, table.lookup_one, table.lookup, fluss)


def _lookups(
    bench: Bench, orders: pa.Table, one: Callable[[int], object], many: Callable[[pa.Table], object], fluss: Fluss
) -> Iterator[Figure]:
    keys = orders[KEY].slice(0, 1_000_000).to_numpy()
    random = np.random.default_rng(0)
    count, size = bench.rounds(5_000, 500), 10_000

    def one_by_one() -> float:
        asked = random.choice(keys, count).tolist()
        return timed(lambda: [one(key) for key in asked])

    def in_batches() -> float:
        batches = [pa.table({KEY: random.choice(keys, size)}) for _ in range(2)]
        return timed(lambda: [many(batch) for batch in batches])

    goal = ratio_at_least(1)
    for what, mine, num_keys, at_a_time in (
        ("lookups, one by one", one_by_one, count, 1),
        (f"lookups, {size:,} at a time", in_batches, 2 * size, size),
    ):
        peer = {FLUSS: lambda n=num_keys, size=at_a_time: fluss.lookup("orders", n, size)}
        runs = in_turns({"ours": mine, **peer}, bench.rounds(5, 2), warm_up=1)
        yield _rate(what, "rows/s", runs, FLUSS, num_keys, goal)


def server_start(bench: Bench) -> Iterator[Figure]:
    """From nothing to the first row read: servers, a table, a row, each client in a process of its own."""
    jars, numbers = _jars(bench), iter(range(1_000_000))
    driver = compiled_driver(jars)

    def first(who: str, where: object) -> None:
        subprocess.run([sys.executable, "-m", "benchmarks.first_row", who, str(where)], check=True)

    def ours(folder: Path) -> float:
        return timed(lambda: first("ours", folder / "warehouse"))

    def kafka(folder: Path) -> float:
        began = time.perf_counter()
        with running_kafka(folder, jars) as address:
            first("kafka", address)
            return time.perf_counter() - began

    def fluss(folder: Path) -> float:
        began = time.perf_counter()
        with running_fluss(folder, jars) as address, closing(Fluss(address, folder, folder, driver)) as client:
            client.ask("first", "first")
            return time.perf_counter() - began

    starts = {"ours": ours, KAFKA: kafka, FLUSS: fluss}
    runs = in_turns(
        {
            who: lambda start=start: start(bench.directory(f"start{next(numbers)}").resolve())
            for who, start in starts.items()
        },
        bench.rounds(3, 1),
    )
    for peer in list(starts)[1:]:
        yield time_figure("start to first row", runs, peer)


def _synced(action: Callable[[], float]) -> float:
    os.sync()  # nobody pays for another's dirty pages
    return action()


def _rate(name: str, unit: str, runs: Runs, peer: str, count: int, goal: Goal | None = None) -> Figure:
    """Things a second: more is better."""
    mine, theirs = runs["ours"], runs[peer]
    ratio = statistics.median(b / a for a, b in zip(mine, theirs, strict=True))
    rates = [count / statistics.median(seconds) for seconds in (mine, theirs)]
    return Figure(name, unit, rates[0], peer, rates[1], ratio, len(mine), goal)
