"""UPDATE, DELETE and MERGE on tables without a primary key, beside Delta and Iceberg: same session, same rows.

Each format has a table of its own, which every statement changes further. Delta marks rows by deletion vectors, Iceberg
by position deletes (merge-on-read). Ours alone syncs its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from benchmarks import data
from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, in_turns, ratio_at_most, time_figure, timed
from benchmarks.runtimes import BUCKETS, configured_builder, run_of
from streamhouse_spark import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS = "ours"
ICEBERG = "Iceberg, merge-on-read"
DELTA = "Delta, deletion vectors"
_SOURCE_ROWS = 10_000
_MERGE = (
    "MERGE INTO {} t USING source s ON t.l_orderkey = s.l_orderkey AND t.l_linenumber = s.l_linenumber"
    " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)


def row_statements(bench: Bench) -> Iterator[Figure]:
    """MERGE of 10,000 rows, a fifth of them new, UPDATE of one order and DELETE of one in a thousand, all rows tiered;
    and a sum over the table before and behind them.
    """
    rows = data.load(bench.data, "lineitem", quick=bench.quick)
    url = str(bench.scratch / "warehouse")
    table = Warehouse(url).create_table("bench.rows", rows.schema, properties=BUCKETS)
    table.append(rows)
    tier(table)
    orders = int(rows.column("l_orderkey")[-1].as_py())
    per_order = rows.num_rows / orders
    del rows
    spark = configured_builder(bench.scratch, url).getOrCreate()
    names = {OURS: "streamhouse.bench.rows", ICEBERG: "ice.peer.rows", DELTA: f"delta.`{bench.scratch / 'delta'}`"}
    _copy(spark, names)
    spark.sql(f"SELECT * FROM {names[ICEBERG]}").createOrReplaceTempView("all_rows")
    rounds, clean = bench.rounds(7, 2), _sums(bench, spark, names)
    yield time_figure("SQL, sum of a table without deleted rows", clean, ICEBERG)
    for name in names.values():
        spark.sql(f"DELETE FROM {name} WHERE l_orderkey % 100 = 7")
    tier(Warehouse(url).table("bench.rows"))
    marked = _sums(bench, spark, names)
    yield time_figure("the same, a hundredth of the rows deleted", marked, ICEBERG)
    ours = {"ours": marked[OURS], "ours, before": clean[OURS]}
    yield time_figure("the same, a hundredth of the rows deleted", ours, "ours, before", ratio_at_most(1.15))

    width = int(_SOURCE_ROWS * 0.8 / per_order)
    taken = iter(range(1, 1 << 30))

    def merge(name: str) -> Callable[[], float]:
        def run() -> float:
            _source(spark, next(taken) * width % orders, width)
            return timed(lambda: spark.sql(_MERGE.format(name)))

        return run

    merges = in_turns({who: merge(name) for who, name in names.items()}, rounds, warm_up=1)

    def one_order(name: str) -> Callable[[], float]:
        text = f"UPDATE {name} SET l_quantity = l_quantity + 1 WHERE l_orderkey = {{}}"
        return lambda: timed(lambda: spark.sql(text.format(next(taken) * 31 % orders)))

    updates = in_turns({who: one_order(name) for who, name in names.items()}, rounds, warm_up=1)

    def deletion(name: str) -> Callable[[], float]:
        text = f"DELETE FROM {name} WHERE l_orderkey % 1000 = {{}}"
        return lambda: timed(lambda: spark.sql(text.format(next(taken) % 1000)))

    deletions = in_turns({who: deletion(name) for who, name in names.items()}, rounds, warm_up=1)
    for peer in (ICEBERG, DELTA):
        yield time_figure("SQL, MERGE of 10,000 rows without a primary key", merges, peer, ratio_at_most(1.0))
        yield time_figure("SQL, UPDATE of one order", updates, peer, ratio_at_most(1.0))
        yield time_figure("SQL, DELETE of one row in a thousand", deletions, peer, ratio_at_most(1.0))
    tier(Warehouse(url).table("bench.rows"))
    yield time_figure("SQL, sum of the table behind these statements", _sums(bench, spark, names), ICEBERG)
    spark.stop()


def _copy(spark: SparkSession, names: dict[str, str]) -> None:
    """Make the peers' tables of our rows."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS ice.peer")
    modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("merge", "update", "delete"))
    spark.sql(
        f"CREATE TABLE {names[ICEBERG]} USING iceberg TBLPROPERTIES ('format-version' = '2', {modes}) "
        f"AS SELECT * FROM {names[OURS]}"
    )
    spark.sql(
        f"CREATE TABLE {names[DELTA]} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') "
        f"AS SELECT * FROM {names[OURS]}"
    )


def _source(spark: SparkSession, first: int, width: int) -> None:
    """Make the source of a MERGE: changed rows of some orders, and a fifth of as many with new keys."""
    spark.catalog.uncacheTable("source") if spark.catalog.tableExists("source") else None
    changed = spark.table("all_rows").where(f"l_orderkey BETWEEN {first} AND {first + width}")
    changed = changed.selectExpr("* EXCEPT (l_quantity)", "l_quantity + 1 AS l_quantity").select(changed.columns)
    new = changed.where("l_orderkey % 4 = 0").selectExpr("-l_orderkey AS l_orderkey", "* EXCEPT (l_orderkey)")
    changed.unionByName(new).createOrReplaceTempView("source")
    spark.catalog.cacheTable("source")
    spark.table("source").count()


def _sums(bench: Bench, spark: SparkSession, names: dict[str, str]) -> dict[str, list[float]]:
    runs = {who: run_of(spark, f"SELECT sum(l_extendedprice) FROM {name}") for who, name in names.items()}
    return dict(in_turns(runs, bench.rounds(9, 2), warm_up=2))
