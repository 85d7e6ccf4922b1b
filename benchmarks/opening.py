"""Opening a table: a long history must not cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from benchmarks.measure import Bench, Figure, in_turns, ratio_at_most, time_figure, timed
from streamhouse_spark import Warehouse


def opening(bench: Bench) -> Iterator[Figure]:
    rows = pa.table({"id": pa.array([1], pa.int64()), "text": ["x"]})
    many = (1000 if bench.quick else 10_000) + 50  # half way to the next checkpoint, the average case
    paths = {}
    for commits in (10, many):
        paths[commits] = str(bench.scratch / str(commits))
        table = Warehouse(paths[commits], {"storage.local.fsync": "false"}).create_table("bench.rows", rows.schema)
        while table.state.version < commits:
            table.append(rows)

    def opened(path: str) -> Callable[[], float]:
        return lambda: timed(lambda: Warehouse(path).table("bench.rows").state.version)

    peer = "ours with 10 commits"
    runs = in_turns({"ours": opened(paths[many]), peer: opened(paths[10])}, bench.rounds(101, 11), warm_up=3)
    yield time_figure(f"opening a table with {many:,} commits", runs, peer, ratio_at_most(3))
