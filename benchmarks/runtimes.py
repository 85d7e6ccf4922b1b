"""The SQL catalog and the sink beside Iceberg's and Delta's own runtimes: same session, same rows, same lake table.

``make bench-spark`` runs these, with PySpark 4.1, for which both publish a runtime. Spark fetches the runtimes from
Maven Central.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import streamhouse_spark
from benchmarks import data
from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, in_turns, ratio_at_most, time_figure, timed
from benchmarks.spark import parquet_files, session_builder, stream_batches
from streamhouse_spark import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
DELTA = "io.delta:delta-spark_4.1_2.13:4.4.0"
ICEBERG_PEER = "Iceberg's runtime, same lake table"
PLAIN_PEER = "plain Spark, Parquet files"
BUCKETS = {"bucket.num": "4", "bucket.key": "l_orderkey"}
HOT_SHARE = 0.05
QUERIES = {
    "count": "SELECT count(*) FROM {}",
    "sum": "SELECT sum(l_extendedprice) FROM {}",
    "group-by": "SELECT l_returnflag, sum(l_quantity), avg(l_discount) FROM {} GROUP BY 1",
    "Q6": (
        "SELECT sum(l_extendedprice * l_discount) FROM {} WHERE l_shipdate >= DATE '1994-01-01'"
        " AND l_shipdate < DATE '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24"
    ),
    "Q1": (
        "SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),"
        " sum(l_extendedprice * (1 - l_discount)), sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)),"
        " avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*)"
        " FROM {} WHERE l_shipdate <= DATE '1998-09-02' GROUP BY 1, 2 ORDER BY 1, 2"
    ),
    "point": "SELECT * FROM {} WHERE l_orderkey = 1000",
}


def iceberg_queries(bench: Bench) -> Iterator[Figure]:
    """``T$lake`` and a union with 5% hot rows, both beside Iceberg's runtime on a lake of all rows."""
    rows = data.load(bench.data, "lineitem", quick=bench.quick)
    url = str(bench.scratch / "warehouse")
    _table(url, "bench.cold", rows, 0.0)
    _table(url, "bench.warm", rows, HOT_SHARE)
    del rows
    spark = _session(bench, url)
    contestants = {"lake": "streamhouse.bench.`cold$lake`", "union, 5% hot": "streamhouse.bench.warm"}
    for label, ours in contestants.items():
        goal = ratio_at_most(1.0 if label == "lake" else 1.15)
        for query, text in QUERIES.items():
            statements = {"ours": text.format(ours), ICEBERG_PEER: text.format("ice.bench.cold")}
            require_equal(spark, statements)
            runs = in_turns(
                {who: run_of(spark, sql) for who, sql in statements.items()},
                bench.rounds(9, 3),
                warm_up=bench.rounds(3, 1),
            )
            yield time_figure(f"SQL, {label}: {query}", runs, ICEBERG_PEER, goal)
    spark.stop()


def iceberg_first_query(bench: Bench) -> Iterator[Figure]:
    """The first statement of a new session, from the session's being there to the answer, each in a new JVM. The peers'
    sessions do not have our catalog: it begins a worker with the session.
    """
    rows = data.load(bench.data, "lineitem", quick=True)
    url = str(bench.scratch / "warehouse")
    _table(url, "bench.cold", rows, 0.0)
    parquet = parquet_files(bench.directory("parquet"), rows, -(-rows.num_rows // 4))
    tables = {
        "ours": "streamhouse.bench.`cold$lake`",
        ICEBERG_PEER: "ice.bench.cold",
        PLAIN_PEER: f"parquet.`{parquet}`",
    }

    def first(who: str) -> float:
        sql = QUERIES["sum"].format(tables[who])
        call = [sys.executable, "-m", "benchmarks.first_query", str(bench.scratch), url, sql]
        if who != "ours":
            call.append("--without-ours")
        return float(subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])

    runs = in_turns({who: lambda who=who: first(who) for who in tables}, bench.rounds(5, 2))
    yield time_figure("SQL, first query of a session", runs, ICEBERG_PEER, ratio_at_most(1.2))
    more_ms = statistics.median(a - b for a, b in zip(runs["ours"], runs[PLAIN_PEER], strict=True)) * 1000
    yield time_figure("the same", runs, PLAIN_PEER, note=f"{more_ms:,.0f} ms more; the goal is at most 1,000")


def sinks(bench: Bench) -> Iterator[Figure]:
    """Micro-batches of one file of 1,000 rows into our sink, Delta's and Iceberg's. Ours alone syncs its files."""
    url = str(bench.scratch / "warehouse")
    Warehouse(url).create_table("bench.first", "id BIGINT")  # before Iceberg's catalog makes the folder its own
    spark = _session(bench, url)
    orders, stream = stream_batches(bench, spark)
    ddl = ", ".join(f"{field.name} {_sql_type(field.type)}" for field in orders.schema)

    def ours(writer: Any, name: str) -> Any:
        Warehouse(url).create_table(f"bench.{name}", orders.schema)
        return writer.format("streamhouse").option("warehouse", url).start(f"bench.{name}")

    def delta(writer: Any, name: str) -> Any:
        return writer.format("delta").start(str(bench.scratch / name))

    def iceberg(writer: Any, name: str) -> Any:
        spark.sql(f"CREATE TABLE ice.bench.{name} ({ddl}) USING iceberg")
        return writer.format("iceberg").option("fanout-enabled", "true").toTable(f"ice.bench.{name}")

    contestants = {"ours": ours, "Delta's sink": delta, "Iceberg's sink": iceberg}
    runs = in_turns(
        {who: lambda start=start: statistics.median(stream(start)) for who, start in contestants.items()},
        bench.rounds(5, 2),
        warm_up=1,
    )
    for peer in list(contestants)[1:]:
        yield time_figure("streaming micro-batch of 1,000 rows", runs, peer, ratio_at_most(1.0))
    spark.stop()


def configured_builder(scratch: Path, url: str) -> SparkSession.Builder:
    """A session with our catalog as users set it up, and the peers'."""
    return streamhouse_spark.configure(peers_builder(scratch, url), warehouse=url)


def peers_builder(scratch: Path, url: str) -> SparkSession.Builder:
    """A session with Iceberg's catalog as ``ice`` over the same lake, and Delta's format."""
    lake = str(Path(url, "lake"))
    return (
        session_builder(scratch)
        .config("spark.jars.packages", f"{ICEBERG},{DELTA}")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "2")  # as shuffles have: 50 are for large tables
        .config("spark.sql.catalog.ice", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.ice.type", "hadoop")
        .config("spark.sql.catalog.ice.warehouse", lake)
    )


def _session(bench: Bench, url: str) -> SparkSession:
    return configured_builder(bench.scratch, url).getOrCreate()


def _table(url: str, name: str, rows: pa.Table, hot_share: float) -> None:
    table = Warehouse(url).create_table(name, rows.schema, properties=BUCKETS)
    tiered = rows.num_rows - int(rows.num_rows * hot_share)
    table.append(rows.slice(0, tiered))
    tier(table)
    if tiered < rows.num_rows:
        table.append(rows.slice(tiered))


def run_of(spark: SparkSession, sql: str) -> Callable[[], float]:
    return lambda: timed(lambda: spark.sql(sql).collect())


def require_equal(spark: SparkSession, statements: dict[str, str]) -> None:
    answers = {who: sorted(map(str, spark.sql(sql).collect())) for who, sql in statements.items()}
    if len({json.dumps(answer) for answer in answers.values()}) > 1:
        raise AssertionError(f"answers of {statements} differ: { {who: found[:2] for who, found in answers.items()} }")


def _sql_type(arrow: pa.DataType) -> str:
    if pa.types.is_decimal(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    return {"int64": "BIGINT", "int32": "INT", "string": "STRING", "date32[day]": "DATE"}[str(arrow)]
