"""Upserts on Spark: changes made by the tasks, beside the driver making all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

import streamhouse_spark
from benchmarks.keyed import NO_LAKE, UPDATED_SHARE, own_cache
from benchmarks.measure import Bench, Figure, in_turns, ratio_at_most, time_figure, timed
from benchmarks.spark import parquet_files, session_builder
from streamhouse_spark import Warehouse

ROWS = 2_000_000
BATCH_ROWS = 1_000_000
BUCKETS = 8
TASKS = 2
PEER = "merged by the driver"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.int64()),
        pa.field("status", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("comment", pa.string()),
    ]
)


def keyed_spark(bench: Bench) -> Iterator[Figure]:
    """INSERT INTO of a table with a primary key, four fifths of it updates. Both sides shuffle rows alike by bucket.

    The peer goes without the catalog: its tasks stage what is to be done to keys, and the driver merges all of it.
    """
    shrink = 10 if bench.quick else 1
    num_rows, batch_rows = ROWS // shrink, BATCH_ROWS // shrink
    url = str(bench.scratch / "warehouse")
    rows = _rows(np.arange(num_rows), np.random.default_rng(5))
    with own_cache(bench.directory("cache")):
        warehouse = Warehouse(url)
        for name in ("ours", "peer"):
            table = warehouse.create_table(
                f"bench.{name}", SCHEMA, primary_key=["id"], buckets=BUCKETS, properties=NO_LAKE
            )
            table.upsert(rows)
        spark = streamhouse_spark.configure(session_builder(bench.scratch), warehouse=url).getOrCreate()
        rounds = bench.rounds(7, 2)
        sources = {name: _sources(bench, name, rounds + 1, num_rows, batch_rows) for name in ("ours", "peer")}

        def ours() -> float:
            spark.read.parquet(next(sources["ours"])).createOrReplaceTempView("changes")
            return timed(lambda: spark.sql("INSERT INTO streamhouse.bench.ours SELECT * FROM changes"))

        def peer() -> float:
            changes = spark.read.parquet(next(sources["peer"]))
            slots = changes.selectExpr("*", f"streamhouse.system.slot({BUCKETS}, {TASKS}, id) AS slot")
            writer = slots.repartition(TASKS, "slot").drop("slot").write.format("streamhouse").mode("append")
            return timed(lambda: writer.option("warehouse", url).save("bench.peer"))

        contestants: dict[str, Callable[[], float]] = {"ours": ours, PEER: peer}
        runs = in_turns(contestants, rounds, warm_up=1)
        spark.stop()
        expected, found = (warehouse.table(f"bench.{name}").to_arrow().sort_by("id") for name in ("peer", "ours"))
        if found != expected:
            raise AssertionError("both should hold the same rows")
    note = f"{batch_rows:,} rows into {num_rows:,}, {BUCKETS} buckets, {TASKS} tasks"
    yield time_figure("INSERT INTO by key on Spark", runs, PEER, ratio_at_most(1), note=note)


def _sources(bench: Bench, name: str, batches: int, num_rows: int, batch_rows: int) -> Iterator[str]:
    """A directory of Parquet for each batch: the same batches for both."""
    rng = np.random.default_rng(6)
    updated = int(batch_rows * UPDATED_SHARE)
    for number in range(batches):
        first_new = num_rows + number * (batch_rows - updated)
        new = np.arange(first_new, first_new + batch_rows - updated)
        keys = rng.permutation(np.concatenate([rng.choice(num_rows, updated, replace=False), new]))
        yield parquet_files(bench.directory(f"{name}-{number}"), _rows(keys, rng), -(-batch_rows // 4))


def _rows(keys: np.ndarray, rng: np.random.Generator) -> pa.Table:
    words = pa.array([f"comment number {i} of a customer" for i in range(1000)])
    columns = [
        pa.array(keys),
        pa.array(rng.integers(0, 100_000, len(keys))),
        pa.array(["open", "paid", "sent"]).take(pa.array(rng.integers(0, 3, len(keys)))),
        pa.array(rng.random(len(keys))),
        words.take(pa.array(rng.integers(0, 1000, len(keys)))),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
