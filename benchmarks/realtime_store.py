"""How long after an append a `ForeachWriter` has its row, where the log lies on S3 and a request takes 25 ms longer.

``make bench-remote`` runs this: Spark fetches Hadoop's S3A. The store is moto's server on loopback, behind a relay that
delays and counts the requests. The appends go by it too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import streamhouse_spark
from benchmarks.measure import Bench, Figure, percentile, ratio_at_most
from benchmarks.realtime import BATCH_S, STATE_STORE, ages_of, tail_of, writers
from benchmarks.spark import session_builder
from benchmarks.stores import BUCKET, Relay, moto, relayed, warehouse_settings
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.cli.diagnostics import check_lake_reader, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELAY_MS = 25
IDLE_S = 60
"""Behind half a minute without rows looks are as rare as they get."""


def realtime_store(bench: Bench) -> Iterator[Figure]:
    with (
        moto(bench.scratch / "moto.log") as endpoint,
        relayed(urlsplit(endpoint).port or 0, DELAY_MS) as relay,
    ):
        settings = warehouse_settings(relay.endpoint)
        url = f"s3://{BUCKET}/wh"
        [finding] = check_lake_reader(url, spark_jars({}))
        builder = session_builder(bench.scratch).config("spark.jars.packages", finding.remedy.rpartition(" ")[2])
        builder = builder.config("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
        builder = builder.config("spark.driver.extraClassPath", writers(bench.directory("writers")))
        spark = streamhouse_spark.configure(builder, warehouse=url, settings=settings).getOrCreate()
        try:
            for rate in (2, 10):
                yield _figure(bench, spark, Warehouse(url, settings), rate)
            yield _idle(bench, spark, Warehouse(url, settings), relay)
        finally:
            spark.stop()


def _table(wh: Warehouse, name: str) -> Table:
    columns = "number BIGINT, began_ns BIGINT"
    return wh.create_table(f"bench.{name}", columns, buckets=1)


def _figure(bench: Bench, spark: SparkSession, wh: Warehouse, rate: int) -> Figure:
    seconds = bench.rounds(30, 5)
    ages = {}
    for way in ("real-time", "micro-batches"):
        name = f"{way.replace('-', '_')}_{rate}"
        trigger = {"realTime": f"{BATCH_S} seconds"} if way == "real-time" else {"processingTime": "0 seconds"}
        ages[way] = ages_of(spark, _table(wh, name), bench.directory(name), rate, seconds, trigger)
    ours, peer = (percentile(found, 0.5) for found in ages.values())
    appends = _append_ms(_table(wh, f"alone_{rate}"))
    said = [tail_of(found) for found in ages.values()]
    return Figure(
        name=f"from append to foreach, log on S3, {DELAY_MS} ms a request, {rate} rows/s",
        unit="ms",
        ours=ours,
        peer_name="micro-batches",
        peer=peer,
        ratio=ours / peer,
        pairs=1,
        note=f"{said[0]}; micro-batches {said[1]}; the append alone {appends:.1f}; {len(ages['real-time'])} rows",
    )


def _append_ms(table: Table) -> float:
    """Milliseconds until an append of a row is answered."""
    found = []
    for number in range(20):
        began = time.perf_counter()
        table.append([{"number": number, "began_ns": 0}])
        found.append((time.perf_counter() - began) * 1e3)
    return percentile(found, 0.5)


def _idle(bench: Bench, spark: SparkSession, wh: Warehouse, relay: Relay) -> Figure:
    """Requests of a query whose table has been quiet for half a minute."""
    table = _table(wh, "idle")
    table.append([{"number": 0, "began_ns": 0}])
    seconds = bench.rounds(IDLE_S, 40)
    stream = spark.readStream.table(f"streamhouse.{table.name}").writeStream.outputMode("update").format("console")
    stream = stream.option("checkpointLocation", str(bench.directory("idle") / "checkpoint"))
    query = stream.trigger(realTime=f"{BATCH_S} seconds").start()
    try:
        time.sleep(seconds)
        relay.asked()
        time.sleep(10)
        found = len(relay.asked().requests) / 10
    finally:
        query.stop()
    return Figure(
        name="requests of an idle query in real-time mode, log on S3",
        unit="/s",
        ours=found,
        peer_name="one a second",
        peer=1.0,
        ratio=found,
        pairs=1,
        goal=ratio_at_most(1.0),
    )
