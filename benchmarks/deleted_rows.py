"""Scans of a table with a hundredth of its rows deleted, beside the same rows without: in SQL and in plain Python.

Where the deletions are newer than the lake, readers leave out rows of its files by what the log says of them; a round
later files of deleted positions lie beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

import streamhouse_spark
from benchmarks import data
from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, in_turns, ratio_at_most, time_figure, timed
from benchmarks.runtimes import BUCKETS, HOT_SHARE, QUERIES, run_of
from benchmarks.spark import session_builder
from streamhouse_spark import Warehouse

WHOLE = "ours, no row deleted"
TABLES = {"whole": WHOLE, "marked": "deleted in the log", "tiered": "deleted in the lake"}
DELETION = "DELETE FROM streamhouse.bench.{} WHERE l_orderkey % 100 = 7"
Q6 = [("l_discount", ">=", Decimal("0.05")), ("l_discount", "<=", Decimal("0.07")), ("l_quantity", "<", Decimal(24))]
Q6_COLUMNS = ["l_extendedprice", "l_discount"]


def deleted_rows(bench: Bench) -> Iterator[Figure]:
    """count(*), a sum and TPC-H's sixth query over 6 M rows in 4 buckets, a twentieth of them in the log."""
    rows = data.load(bench.data, "lineitem", quick=bench.quick)
    num_cold, url = rows.num_rows - int(rows.num_rows * HOT_SHARE), str(bench.scratch / "warehouse")
    for name in TABLES:
        table = Warehouse(url).create_table(f"bench.{name}", rows.schema, properties=BUCKETS)
        table.append(rows.slice(0, num_cold))
        tier(table)
    spark = streamhouse_spark.configure(session_builder(bench.scratch), warehouse=url).getOrCreate()
    spark.sql(DELETION.format("tiered"))
    tier(Warehouse(url).table("bench.tiered"))
    for name in TABLES:
        Warehouse(url).table(f"bench.{name}").append(rows.slice(num_cold))
    spark.sql(DELETION.format("marked"))
    hot = f"l_orderkey > {rows['l_orderkey'][num_cold].as_py()}"
    spark.sql(f"{DELETION.format('tiered')} AND {hot}")
    del rows
    kinds: dict[str, Callable[[str], Callable[[], float]]] = {
        f"SQL, {query}": lambda name, query=query: run_of(spark, QUERIES[query].format(f"streamhouse.bench.{name}"))
        for query in ("count", "sum", "Q6")
    }
    kinds["Python, sum"] = lambda name: lambda: timed(lambda: _sum(url, name))
    kinds["Python, sum of rows of a filter"] = lambda name: lambda: timed(lambda: _q6(url, name))
    for kind, contestant in kinds.items():
        runs = in_turns({name: contestant(name) for name in TABLES}, bench.rounds(11, 3), warm_up=2)
        for name in ("marked", "tiered"):
            pair = {"ours": runs[name], WHOLE: runs["whole"]}
            yield time_figure(f"{kind}, a hundredth {TABLES[name]}", pair, WHOLE, ratio_at_most(1.15))
    spark.stop()


def _sum(url: str, name: str) -> object:
    found = Warehouse(url).table(f"bench.{name}").to_arrow(columns=["l_extendedprice"])
    return pc.sum(found["l_extendedprice"])


def _q6(url: str, name: str) -> object:
    found: pa.Table = Warehouse(url).table(f"bench.{name}").to_arrow(columns=Q6_COLUMNS, filter=Q6)
    return pc.sum(pc.multiply(found["l_extendedprice"].cast("double"), found["l_discount"].cast("double")))
