"""Scans from Python: rows to polars and DuckDB, the first batch and the count of ten million rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

import streamhouse_spark as sh
from benchmarks.measure import Bench, Figure, in_turns, ours_at_most, ratio_at_most, time_figure, timed
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.table.maintenance.tiering import tier_table

ROWS = 10_000_000
COLUMNS = "id BIGINT, day INT, amount DOUBLE, name STRING"
GROUPED = "SELECT name, sum(amount) FROM {} WHERE day >= 50 GROUP BY name"


def scans(bench: Bench) -> Iterator[Figure]:
    """Ten million rows in one tiered table, and its own Parquet files for the peers."""
    num_rows = ROWS // 10 if bench.quick else ROWS
    url = str(bench.scratch / "warehouse")
    files = _fill(url, num_rows)
    rounds = bench.rounds(15, 3)
    last_day = 10 * num_rows // ROWS

    def table() -> sh.Table:
        return sh.Warehouse(url).table("bench.rows")

    opened = table()
    polars = "polars.scan_parquet of its files"
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "scan(filter).to_polars(), 1 of 10 files' row groups": (
            lambda: opened.scan(filter=f"day < {last_day}").to_polars(),
            lambda: pl.scan_parquet(files).filter(pl.col("day") < last_day).collect(),
        ),
        "scan(filter).to_polars(), half of the rows": (
            lambda: opened.scan(filter="amount > 0.5", columns=["id", "amount"]).to_polars(),
            lambda: pl.scan_parquet(files).filter(pl.col("amount") > 0.5).select("id", "amount").collect(),
        ),
        "to_polars(), all rows": (opened.to_polars, lambda: pl.read_parquet(files)),
        "scan_polars, half of the rows": (
            lambda: sh.scan_polars(opened).filter(pl.col("amount") > 0.5).select("id", "amount").collect(),
            lambda: pl.scan_parquet(files).filter(pl.col("amount") > 0.5).select("id", "amount").collect(),
        ),
    }
    for name, (ours, theirs) in cases.items():
        runs = in_turns({"ours": _timing(ours), polars: _timing(theirs)}, rounds, warm_up=2)
        yield time_figure(name, runs, polars, ratio_at_most(1.2))
    connection, peer = opened.to_duckdb("rows"), "DuckDB's Iceberg reader, same table"
    read_iceberg = _iceberg_reader(f"{url}/lake/bench/rows")
    runs = in_turns(
        {
            "ours": _timing(lambda: connection.sql(GROUPED.format("rows")).fetchall()),
            peer: _timing(lambda: read_iceberg(GROUPED)),
        },
        rounds,
        warm_up=2,
    )
    yield time_figure("DuckDB over a scan, grouped", runs, peer)
    yield from _bounded("count() of 10 M rows", table, lambda rows: rows.count(), rounds, 20)
    yield from _bounded("first batch of 10 M rows", table, lambda rows: next(rows.scan().to_batches()), rounds, 50)


def _fill(url: str, num_rows: int) -> list[str]:
    """Make and tier the table, and return its Parquet files."""
    table = sh.Warehouse(url).create_table("bench.rows", COLUMNS, buckets=1)
    random, texts = np.random.default_rng(7), pa.array([f"name {number}" for number in range(1000)])
    step = num_rows // 10
    for start in range(0, num_rows, step):
        rows = {
            "id": np.arange(start, start + step),
            "day": (np.arange(start, start + step) // 100_000).astype(np.int32),
            "amount": random.random(step),
            "name": texts.take(pa.array(random.integers(0, 1000, step))),
        }
        table.append(pa.table(rows))
    tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))
    return [str(name) for name in table.lake.files()["file_path"].to_pylist()]


def _timing(action: Callable[[], object]) -> Callable[[], float]:
    return lambda: timed(action)


def _iceberg_reader(location: str) -> Callable[[str], object]:
    from duckdb_extensions import import_extension

    connection = duckdb.connect()
    for extension in ("avro", "iceberg"):
        import_extension(extension)
        connection.load_extension(extension)
    connection.execute("SET unsafe_enable_version_guessing = true")
    return lambda query: connection.sql(query.format(f"iceberg_scan('{location}')")).fetchall()


def _bounded(
    name: str, table: Callable[[], sh.Table], action: Callable[[sh.Table], object], rounds: int, most_ms: float
) -> Iterator[Figure]:
    """Measure an action of an open table, and beside it that of a table that is opened for it."""
    opened = table()
    action(opened)
    runs = in_turns({"ours": _timing(lambda: action(opened)), "a": _timing(lambda: action(table()))}, rounds, warm_up=1)
    ours, fresh = (statistics.median(runs[who]) * 1000 for who in ("ours", "a"))
    yield Figure(name, "ms", ours, "the same, table opened for it", fresh, ours / fresh, rounds, ours_at_most(most_ms))
