"""Reading the hot log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import data
from benchmarks.measure import Bench, Figure, in_turns, ratio_at_most, time_figure, timed
from benchmarks.peers import write_bare_file
from streamhouse_spark import Warehouse

COLUMNS = ["l_orderkey", "l_shipdate"]


def hot_projection(bench: Bench) -> Iterator[Figure]:
    """Two of sixteen columns, read to the last value: both sides map their files, and mapping is no reading."""
    rows = data.load(bench.data, "lineitem", quick=bench.quick)
    path = str(bench.scratch / "bare.arrow")
    write_bare_file(path, rows)
    url = str(bench.scratch / "warehouse")
    Warehouse(url).create_table("bench.rows", rows.schema).append(rows)
    del rows

    def ours() -> pa.Table:
        return Warehouse(url).table("bench.rows").to_arrow(columns=COLUMNS)

    def bare() -> pa.Table:
        with pa.memory_map(path) as file:
            return pa.ipc.open_file(file).read_all().select(COLUMNS)

    if not ours().equals(bare()):
        raise AssertionError("both should read the same rows")
    peer = "bare IPC file, mapped"
    rounds = bench.rounds(21, 5)
    runs = in_turns({"ours": _using(ours), peer: _using(bare)}, rounds, warm_up=2)
    yield time_figure("2 of 16 columns from the hot log", runs, peer, ratio_at_most(1.3))
    runs = in_turns({"ours": lambda: timed(ours), peer: lambda: timed(bare)}, rounds, warm_up=2)
    yield time_figure("the same, values not looked at", runs, peer, note="ours verifies the checksums of what it maps")


def _using(read: Callable[[], pa.Table]) -> Callable[[], float]:
    def run() -> None:
        rows = read()
        for name in COLUMNS:
            pc.min_max(rows.column(name))

    return lambda: timed(run)
