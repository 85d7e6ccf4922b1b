"""Spark's real-time mode beside a real Kafka: from the beginning of a write to a `ForeachWriter` of the JVM.

``make bench-servers`` runs this, on PySpark 4.2. Spark fetches its source for Kafka, Maven the broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamhouse_spark
from benchmarks.measure import Bench, Figure, percentile
from benchmarks.realtime import BATCH_S, STATE_STORE, ages_of, ages_of_rows, tail_of, writers
from benchmarks.server_processes import running_kafka
from benchmarks.spark import session_builder
from streamhouse_spark import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA = "Kafka 4.3.1, page cache"
KAFKA_SOURCE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""Spark's own."""
RATES = (10, 200)


def server_realtime(bench: Bench) -> Iterator[Figure]:
    """One row a write, which the writer waits for; one bucket and one partition. Ours is fsynced, Kafka's is not."""
    url = str(bench.scratch / "warehouse")
    builder = session_builder(bench.scratch).config("spark.jars.packages", KAFKA_SOURCE)
    builder = builder.config("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
    builder = builder.config("spark.driver.extraClassPath", writers(bench.directory("writers")))
    with running_kafka(bench.directory("kafka").resolve(), (bench.data.parent / "servers").resolve()) as broker:
        spark = streamhouse_spark.configure(builder, warehouse=url).getOrCreate()
        try:
            for rate in RATES:
                yield _figure(bench, spark, Warehouse(url), broker, rate)
        finally:
            spark.stop()


def _figure(bench: Bench, spark: SparkSession, wh: Warehouse, broker: str, rate: int) -> Figure:
    seconds, trigger = bench.rounds(30, 5), {"realTime": f"{BATCH_S} seconds"}
    found: dict[str, list[float]] = {"ours": [], KAFKA: []}
    for turn, who in enumerate(("ours", KAFKA, KAFKA, "ours")):
        folder = bench.directory(f"turn-{rate}-{turn}")
        if who == "ours":
            table = wh.create_table(f"bench.rows_{rate}_{turn}", "number BIGINT, began_ns BIGINT", buckets=1)
            found[who] += ages_of(spark, table, folder, rate, seconds, trigger)
        else:
            found[who] += _kafka_ages(spark, broker, f"rows-{rate}-{turn}", folder, rate, seconds, trigger)
    ours, peer = (percentile(ages, 0.5) for ages in found.values())
    said = [tail_of(ages) for ages in found.values()]
    name = f"real-time mode, from write to foreach, {rate} rows/s"
    note = f"{said[0]}; Kafka {said[1]}; {len(found['ours'])} rows"
    return Figure(name, "ms", ours, KAFKA, peer, ours / peer, 2, note=note)


def _kafka_ages(
    spark: SparkSession, broker: str, topic: str, folder: Path, rate: int, seconds: int, trigger: dict[str, str]
) -> list[float]:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    return ages_of_rows(
        spark, _kafka_rows(spark, broker, topic), _producing(broker, topic), folder, rate, seconds, trigger
    )


def _producing(broker: str, topic: str) -> Callable[[int], None]:
    from confluent_kafka import Producer

    producer: Any = Producer({"bootstrap.servers": broker, "acks": "all", "linger.ms": 0})

    def append(number: int) -> None:
        producer.produce(topic, f"{number} {time.time_ns()}")
        if producer.flush(60):
            raise RuntimeError(f"{KAFKA} did not answer")

    return append


def _kafka_rows(spark: SparkSession, broker: str, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    messages = spark.readStream.format("kafka").options(**options).load()
    words = messages.selectExpr("split(CAST(value AS STRING), ' ') AS words")
    return words.selectExpr("CAST(words[0] AS BIGINT) AS number", "CAST(words[1] AS BIGINT) AS began_ns")
