"""The SQL catalog beside Spark's own Parquet reader: the lake alone, and unions with little and with much hot data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

import streamhouse_spark
from benchmarks import data
from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, Goal, in_turns, ours_at_most, ratio_at_most, time_figure, timed
from benchmarks.spark import parquet_files, session_builder
from streamhouse_spark import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 10_000_000
FILES = 8
BUCKETS = {"bucket.num": "4", "bucket.key": "l_orderkey"}
PEER = "Spark's Parquet reader"

QUERIES = {
    "sum": "SELECT sum(l_extendedprice) FROM {}",
    "group-by": "SELECT l_returnflag, l_linestatus, sum(l_quantity), avg(l_discount) FROM {} GROUP BY 1, 2",
    "1% filter": "SELECT count(*), max(l_comment) FROM {} WHERE l_orderkey BETWEEN {low} AND {high}",
}
HOT_SHARES: dict[str, tuple[float, Goal]] = {
    "lake": (0.0, ratio_at_most(1.1)),
    "union, 5% hot": (0.05, ratio_at_most(1.25)),
    "union, half hot": (0.5, ratio_at_most(2.0)),
}


def catalog_read(bench: Bench) -> Iterator[Figure]:
    """Sum, group-by and a filter for one row in a hundred, over the same rows in the same session."""
    rows = _rows(bench)
    url = str(bench.scratch / "warehouse")
    keys = rows.column("l_orderkey")
    low = keys[rows.num_rows // 2].as_py()
    high = keys[rows.num_rows // 2 + rows.num_rows // 100].as_py()
    names = {label: f"bench.hot_{round(share * 100)}" for label, (share, _) in HOT_SHARES.items()}
    for label, (share, _) in HOT_SHARES.items():
        table = Warehouse(url).create_table(names[label], rows.schema, properties=BUCKETS)
        tiered = rows.num_rows - int(rows.num_rows * share)
        table.append(rows.slice(0, tiered))
        tier(table)
        if tiered < rows.num_rows:
            table.append(rows.slice(tiered))
    parquet = parquet_files(bench.directory("parquet"), rows, -(-rows.num_rows // FILES))
    del rows
    spark = streamhouse_spark.configure(session_builder(bench.scratch), warehouse=url).getOrCreate()
    for label, (share, goal) in HOT_SHARES.items():
        name = names[label].split(".")[1]
        ours = f"streamhouse.bench.`{name}{'' if share else '$lake'}`"
        for query, text in QUERIES.items():
            statements = {
                "ours": text.format(ours, low=low, high=high),
                PEER: text.format(f"parquet.`{parquet}`", low=low, high=high),
            }
            _check_equal(spark, list(statements.values()))
            runs = in_turns({who: _run(spark, sql) for who, sql in statements.items()}, bench.rounds(9, 3), warm_up=2)
            yield time_figure(f"{label}: {query}", runs, PEER, goal)
    yield from _metadata(bench, spark, f"streamhouse.bench.{names['union, 5% hot'].split('.')[1]}", parquet)
    spark.stop()


def catalog_join(bench: Bench) -> Iterator[Figure]:
    """Two tables with the same four buckets joined by their bucket key: no row changes its task."""
    url = str(bench.scratch / "warehouse")
    paths = {}
    for name, key in (("lineitem", "l_orderkey"), ("orders", "o_orderkey")):
        rows = data.load(bench.data, name, quick=bench.quick)
        table = Warehouse(url).create_table(
            f"bench.{name}", rows.schema, properties={"bucket.num": "4", "bucket.key": key}
        )
        table.append(rows)
        tier(table)
        paths[name] = parquet_files(bench.directory(name), rows, -(-rows.num_rows // FILES))
        del rows
    spark = streamhouse_spark.configure(session_builder(bench.scratch), warehouse=url).getOrCreate()
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    text = "SELECT sum(l_quantity), max(o_totalprice) FROM {} JOIN {} ON l_orderkey = o_orderkey"
    statements = {
        "ours": text.format("streamhouse.bench.lineitem", "streamhouse.bench.orders"),
        PEER: text.format(f"parquet.`{paths['lineitem']}`", f"parquet.`{paths['orders']}`"),
    }
    plan = spark.sql("EXPLAIN " + statements["ours"]).collect()[0][0]
    if "Exchange hashpartitioning" in plan:
        raise AssertionError(f"the join of two tables bucketed alike shuffles:\n{plan}")
    _check_equal(spark, list(statements.values()))
    runs = in_turns({who: _run(spark, sql) for who, sql in statements.items()}, bench.rounds(7, 3), warm_up=1)
    yield time_figure("join on the bucket key, no shuffle", runs, PEER)
    spark.stop()


def _rows(bench: Bench) -> pa.Table:
    lineitem = data.load(bench.data, "lineitem", quick=bench.quick)
    wanted = lineitem.num_rows if bench.quick else ROWS
    return pa.concat_tables([lineitem, lineitem.slice(0, wanted - lineitem.num_rows)])


def _run(spark: SparkSession, sql: str) -> Callable[[], float]:
    return lambda: timed(lambda: spark.sql(sql).collect())


def _check_equal(spark: SparkSession, statements: list[str]) -> None:
    ours, theirs = (sorted(map(str, spark.sql(sql).collect())) for sql in statements)
    if ours != theirs:
        raise AssertionError(f"{statements[0]} gave {ours[:3]}, the peer {theirs[:3]}")


def _metadata(bench: Bench, spark: SparkSession, name: str, parquet: str) -> Iterator[Figure]:
    statements = {"ours": f"SELECT count(*) FROM {name}", PEER: f"SELECT count(*) FROM parquet.`{parquet}`"}
    _check_equal(spark, list(statements.values()))
    runs = in_turns({who: _run(spark, sql) for who, sql in statements.items()}, bench.rounds(9, 3), warm_up=2)
    yield time_figure("union, 5% hot: count(*) from metadata", runs, PEER)
    loads = in_turns(
        {
            "ours": lambda: timed(lambda: spark.table(name).schema),
            PEER: lambda: timed(lambda: spark.read.parquet(parquet).schema),
        },
        bench.rounds(21, 5),
        warm_up=3,
    )
    yield time_figure("load a table", loads, PEER, ours_at_most(50), note="the peer infers a schema")
