"""Spark: the union read beside Spark's own Parquet reader, and a streaming micro-batch into our sink."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import streamhouse_spark
from benchmarks import data
from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, in_turns, ratio_at_most, time_figure, timed
from streamhouse_spark import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

QUERIES = {
    "count": ("l_linenumber BIGINT", 1.2),
    "sum": ("l_extendedprice DECIMAL(15,2)", 1.3),
    "group-by": ("l_returnflag STRING, l_linestatus STRING, l_quantity DECIMAL(15,2)", 2.0),
}
LAKE_SHARE = 0.8
FILES = 8
BATCH_ROWS = 1000
WARM_BATCHES = 3
StartStream = Callable[[Any, str], Any]
"""From the writer of a stream and the name of a new table to the started query."""


def session(scratch: Path) -> SparkSession:
    return streamhouse_spark.register(session_builder(scratch).getOrCreate())


def session_builder(scratch: Path) -> SparkSession.Builder:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .appName("benchmarks")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(scratch / "spark-warehouse"))
        .config("spark.log.level", "ERROR")
    )


def spark_read(bench: Bench) -> Iterator[Figure]:
    """Four fifths of the rows lie in the lake and one in the hot log; the peer's Parquet files hold them all.

    The session has the jar, and is measured as if it had none, too: then Python workers read.
    """
    rows = data.load(bench.data, "lineitem", quick=bench.quick)
    url = str(bench.scratch / "warehouse")
    table = Warehouse(url).create_table(
        "bench.rows", rows.schema, properties={"bucket.num": "2", "bucket.key": "l_orderkey"}
    )
    tiered = int(rows.num_rows * LAKE_SHARE)
    table.append(rows.slice(0, tiered))
    tier(table)
    table.append(rows.slice(tiered))
    parquet = parquet_files(bench.directory("parquet"), rows, -(-rows.num_rows // FILES))
    num_rows = rows.num_rows
    del rows
    spark = streamhouse_spark.configure(session_builder(bench.scratch), warehouse=url).getOrCreate()

    def union(schema: str) -> DataFrame:
        spark.conf.set("spark.sql.streamhouse.jvmReads", "true")
        return spark.read.schema(schema).format("streamhouse").option("warehouse", url).load("bench.rows")

    def in_python(schema: str) -> DataFrame:
        found = union(schema)
        spark.conf.set("spark.sql.streamhouse.jvmReads", "false")
        return found

    def native(schema: str) -> DataFrame:
        return spark.read.schema(schema).parquet(parquet)

    if not union(QUERIES["count"][0]).count() == native(QUERIES["count"][0]).count() == num_rows:
        raise AssertionError("both should hold the same rows")
    peer = "Spark's Parquet reader"
    for name, (schema, bound) in QUERIES.items():
        reads = {"ours": union, peer: native, "without the jar": in_python}
        contestants = {who: _query(name, read, schema) for who, read in reads.items()}
        runs = in_turns(contestants, bench.rounds(9, 3), warm_up=2)
        yield time_figure(f"Spark union read, {name}", runs, peer, ratio_at_most(bound))
        yield time_figure(f"Spark union read without the jar, {name}", runs, peer, ours="without the jar")
    spark.stop()


def _query(name: str, read: Callable[[str], DataFrame], schema: str) -> Callable[[], float]:
    from pyspark.sql import functions

    def run() -> Any:
        rows = read(schema)
        if name == "count":
            return rows.count()
        if name == "sum":
            return rows.agg(functions.sum("l_extendedprice")).collect()
        return rows.groupBy("l_returnflag", "l_linestatus").agg(functions.sum("l_quantity")).collect()

    return lambda: timed(run)


def spark_sink(bench: Bench) -> Iterator[Figure]:
    """Micro-batches of one file of 1,000 rows, with the jar. The peer's batch is run, and its rows go nowhere."""
    url = str(bench.scratch / "warehouse")
    spark = streamhouse_spark.configure(session_builder(bench.scratch), warehouse=url).getOrCreate()
    orders, stream = stream_batches(bench, spark)

    def ours(writer: DataStreamWriter, name: str) -> Any:
        Warehouse(url).create_table(f"bench.{name}", orders.schema)
        return writer.format("streamhouse").option("warehouse", url).start(f"bench.{name}")

    def nothing(writer: DataStreamWriter, _name: str) -> Any:
        return writer.foreachBatch(lambda rows, _: rows.write.format("noop").mode("append").save()).start()

    peer = "foreachBatch that does nothing"
    runs = in_turns(
        {
            "ours": lambda: statistics.median(stream(ours)),
            peer: lambda: statistics.median(stream(nothing)),
        },
        bench.rounds(5, 2),
        warm_up=1,
    )
    note = f"each turn is the median of {_batches(bench)} batches"
    yield time_figure("streaming micro-batch of 1,000 rows", runs, peer, ratio_at_most(1.1), note=note)
    spark.stop()


def stream_batches(bench: Bench, spark: SparkSession) -> tuple[pa.Table, Callable[[StartStream], list[float]]]:
    """Return orders, and a function that streams them a file of 1,000 rows a batch, and returns seconds a batch.

    The function is given how to start the query: from its writer and a name of a new table.
    """
    files = _batches(bench) + WARM_BATCHES
    orders = data.load(bench.data, "orders", quick=bench.quick).slice(0, BATCH_ROWS * files)
    source = parquet_files(bench.directory("source"), orders, BATCH_ROWS)
    schema = spark.read.parquet(source).schema
    numbers = itertools.count()

    def stream(start: StartStream) -> list[float]:
        number = next(numbers)
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(source)
        writer = rows.writeStream.option("checkpointLocation", str(bench.scratch / f"checkpoint-{number}"))
        query = start(writer.trigger(availableNow=True), f"rows_{number}")
        query.awaitTermination()
        durations = [_duration_ms(progress) for progress in query.recentProgress]
        return [ms / 1000 for ms in durations if ms is not None][WARM_BATCHES:]

    return orders, stream


def _batches(bench: Bench) -> int:
    return bench.rounds(12, 6)


def _duration_ms(progress: Any) -> float | None:
    """How long a batch took; None for a trigger that found no rows."""
    fields = progress if isinstance(progress, dict) else json.loads(progress.json)
    return fields["durationMs"]["triggerExecution"] if "addBatch" in fields["durationMs"] else None


def parquet_files(directory: Path, rows: pa.Table, rows_per_file: int) -> str:
    for number, start in enumerate(range(0, rows.num_rows, rows_per_file)):
        path = directory / f"{number:04d}.parquet"
        pq.write_table(rows.slice(start, rows_per_file), path, compression="zstd")
        os.utime(path, (1e9 + number, 1e9 + number))  # the order in which a stream takes them
    return str(directory)
