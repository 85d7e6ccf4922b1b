"""``T$lake`` on S3 beside Spark's own Parquet source over the same files, and beside Python's reader of them.

``make bench-spark`` runs this: Spark fetches Hadoop's S3A. The store is moto's server on loopback, in a process of its
own, which is slower than a real one and as far away for all.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import streamhouse_spark
from benchmarks import data
from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, in_turns, ratio_at_most, time_figure
from benchmarks.runtimes import BUCKETS, QUERIES, require_equal, run_of
from benchmarks.spark import session_builder
from streamhouse_spark import Warehouse
from streamhouse_spark.cli.doctor import check_lake_reader, spark_jars

BUCKET = "bench"
PARQUET_PEER = "Spark's Parquet over s3a, same files"
PYTHON_PEER = "Python's reader, same table"
_START_SECONDS_MAX = 60


def remote_lake(bench: Bench) -> Iterator[Figure]:
    """Each query from its text to the answer, by three ways, in turns."""
    rows = data.load(bench.data, "lineitem", quick=True)
    with moto(bench.scratch / "moto.log") as endpoint:
        settings = {"s3.endpoint": endpoint, "s3.region": "us-east-1"}
        settings |= {"s3.access-key-id": "bench-id", "s3.secret-access-key": "bench-key"}
        url = f"s3://{BUCKET}/wh"
        table = Warehouse(url, settings).create_table("bench.cold", rows.schema, properties=BUCKETS)
        table.append(rows)
        tier(table)
        [finding] = check_lake_reader(url, spark_jars({}))
        builder = session_builder(bench.scratch).config("spark.jars.packages", finding.remedy.rpartition(" ")[2])
        for key, value in hadoop_settings(endpoint).items():
            builder = builder.config(f"spark.hadoop.fs.s3a.{key}", value)
        builder = streamhouse_spark.configure(builder, warehouse=url, settings=settings)
        builder = streamhouse_spark.configure(
            builder, warehouse=url, catalog="python", settings={**settings, "lake.spark-reader": "false"}
        )
        spark = builder.getOrCreate()
        spark.read.parquet(f"s3a://{BUCKET}/wh/lake/bench/cold/data/*").createOrReplaceTempView("plain")
        for query, text in QUERIES.items():
            ours, python = (text.format(f"{catalog}.bench.`cold$lake`") for catalog in ("streamhouse", "python"))
            statements = {"ours": ours, PARQUET_PEER: text.format("plain"), PYTHON_PEER: python}
            require_equal(spark, statements)
            runs = in_turns({who: run_of(spark, sql) for who, sql in statements.items()}, bench.rounds(9, 3), warm_up=1)
            yield time_figure(f"SQL, lake on S3: {query}", runs, PARQUET_PEER, ratio_at_most(1.1))
            yield time_figure(f"SQL, lake on S3: {query}", runs, PYTHON_PEER)
        spark.stop()


def hadoop_settings(endpoint: str) -> dict[str, str]:
    """What a user gives S3A for the same store."""
    return {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": "bench-id",
        "secret.key": "bench-key",
    }


@contextmanager
def moto(log: Path) -> Iterator[str]:
    """Run moto's server with an empty bucket; the endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=output, stderr=output
        )
    try:
        _make_bucket(f"{endpoint}/{BUCKET}")
        yield endpoint
    finally:
        server.kill()
        server.wait()


def _make_bucket(url: str) -> None:
    until = time.monotonic() + _START_SECONDS_MAX
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
        except URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return
