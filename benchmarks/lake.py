"""Tiering a bucket into the lake, and reading the lake."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks import data
from benchmarks.measure import (
    Bench,
    Figure,
    in_turns,
    rate_figure,
    ratio_at_least,
    ratio_at_most,
    time_figure,
    timed,
)
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_in_threads

COLUMNS = ["l_returnflag", "l_quantity"]


def tiering(bench: Bench) -> Iterator[Figure]:
    """From the rows in the hot log to a lake snapshot that holds them and a log that says so; the peer only writes."""
    rows = data.load(bench.data, "lineitem", quick=bench.quick)
    tables = (_hot_table(bench, f"round-{number}", rows) for number in itertools.count())

    def ours() -> float:
        table = next(tables)
        return timed(lambda: tier(table))

    def peer() -> float:
        path = str(bench.scratch / "peer.parquet")
        return timed(lambda: pq.write_table(rows, path, compression="zstd"))

    name = "pyarrow.parquet.write_table"
    runs = in_turns({"ours": ours, name: peer}, bench.rounds(3, 2), warm_up=1)
    yield rate_figure("tiering one bucket", runs, name, rows.num_rows, ratio_at_least(0.95))


def tiering_buckets(bench: Bench) -> Iterator[Figure]:
    """A round of four buckets in threads, beside a round of one: the same rows, the same process."""
    rows = data.load(bench.data, "lineitem", quick=bench.quick)
    numbers = itertools.count()

    def round_of(buckets: int) -> float:
        table = _hot_table(bench, f"buckets-{next(numbers)}", rows, buckets)
        return timed(lambda: tier(table))

    contestants = {"ours": lambda: round_of(4), "one bucket": lambda: round_of(1)}
    runs = in_turns(contestants, bench.rounds(3, 2), warm_up=1)
    yield rate_figure("tiering four buckets", runs, "one bucket", rows.num_rows, ratio_at_least(1.6), note="two cores")


def lake_read(bench: Bench) -> Iterator[Figure]:
    """The peer reads the same files, whose names it is given."""
    rows = data.load(bench.data, "lineitem", quick=bench.quick)
    table = _hot_table(bench, "read", rows)
    del rows
    tier(table)
    url, name = table.storage.url, table.name
    files = table.lake.files().column("file_path").to_pylist()
    peer = "pyarrow.dataset, same files"
    for suffix, columns in (("", None), (", 2 of 16 columns", COLUMNS)):

        def ours(columns: list[str] | None = columns) -> pa.Table:
            return Warehouse(url).table(name).lake.to_arrow(columns=columns)

        def bare(columns: list[str] | None = columns) -> pa.Table:
            return ds.dataset(files, format="parquet").to_table(columns=columns)

        if ours().num_rows != bare().num_rows:
            raise AssertionError("both should read the same rows")
        contestants: dict[str, Callable[[], float]] = {
            "ours": lambda ours=ours: timed(ours),
            peer: lambda bare=bare: timed(bare),
        }
        runs = in_turns(contestants, bench.rounds(9, 3), warm_up=1)
        yield time_figure(f"lake.to_arrow{suffix}", runs, peer, ratio_at_most(1.1))


def _hot_table(bench: Bench, name: str, rows: pa.Table, buckets: int = 1) -> Table:
    shutil.rmtree(bench.scratch / "warehouse", ignore_errors=True)
    warehouse = Warehouse(str(bench.scratch / "warehouse"))
    table = warehouse.create_table(f"bench.{name.replace('-', '_')}", rows.schema, buckets=buckets)
    table.append(rows)
    return table


def tier(table: Table) -> None:
    """All rows, in this process."""
    run_tasks = run_tasks_in_threads(table.storage, table.settings, table.world)
    TieringJob(table.log, table.open_lake(), world=table.world).run(run_tasks)
