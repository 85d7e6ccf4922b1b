"""Micro-batches that need 2 of 16 columns and one partition of three, over S3: time, requests and bytes.

``make bench-remote`` runs this: Spark fetches Hadoop's S3A. The store is moto's server on loopback, behind a relay that
counts, so all sides are counted alike.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

import streamhouse_spark
from benchmarks import data
from benchmarks.measure import Bench, Figure, Runs, in_turns, time_figure
from benchmarks.spark import _duration_ms, session_builder
from benchmarks.stores import BUCKET, KEYS, REGION, Relay, hadoop_settings, moto, relayed, warehouse_settings
from streamhouse_spark import Warehouse
from streamhouse_spark.cli.diagnostics import check_lake_reader, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("l_orderkey", "l_extendedprice")
PARTITION = "l_returnflag"
WANTED = "A"
UNPRUNED = "the same, not pruned"
PARQUET = "Spark's Parquet stream over s3a, in folders by partition"
BATCHES = 6
PRUNING = "spark.sql.streamhouse.jvmReads"
"""The setting that takes Spark's plans to the reader, and with them what a batch needs."""


@dataclass(frozen=True)
class Turn:
    """One run of a stream over all batches."""

    seconds: float
    """Of the batch in the middle."""
    requests: float
    """A batch."""
    megabytes: float
    """A batch."""


def stream_pruning(bench: Bench) -> Iterator[Figure]:
    rows = data.load(bench.data, "lineitem", quick=True)
    with moto(bench.scratch / "moto.log") as endpoint, relayed(urlsplit(endpoint).port or 0, 0) as relay:
        settings = warehouse_settings(relay.endpoint)
        url = f"s3://{BUCKET}/wh"
        _write(Warehouse(url, settings), rows, relay.endpoint)
        spark = _session(bench, url, settings, relay.endpoint)
        try:
            yield from _figures(bench, spark, relay)
        finally:
            spark.stop()


def _write(warehouse: Warehouse, rows: pa.Table, endpoint: str) -> None:
    """Append a part of the rows for each batch, and write it as a Parquet file for each partition."""
    table = warehouse.create_table("bench.rows", rows.schema, partition_by=[PARTITION], buckets=1)
    store = pafs.S3FileSystem(access_key=KEYS[0], secret_key=KEYS[1], endpoint_override=endpoint, region=REGION)
    size = -(-rows.num_rows // BATCHES)
    for number in range(BATCHES):
        part = rows.slice(number * size, size)
        table.append(part)
        for value in pc.unique(part[PARTITION]).to_pylist():
            of_value = part.filter(pc.equal(part[PARTITION], value)).drop_columns([PARTITION])
            path = f"{BUCKET}/parquet/{PARTITION}={value}/{number:04d}.parquet"
            pq.write_table(of_value, path, filesystem=store, compression="zstd")


def _session(bench: Bench, url: str, settings: Mapping[str, str], endpoint: str) -> SparkSession:
    [finding] = check_lake_reader(url, spark_jars({}))
    builder = session_builder(bench.scratch).config("spark.jars.packages", finding.remedy.rpartition(" ")[2])
    for key, value in hadoop_settings(endpoint).items():
        builder = builder.config(f"spark.hadoop.fs.s3a.{key}", value)
    return streamhouse_spark.configure(builder, warehouse=url, settings=settings).getOrCreate()


def _figures(bench: Bench, spark: SparkSession, relay: Relay) -> Iterator[Figure]:
    flags = spark.read.parquet(f"s3a://{BUCKET}/parquet")
    wanted = flags.where(f"{PARTITION} = '{WANTED}'").count()
    files_a_batch = flags.select(PARTITION).distinct().count()
    rows_a_batch = -(-flags.count() // BATCHES)
    schema = flags.schema

    def ours() -> DataFrame:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": rows_a_batch}
        return spark.readStream.options(**options).table("streamhouse.bench.rows")

    def parquet() -> DataFrame:
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_a_batch)
        return stream.parquet(f"s3a://{BUCKET}/parquet")

    turns: dict[str, list[Turn]] = {"ours": [], UNPRUNED: [], PARQUET: []}
    numbers = itertools.count()

    def run(who: str, stream: Callable[[], DataFrame]) -> float:
        spark.conf.set(PRUNING, str(who == "ours").lower())
        checkpoint = str(bench.scratch / f"checkpoint-{next(numbers)}")
        turn = _turn(stream(), checkpoint, relay)
        turns[who].append(turn)
        return turn.seconds

    _require_rows(bench, {"ours": ours(), PARQUET: parquet()}, wanted)
    runs = in_turns(
        {
            "ours": lambda: run("ours", ours),
            UNPRUNED: lambda: run(UNPRUNED, ours),
            PARQUET: lambda: run(PARQUET, parquet),
        },
        bench.rounds(5, 1),
        warm_up=1,
    )
    for peer in (UNPRUNED, PARQUET):
        yield time_figure("micro-batch of 2 of 16 columns, 1 of 3 partitions", runs, peer)
        requests = {who: [turn.requests for turn in found] for who, found in turns.items()}
        yield _counted("requests of such a batch", "requests", requests, peer)
        megabytes = {who: [turn.megabytes for turn in found] for who, found in turns.items()}
        yield _counted("bytes of such a batch", "MB", megabytes, peer)


def _turn(stream: DataFrame, checkpoint: str, relay: Relay) -> Turn:
    relay.asked()
    wanted = stream.where(f"{PARTITION} = '{WANTED}'").select(*COLUMNS)
    writer = wanted.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spent = [ms for progress in query.recentProgress if (ms := _duration_ms(progress)) is not None]
    asked = relay.asked()
    return Turn(
        statistics.median(spent) / 1e3, len(asked.requests) / len(spent), asked.answered_bytes / len(spent) / 1e6
    )


def _require_rows(bench: Bench, streams: Mapping[str, DataFrame], wanted: int) -> None:
    for number, (who, stream) in enumerate(streams.items()):
        found: list[int] = []

        def count(batch: DataFrame, _number: int, found: list[int] = found) -> None:
            found.append(batch.count())

        rows = stream.where(f"{PARTITION} = '{WANTED}'").select(*COLUMNS)
        writer = rows.writeStream.option("checkpointLocation", str(bench.scratch / f"first-{number}"))
        writer = writer.foreachBatch(count)
        writer.trigger(availableNow=True).start().awaitTermination()
        if sum(found) != wanted:
            raise AssertionError(f"{who} has {sum(found)} rows, expected {wanted}")


def _counted(name: str, unit: str, found: Runs, peer: str) -> Figure:
    mine, theirs = (statistics.median(found[who]) for who in ("ours", peer))
    return Figure(name, unit, mine, peer, theirs, mine / theirs, len(found["ours"]))
