"""Current rows by key: one at a time, and many at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data
from benchmarks.measure import Bench, Figure, Goal, Runs, in_turns, ours_at_least, ratio_at_least, timed
from streamhouse_spark import Warehouse

COLUMNS = ["o_orderkey", "o_custkey", "o_orderstatus", "o_totalprice", "o_orderdate", "o_comment"]
BATCH_ROWS = 10_000
THREADS = 8
ROW_GROUP_ROWS = 122_880
"""As DuckDB itself would write them."""
SELECT = f"SELECT {', '.join(COLUMNS)} FROM orders"


def lookups(bench: Bench) -> Iterator[Figure]:
    """Rows with all their values decoded. The peer's Parquet file is sorted by the key, so that it can skip most."""
    rows = data.load(bench.data, "orders", quick=bench.quick).select(COLUMNS).sort_by("o_orderkey")
    keys = rows.column("o_orderkey").to_numpy()
    types = ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, _types(rows), strict=True))
    table = Warehouse(str(bench.scratch / "warehouse")).create_table("bench.orders", types, primary_key=["o_orderkey"])
    table.upsert(rows)
    parquet = str(bench.scratch / "orders.parquet")
    pq.write_table(rows, parquet, row_group_size=ROW_GROUP_ROWS)
    del rows
    connection = duckdb.connect()
    connection.execute(f"CREATE VIEW orders AS SELECT * FROM read_parquet('{parquet}')")
    connection.execute(f"PREPARE one AS {SELECT} WHERE o_orderkey = $1")

    def ours(key: int) -> tuple[object, ...] | None:
        row = table.lookup_one(key)
        return None if row is None else tuple(row.values())

    def as_arrow(key: int) -> tuple[object, ...]:
        return tuple(table.lookup([key]).to_pylist()[0].values())

    def peer(key: int) -> object:
        return connection.execute(f"EXECUTE one({key})").fetchone()

    random = np.random.default_rng(0)
    some = random.choice(keys, 20).tolist()
    if any(ours(key) != peer(key) for key in some):
        raise AssertionError("both should find the same rows")

    def one_by_one(find: Callable[[int], object], count: int) -> Callable[[], float]:
        return lambda: _each(find, random.choice(keys, count).tolist()) / count

    began = time.process_time()
    _each(ours, random.choice(keys, 20_000).tolist())
    cpu_us = (time.process_time() - began) / 20_000 * 1e6

    yield from _by_threads(bench, ours, lambda count: random.choice(keys, count).tolist())
    name = "DuckDB, prepared, Parquet"
    rounds = bench.rounds(11, 3)
    runs = in_turns({"ours": one_by_one(ours, 20_000), name: one_by_one(peer, 100)}, rounds, warm_up=1)
    yield _figure(
        "lookups, one row at a time (lookup_one)", runs, name, ours_at_least(50_000), f", {cpu_us:.0f} us of CPU each"
    )
    runs = in_turns({"ours": one_by_one(as_arrow, 1_000), name: one_by_one(peer, 100)}, rounds, warm_up=1)
    yield _figure("the same as Arrow tables of one row (lookup)", runs, name)

    def many() -> float:
        batch = pa.table({"o_orderkey": np.sort(random.choice(keys, BATCH_ROWS))})
        return timed(lambda: table.lookup(batch)) / BATCH_ROWS

    def join() -> float:
        batch = pa.table({"o_orderkey": np.sort(random.choice(keys, BATCH_ROWS))})
        connection.register("batch", batch)
        seconds = timed(lambda: connection.execute(f"{SELECT} JOIN batch USING (o_orderkey)").to_arrow_table())
        return seconds / BATCH_ROWS

    name = "DuckDB, join with Parquet"
    runs = in_turns({"ours": many, name: join}, bench.rounds(31, 5), warm_up=2)
    yield _figure(f"lookups, {BATCH_ROWS:,} sorted keys at a time", runs, name, ours_at_least(400_000))


def _types(rows: pa.Table) -> list[str]:
    names = {pa.int64(): "BIGINT", pa.string(): "STRING", pa.date32(): "DATE"}
    return [names.get(field.type) or f"DECIMAL({field.type.precision},{field.type.scale})" for field in rows.schema]


def _by_threads(bench: Bench, find: Callable[[int], object], some: Callable[[int], Sequence[int]]) -> Iterator[Figure]:
    """Threads take turns, since Python runs one of them at a time: many should cost no more than one."""
    count = 20_000
    cpu_us: dict[int, list[float]] = {}

    def run(num_threads: int) -> float:
        parts = [some(count // num_threads) for _ in range(num_threads)]
        began = time.process_time()
        with ThreadPoolExecutor(num_threads) as pool:
            seconds = timed(lambda: list(pool.map(lambda part: _each(find, part), parts)))
        cpu_us.setdefault(num_threads, []).append((time.process_time() - began) / count * 1e6)
        return seconds / count

    runs = in_turns({"ours": lambda: run(THREADS), "one thread": lambda: run(1)}, bench.rounds(11, 3), warm_up=1)
    many, one = (statistics.median(cpu_us[n]) for n in (THREADS, 1))
    note = f", {many:.1f} us of CPU each, from one thread {one:.1f}"
    yield _figure(f"lookups, one row at a time, from {THREADS} threads", runs, "one thread", ratio_at_least(0.9), note)


def _each(find: Callable[[int], object], keys: Sequence[int]) -> float:
    def run() -> None:
        for key in keys:
            find(key)

    return timed(run)


def _figure(name: str, runs: Runs, peer: str, goal: Goal | None = None, note: str = "") -> Figure:
    """Rows a second: more is better. The runs are seconds for one row."""
    mine, theirs = runs["ours"], runs[peer]
    ratio = statistics.median(b / a for a, b in zip(mine, theirs, strict=True))
    note = f"best {1 / min(mine):,.0f}/s{note}"
    return Figure(
        name, "rows/s", 1 / statistics.median(mine), peer, 1 / statistics.median(theirs), ratio, len(mine), goal, note
    )
