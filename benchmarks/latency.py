"""Work on a store that is 25 ms away: MinIO behind a relay that delays each request of ours and of our peers alike.

``make bench-latency`` runs this, with PySpark 4.1, for which Iceberg publishes a runtime, and fetches MinIO. Every
answer is durable: we and delta-rs write with conditional puts, Iceberg's tables are in a catalog that is no store at
all. What a contestant reads is written before, without a delay.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.iceberg_peer import NAMESPACE, PACKAGES, IcebergPeer, sql_name
from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, Goal, Runs, in_turns, ours_at_most, percentile, say, time_figure, timed
from benchmarks.spark import session_builder
from benchmarks.stores import BUCKET, KEYS, REGION, Relay, minio, warehouse_settings
from streamhouse_spark import Table, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELAY_MS = 25
DELTA = "delta-rs, same relay"
ICEBERG = "Iceberg's Spark runtime, same relay"
PYICEBERG = "pyiceberg, same relay"
PEERS = (DELTA, ICEBERG, PYICEBERG)
BUSY = "the same, 50 appends a second"
ROWS = 1_000
COMMITS = 300
_START_SECONDS = 60


def latency(bench: Bench) -> Iterator[Figure]:
    with minio(bench.scratch) as relay:
        iceberg = IcebergPeer(bench.scratch, relay.endpoint)
        say("starting Spark")
        builder = session_builder(bench.scratch).config("spark.jars.packages", ",".join(PACKAGES))
        spark = iceberg.configured(builder).getOrCreate()
        try:
            far = Far(bench, relay, iceberg, spark)
            yield from far.appends()
            yield from far.opening()
            yield from far.many_commits()
            yield from far.union_read()
            yield from far.tiering()
            yield from far.freshness()
        finally:
            spark.stop()


class Far:
    """The warehouse and the peers' tables on the store behind the relay, which delays but while something is made."""

    def __init__(self, bench: Bench, relay: Relay, iceberg: IcebergPeer, spark: SparkSession) -> None:
        self._bench = bench
        self._relay = relay
        self._iceberg = iceberg
        self._spark = spark
        self.settings = warehouse_settings(relay.endpoint)
        self.options = delta_options(relay.endpoint)
        self.url = f"s3://{BUCKET}/wh"
        self.rows = _rows(ROWS)
        self._names = itertools.count()
        relay.set_delay(DELAY_MS)

    @contextmanager
    def _near(self, text: str) -> Iterator[None]:
        """Do without the delay what is not measured."""
        say(text)
        self._relay.set_delay(0)
        try:
            yield
        finally:
            self._relay.set_delay(DELAY_MS)

    def warehouse(self) -> Warehouse:
        return Warehouse(self.url, self.settings)

    def new_table(self, **options: Any) -> Table:
        return self.warehouse().create_table(f"bench.t{next(self._names)}", self.rows.schema, **options)

    def new_delta(self) -> str:
        """A table without rows, by its URL."""
        url = f"s3://{BUCKET}/delta/t{next(self._names)}"
        write_deltalake(url, self.rows.slice(0, 0), storage_options=self.options)
        return url

    def delta(self, url: str) -> DeltaTable:
        return DeltaTable(url, storage_options=self.options)

    def new_iceberg(self) -> str:
        """A table without rows, by its name, for both of Iceberg's readers and writers."""
        name = f"t{next(self._names)}"
        self._iceberg.create(name, self.rows.schema)
        return name

    def spark_rows(self, count: int) -> DataFrame:
        """The rows, of which Spark makes one file."""
        return self._spark.range(0, count, 1, 1).selectExpr("id", "id * 0.5D AS value", "concat('row ', id) AS text")

    def forget(self, name: str) -> None:
        """Let Iceberg load a table anew, which its catalog keeps for 30 s."""
        self._spark.catalog.refreshTable(sql_name(name))

    def _figures(self, title: str, runs: Runs, goal: Goal, peers: dict[str, str] | None = None) -> Iterator[Figure]:
        """A figure for each peer; the goal, which is of ours alone, is judged once. ``peers`` has other names."""
        names = peers or {peer: peer for peer in runs if peer != "ours"}
        for number, (peer, shown) in enumerate(names.items()):
            runs_of = {"ours": runs["ours"], shown: runs[peer]}
            yield time_figure(f"{DELAY_MS} ms away: {title}", runs_of, shown, goal if number == 0 else None)

    def appends(self) -> Iterator[Figure]:
        """Tables that stay open, so that only the append itself counts."""
        with self._near("appends"):
            table, delta = self.new_table(), self.delta(self.new_delta())
            of_spark, of_python = self.new_iceberg(), self._iceberg.catalog.load_table((NAMESPACE, self.new_iceberg()))
            rows = self.spark_rows(ROWS)
        contestants = {
            "ours": lambda: timed(lambda: table.append(self.rows)),
            DELTA: lambda: timed(lambda: write_deltalake(delta, self.rows, mode="append")),
            ICEBERG: lambda: timed(lambda: rows.writeTo(sql_name(of_spark)).append()),
            PYICEBERG: lambda: timed(lambda: of_python.append(self.rows)),
        }
        runs = in_turns(contestants, self._bench.rounds(30, 5), warm_up=3)
        yield from self._figures("append of 1,000 rows", runs, ours_at_most(35))

    def _written(self, commits: int, count: int, **options: Any) -> tuple[Table, str, str]:
        """Tables of so many commits of ``count`` rows each: ours, of Delta by its URL, of Iceberg by its name."""
        rows, of_spark = _rows(count), self.spark_rows(count)
        table, url, name = self.new_table(**options), self.new_delta(), self.new_iceberg()
        delta = self.delta(url)
        for _ in range(commits):
            table.append(rows)
            write_deltalake(delta, rows, mode="append")
            of_spark.writeTo(sql_name(name)).append()
        return table, url, name

    def opening(self) -> Iterator[Figure]:
        commits = self._bench.rounds(60, 10)
        with self._near(f"{commits} commits of each"):
            table, url, name = self._written(commits, ROWS)

        def of_spark() -> float:
            self.forget(name)
            return timed(lambda: self._spark.table(sql_name(name)))

        contestants: dict[str, Callable[[], float]] = {
            "ours": lambda: timed(lambda: self.warehouse().table(table.name)),
            DELTA: lambda: timed(lambda: self.delta(url)),
            ICEBERG: of_spark,
            PYICEBERG: lambda: timed(lambda: self._iceberg.catalog.load_table((NAMESPACE, name))),
        }
        runs = in_turns(contestants, self._bench.rounds(15, 3), warm_up=1)
        yield from self._figures(f"open a table of {commits} commits", runs, ours_at_most(120))

    def _readers(self, tables: tuple[Table, str, str], num_rows: int) -> dict[str, Callable[[], float]]:
        """Whoever opens the tables and reads all rows."""
        table, url, name = tables

        def of_spark() -> float:
            self.forget(name)
            return timed(lambda: _require(self._spark.table(sql_name(name)).toArrow(), num_rows))

        def of_python() -> pa.Table:
            return self._iceberg.catalog.load_table((NAMESPACE, name)).scan().to_arrow()

        return {
            "ours": lambda: timed(lambda: _require(self.warehouse().table(table.name).to_arrow(), num_rows)),
            DELTA: lambda: timed(lambda: _require(self.delta(url).to_pyarrow_table(), num_rows)),
            ICEBERG: of_spark,
            PYICEBERG: lambda: timed(lambda: _require(of_python(), num_rows)),
        }

    def many_commits(self) -> Iterator[Figure]:
        commits = self._bench.rounds(COMMITS, COMMITS // 10)
        with self._near(f"{commits} commits of each"):
            tables = self._written(commits, 10)
        runs = in_turns(self._readers(tables, commits * 10), self._bench.rounds(3, 1), warm_up=1)
        yield from self._figures(f"open and read {commits} small commits", runs, ours_at_most(400))

    def union_read(self) -> Iterator[Figure]:
        with self._near("rows in log and lake"):
            tables = self._written(8, ROWS, buckets=4)
            table, url, name = tables
            tier(table)
            table.append(self.rows)
            write_deltalake(self.delta(url), self.rows, mode="append")
            self.spark_rows(ROWS).writeTo(sql_name(name)).append()
        runs = in_turns(self._readers(tables, 9 * ROWS), self._bench.rounds(15, 3), warm_up=1)
        yield from self._figures("union read, opened anew", runs, ours_at_most(400))

    def tiering(self) -> Iterator[Figure]:
        """A round of four buckets with 250 rows each; the peers append as many rows, and tier nothing."""
        with self._near("tiering"):
            table, delta, name = self.new_table(buckets=4), self.delta(self.new_delta()), self.new_iceberg()
            rows = self.spark_rows(ROWS)

        def ours() -> float:
            table.append(self.rows)
            return timed(lambda: tier(table))

        contestants = {
            "ours": ours,
            DELTA: lambda: timed(lambda: write_deltalake(delta, self.rows, mode="append")),
            ICEBERG: lambda: timed(lambda: rows.writeTo(sql_name(name)).append()),
        }
        runs = in_turns(contestants, self._bench.rounds(15, 3), warm_up=2)
        shown = {peer: f"an append, {peer}" for peer in (DELTA, ICEBERG)}
        yield from self._figures("tiering round of 4 buckets", runs, ours_at_most(700), shown)

    def freshness(self) -> Iterator[Figure]:
        """From the beginning of an append to its rows in a tail of another process. Of the peers another process only
        sees the new version, which it looks for without a pause, and reads no rows: Delta's log, and Iceberg's table
        by pyiceberg.
        """
        appends = self._bench.rounds(60, 10)
        ours = self._tailed_ms(appends, pause_s=0.3)
        ages = {BUSY: self._tailed_ms(appends, pause_s=0.02)}
        appends = self._bench.rounds(30, 10)
        with self._near("another process looks"):
            url, name = self.new_delta(), self.new_iceberg()
            delta, rows = self.delta(url), self.spark_rows(ROWS)
        ages[f"{DELTA}: the version"] = self._seen_ms(
            "delta", (url, self.options), appends, lambda: write_deltalake(delta, self.rows, mode="append")
        )
        ages[f"{ICEBERG}: the version"] = self._seen_ms(
            "iceberg", (name, self._iceberg.settings), appends, lambda: rows.writeTo(sql_name(name)).append()
        )
        mine = percentile(ours, 0.5)
        note = f"p99 {percentile(ours, 0.99):.0f} ms"
        for number, (peer, found) in enumerate(ages.items()):
            title, theirs = f"{DELAY_MS} ms away: another process sees an append, p50", statistics.median(found)
            goal = ours_at_most(100) if number == 0 else None
            yield Figure(title, "ms", mine, peer, theirs, mine / theirs, 1, goal, note)

    def _tailed_ms(self, appends: int, *, pause_s: float) -> list[float]:
        table = self.warehouse().create_table(f"bench.f{next(self._names)}", _timed_rows().schema)
        with _reader("ours", (table.name, self.url, self.settings), appends) as reader:
            for _ in range(appends):
                time.sleep(pause_s)
                table.append(_timed_rows())
            return [float(text) for text in reader.communicate(timeout=_START_SECONDS)[0].split()]

    def _seen_ms(self, kind: str, place: object, appends: int, append: Callable[[], object]) -> list[float]:
        began = []
        append()  # warm
        with _reader(kind, place, appends) as reader:
            for _ in range(appends):
                time.sleep(0.3)
                began.append(time.monotonic_ns())
                append()
            seen = [int(text) for text in reader.communicate(timeout=_START_SECONDS)[0].split()]
        return [(saw - begin) / 1e6 for saw, begin in zip(seen, began, strict=True)]


@contextmanager
def _reader(kind: str, place: object, appends: int) -> Iterator[subprocess.Popen[str]]:
    """Another process that looks for so many appends; it is ready."""
    command = [sys.executable, "-m", "benchmarks.far_reader", kind, str(appends)]
    environment = os.environ | {"BENCH_PLACE": repr(place)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline().strip() == "ready", "the reading process did not start"
        yield reader


def delta_options(endpoint: str) -> dict[str, str]:
    """What a user gives delta-rs for the store."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": KEYS[0],
        "AWS_SECRET_ACCESS_KEY": KEYS[1],
        "AWS_ALLOW_HTTP": "true",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "false",
        "conditional_put": "etag",
    }


def _timed_rows() -> pa.Table:
    return pa.table({"began_ns": pa.array(np.full(ROWS, time.monotonic_ns())), "n": pa.array(np.arange(ROWS))})


def _rows(count: int) -> pa.Table:
    numbers = np.arange(count)
    return pa.table({"id": numbers, "value": numbers * 0.5, "text": [f"row {n}" for n in numbers]})


def _require(found: pa.Table, rows: int) -> None:
    assert found.num_rows == rows, f"{found.num_rows} rows, expected {rows}"
