"""The union read of a table with a primary key: a large lake, and a few changes that it does not hold yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.keyed import own_cache
from benchmarks.measure import Bench, Figure, in_turns, ratio_at_most, time_figure, timed
from streamhouse_spark import Warehouse
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally

ROWS = 5_000_000
LOAD_ROWS = 1_000_000
CHANGES = 10_000
BUCKETS = 4


def rows_of(ids: np.ndarray, version: int) -> pa.Table:
    """A key, a text, a number and a float."""
    names = pa.array([f"name-{i}" for i in range(1000)]).take(pa.array((ids + version) % 1000))
    return pa.table({"id": ids, "name": names, "n": ids * (version + 1), "amount": ids * 0.5})


def keyed_reading(bench: Bench) -> Iterator[Figure]:
    """All current rows of 5 M in the lake and 10 k changes in the log, beside pyarrow on the same Parquet files."""
    total = ROWS // 10 if bench.quick else ROWS
    with own_cache(bench.directory("cache")):
        warehouse = Warehouse(str(bench.scratch / "warehouse"))
        table = warehouse.create_table(
            "bench.keyed", "id BIGINT, name STRING, n BIGINT, amount DOUBLE", primary_key=["id"], buckets=BUCKETS
        )
        for start in range(0, total, LOAD_ROWS):
            table.upsert(rows_of(np.arange(start, min(total, start + LOAD_ROWS)), 0))
        TieringJob(table.log, table.open_lake(), world=table.world).run(
            run_tasks_locally(table.storage, table.settings, table.world)
        )
        table.upsert(rows_of(np.random.default_rng(3).choice(total, CHANGES, replace=False), 1))
    files = sorted(str(path) for path in Path(bench.scratch).rglob("*.parquet"))

    def ours() -> pa.Table:
        return Warehouse(warehouse.url).table("bench.keyed").to_arrow()

    def plain() -> pa.Table:
        return pa.concat_tables(pq.ParquetFile(file, page_checksum_verification=True).read() for file in files)

    def unverified() -> pa.Table:
        return pq.read_table(files)

    found = ours()
    if found.num_rows != total or plain().num_rows != total:
        raise AssertionError(f"{found.num_rows} and {plain().num_rows} rows instead of {total}")
    if int(np.sum(found["n"].to_numpy() != found["id"].to_numpy())) not in range(CHANGES - 1, CHANGES + 1):
        raise AssertionError("the changes should be among the rows")
    runs = in_turns(
        {
            "ours": lambda: timed(ours),
            "pyarrow, checksums": lambda: timed(plain),
            "pyarrow": lambda: timed(unverified),
        },
        bench.rounds(9, 3),
        warm_up=1,
    )
    what = f"{total / 1e6:.3g}M rows, {CHANGES // 1000}k changes, all rows"
    yield time_figure(what, runs, "pyarrow", ratio_at_most(1.3))
    yield time_figure(what, runs, "pyarrow, checksums")
