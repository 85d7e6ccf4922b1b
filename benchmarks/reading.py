"""Reading the hot log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

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
    for codec in ("none", "zstd"):
        yield from _projection_of(bench, rows, codec)


def _projection_of(bench: Bench, rows: pa.Table, codec: Literal["none", "zstd"]) -> Iterator[Figure]:
    path = str(bench.scratch / f"bare-{codec}.arrow")
    write_bare_file(path, rows, None if codec == "none" else codec)
    url = str(bench.scratch / f"warehouse-{codec}")
    properties = {"table.log.arrow.compression.type": codec}
    Warehouse(url).create_table("bench.rows", rows.schema, properties=properties).append(rows)

    def ours() -> pa.Table:
        return Warehouse(url).table("bench.rows").to_arrow(columns=COLUMNS)

    def bare() -> pa.Table:
        with pa.memory_map(path) as file:
            if codec == "none":
                return pa.ipc.open_file(file).read_all().select(COLUMNS)
            places = [rows.schema.get_field_index(name) for name in COLUMNS]
            return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=places)).read_all()

    if not ours().equals(bare()):
        raise AssertionError("both should read the same rows")
    peer, suffix = "bare IPC file, mapped", "" if codec == "none" else f", {codec}"
    rounds = bench.rounds(21, 5)
    runs = in_turns({"ours": _using(ours), peer: _using(bare)}, rounds, warm_up=2)
    yield time_figure(f"2 of 16 columns from the hot log{suffix}", runs, peer, ratio_at_most(1.3))
    if codec == "none":
        runs = in_turns({"ours": lambda: timed(ours), peer: lambda: timed(bare)}, rounds, warm_up=2)
        yield time_figure(
            "the same, values not looked at", runs, peer, note="ours verifies the checksums of what it maps"
        )


def _using(read: Callable[[], pa.Table]) -> Callable[[], float]:
    def run() -> None:
        rows = read()
        for name in COLUMNS:
            pc.min_max(rows.column(name))

    return lambda: timed(run)
