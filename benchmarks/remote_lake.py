"""``T$lake`` on MinIO beside Spark's own Parquet source on the same files, and Iceberg's runtime on the same table.

``make bench-remote`` runs this, with PySpark 4.1, for which Iceberg publishes a runtime; Spark fetches it, and S3A. All
readers reach the store by one relay, which counts what they ask for and is told to delay it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import streamhouse_spark
from benchmarks import data
from benchmarks.iceberg_peer import PACKAGES, IcebergPeer
from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, in_turns, ratio_at_most, say, time_figure
from benchmarks.runtimes import BUCKETS, QUERIES, require_equal, run_of
from benchmarks.spark import session_builder
from benchmarks.stores import BUCKET, Asked, Relay, hadoop_settings, minio, warehouse_settings
from streamhouse_spark import Warehouse
from streamhouse_spark.cli.diagnostics import check_lake_reader, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARQUET = "Spark's Parquet over s3a, same files"
ICEBERG = "Iceberg's runtime, S3FileIO, same lake table"
ICEBERG_S3A = "Iceberg's runtime over s3a, same lake table"
GOALS = {PARQUET: ratio_at_most(1.1), ICEBERG: ratio_at_most(1.0), ICEBERG_S3A: ratio_at_most(1.0)}
DELAYS_MS = (0, 25)
ROWS = 2_400_000
HADOOPS = "hadoop"
"""Iceberg's catalog that finds our lake by its path, as whoever opens it without us does."""


def remote_lake(bench: Bench) -> Iterator[Figure]:
    """Each query from its text to the answer, by four ways, in turns; then the bytes of the answers to all of them."""
    rows = data.load(bench.data, "lineitem", quick=bench.quick).slice(0, ROWS)
    url = f"s3://{BUCKET}/wh"
    with minio(bench.scratch) as relay:
        say(f"writing a lake of {rows.num_rows:,} rows")
        settings = warehouse_settings(relay.endpoint)
        table = Warehouse(url, settings).create_table("bench.cold", rows.schema, properties=BUCKETS)
        table.append(rows)
        tier(table)
        del rows
        peer = IcebergPeer(bench.scratch, relay.endpoint)
        head = table.open_lake().head()
        assert head is not None
        registered = peer.register("cold", f"s3://{BUCKET}/wh/{head.key}")
        say("starting Spark")
        spark = _session(bench, url, settings, peer, relay.endpoint)
        try:
            spark.read.parquet(f"s3a://{BUCKET}/wh/lake/bench/cold/data/*").createOrReplaceTempView("plain")
            tables = {
                "ours": "streamhouse.bench.`cold$lake`",
                PARQUET: "plain",
                ICEBERG: registered,
                ICEBERG_S3A: f"{HADOOPS}.bench.cold",
            }
            for query, text in QUERIES.items():
                yield from _figures(bench, spark, relay, query, {who: text.format(at) for who, at in tables.items()})
        finally:
            spark.stop()


def _session(bench: Bench, url: str, settings: Mapping[str, str], peer: IcebergPeer, endpoint: str) -> SparkSession:
    [finding] = check_lake_reader(url, spark_jars({}))
    packages = (finding.remedy.rpartition(" ")[2], *PACKAGES)
    builder = session_builder(bench.scratch).config("spark.jars.packages", ",".join(packages))
    for key, value in hadoop_settings(endpoint).items():
        builder = builder.config(f"spark.hadoop.fs.s3a.{key}", value)
    builder = builder.config("spark.hadoop.fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem")
    catalog = f"spark.sql.catalog.{HADOOPS}"
    builder = builder.config(catalog, "org.apache.iceberg.spark.SparkCatalog").config(f"{catalog}.type", "hadoop")
    builder = builder.config(f"{catalog}.warehouse", f"s3a://{BUCKET}/wh/lake")
    return streamhouse_spark.configure(peer.configured(builder), warehouse=url, settings=settings).getOrCreate()


def _figures(
    bench: Bench, spark: SparkSession, relay: Relay, query: str, statements: Mapping[str, str]
) -> Iterator[Figure]:
    relay.set_delay(0)
    require_equal(spark, dict(statements))
    asked: dict[str, list[Asked]] = {who: [] for who in statements}

    def run(who: str) -> float:
        relay.asked()
        seconds = run_of(spark, statements[who])()
        asked[who].append(relay.asked())
        return seconds

    for delay_ms in DELAYS_MS:
        relay.set_delay(delay_ms)
        contestants = {who: lambda who=who: run(who) for who in statements}
        rounds, warm_up = (11, 5) if delay_ms else (25, 10)  # without a delay the scatter of the machine shows
        runs = in_turns(contestants, bench.rounds(rounds, 2), warm_up=bench.rounds(warm_up, 1))
        name = f"lake on MinIO, {delay_ms} ms away: {query}"
        for peer, goal in GOALS.items():
            yield time_figure(name, runs, peer, goal, note=f"{_kinds(asked['ours'])}; peer {_kinds(asked[peer])}")
    megabytes = {who: statistics.median(one.answered_bytes for one in found) / 1e6 for who, found in asked.items()}
    for peer, goal in GOALS.items():
        ratio = megabytes["ours"] / megabytes[peer]
        count = len(asked["ours"])
        yield Figure(f"the same, bytes: {query}", "MB", megabytes["ours"], peer, megabytes[peer], ratio, count, goal)


def _kinds(found: list[Asked]) -> str:
    """The requests of the last run."""
    return found[-1].kinds or "no request"
