"""Scans of a table with a hundredth of its rows deleted, beside the same rows without: in SQL and in plain Python.

Where the deletions are newer than the lake, readers leave out rows of its files by what the log says of them; a round
later files of deleted positions lie beside them. Rows that are in the log alone are left out by the log.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import streamhouse_spark
from benchmarks import data
from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, Runs, in_turns, ratio_at_most, time_figure, timed
from benchmarks.processor import tree_seconds
from benchmarks.runtimes import BUCKETS, HOT_SHARE, QUERIES, run_of
from benchmarks.spark import session_builder
from streamhouse_spark import Table, Warehouse

HOT_SHARES = {"of the lake": HOT_SHARE, "of lake and log": 0.5, "of the log": 1.0}
"""Where the rows are → share of them that is in the log alone. The log tells which rows of the lake are deleted, or the
lake itself."""
Q6 = [("l_discount", ">=", Decimal("0.05")), ("l_discount", "<=", Decimal("0.07")), ("l_quantity", "<", Decimal(24))]
COLUMNS = ["l_orderkey", "l_quantity", "l_extendedprice", "l_discount", "l_shipdate"]
"""Those that the queries and the deletions ask for."""
Q6_COLUMNS = ["l_extendedprice", "l_discount"]
WHOLE = "ours, no row deleted"
_WARM_UP = 2


def deleted_rows(bench: Bench) -> Iterator[Figure]:
    """count(*), a sum and TPC-H's sixth query over 6 M rows in 4 buckets: a twentieth of them, half or all of them are
    in the log. The note of a figure has the ratio of processor time, of all processes, which neighbours disturb less.
    """
    rows = data.load(bench.data, "lineitem", quick=bench.quick).select(COLUMNS)
    url = str(bench.scratch / "warehouse")
    keys = np.unique(rows["l_orderkey"].to_numpy())
    deleted = [("l_orderkey", "in", keys[keys % 100 == 7].tolist())]
    pairs = {}
    for place, (where, share) in enumerate(HOT_SHARES.items()):
        num_cold = rows.num_rows - int(rows.num_rows * share)
        names = [f"{name}{place}" for name in ("whole", "marked", "tiered")[: 3 if num_cold else 2]]
        for name in names:
            table = Warehouse(url).create_table(f"bench.{name}", rows.schema, properties=BUCKETS)
            if num_cold:
                table.append(rows.slice(0, num_cold))
                tier(table)
            if name.startswith("tiered"):
                table.delete(where=deleted)
                tier(table)
            table.append(rows.slice(num_cold))
            if not name.startswith("whole"):
                table.delete(where=deleted)
        told = zip(names[1:], ("log", "lake"), strict=False)
        pairs |= {f"a hundredth {where} deleted, told by the {teller}": (name, names[0]) for name, teller in told}
    spark = streamhouse_spark.configure(session_builder(bench.scratch), warehouse=url).getOrCreate()
    del rows
    for kind, run in _kinds(spark, url).items():
        for what, (ours, whole) in pairs.items():
            yield _figure(f"{kind}, {what}", {"ours": run(ours), WHOLE: run(whole)}, bench.rounds(11, 3))
    spark.stop()


def _kinds(spark: object, url: str) -> Mapping[str, Callable[[str], Callable[[], float]]]:
    def in_sql(query: str) -> Callable[[str], Callable[[], float]]:
        return lambda name: run_of(spark, QUERIES[query].format(f"streamhouse.bench.{name}"))

    def in_python(read: Callable[[Table], object]) -> Callable[[str], Callable[[], float]]:
        return lambda name: lambda: timed(lambda: read(Warehouse(url).table(f"bench.{name}")))

    return {
        **{f"SQL, {query}": in_sql(query) for query in ("count", "sum", "Q6")},
        "Python, sum": in_python(_sum),
        "Python, sum of rows of a filter": in_python(_q6),
    }


def _figure(name: str, contestants: Mapping[str, Callable[[], float]], rounds: int) -> Figure:
    spent: dict[str, list[float]] = {who: [] for who in contestants}

    def metered(who: str) -> float:
        before = tree_seconds()
        seconds = contestants[who]()
        spent[who].append(tree_seconds() - before)
        return seconds

    runs: Runs = in_turns({who: lambda who=who: metered(who) for who in contestants}, rounds, warm_up=_WARM_UP)
    ours, whole = (sorted(spent[who][_WARM_UP:]) for who in ("ours", WHOLE))
    ratio = statistics.median(ours) / statistics.median(whole)
    note = f"processor time {ratio:.2f}x, of the runs with least {ours[0] / whole[0]:.2f}x"
    return time_figure(name, runs, WHOLE, ratio_at_most(1.15), note=note)


def _sum(table: Table) -> object:
    return pc.sum(table.to_arrow(columns=["l_extendedprice"])["l_extendedprice"])


def _q6(table: Table) -> object:
    found: pa.Table = table.to_arrow(columns=Q6_COLUMNS, filter=Q6)
    return pc.sum(pc.multiply(found["l_extendedprice"].cast("double"), found["l_discount"].cast("double")))
