"""How old rows are that an engine sees: its next query behind an append has the row, and how much longer it takes than
the same query of the lake alone, with ten thousand rows in the hot log.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow as pa

from kit.tables import tier
from many_engines.engines import Addresses
from many_engines.kinds import KINDS
from many_engines.place import place_of
from many_engines.processes import Server
from many_engines.query_servers import query_servers

ENGINES = ("DuckDB", "Spark, Iceberg's runtime", "Trino", "Flink")
GOAL_MS = 300
WITHOUT_GOAL = ("Flink",)
"""Each query of it is a job, which is planned and started anew."""
LAKE_ROWS, HOT_ROWS = 100_000, 10_000
WARM_UP = 10
"""Turns before those that count: a JVM is slow at first."""


@dataclass(frozen=True)
class Freshness:
    engine: str
    lake_ms: float
    """Median of the query of the lake."""
    behind_ms: float
    """Median of the query behind an append."""
    beyond_ms: float
    """Median of the differences of the turns."""

    @property
    def is_met(self) -> bool:
        return self.engine in WITHOUT_GOAL or self.beyond_ms <= GOAL_MS

    def __str__(self) -> str:
        word = "no goal" if self.engine in WITHOUT_GOAL else "met" if self.is_met else "MISSED"
        return (
            f"{self.engine}: the lake alone {self.lake_ms:,.0f} ms, behind an append {self.behind_ms:,.0f} ms, "
            f"{self.beyond_ms:,.0f} ms beyond (at most {GOAL_MS}: {word})"
        )


def freshness(folder: Path, engines: Sequence[str], rounds: int) -> list[Freshness]:
    """Measure one engine after the other. Raises `AssertionError` where a query misses the row before it."""
    place = place_of(folder)
    table = place.open().create_table("s.fresh", "id BIGINT, n BIGINT", buckets=4)
    _append(table, LAKE_ROWS)
    tier(table)
    _append(table, HOT_ROWS)
    found = []
    with ExitStack() as stack:
        others = stack.enter_context(query_servers(folder, (KINDS[name].server for name in engines)))
        server = Server(folder, 0)
        stack.callback(server.stop)
        for name in engines:
            engine = KINDS[name].open(Addresses(server.http, server.flight, place.url, place.settings, others))
            found.append(_of_engine(name, engine, table, rounds))
    return found


def _of_engine(name, engine, table, rounds: int) -> Freshness:
    lake_ms, behind_ms = [], []
    for number in range(-WARM_UP, rounds):
        _append(table, 1)
        rows = table.refresh().num_rows
        took_ms, count = _timed(lambda: engine.count("sh.s.fresh"))
        assert count == rows, f"{name} counts {count} rows of {rows}"
        of_lake_ms, count = _timed(lambda: engine.count(engine.lake_of.format("s", "fresh")))
        assert count == LAKE_ROWS
        if number >= 0:
            lake_ms.append(of_lake_ms)
            behind_ms.append(took_ms)
    beyond_ms = median(b - a for a, b in zip(lake_ms, behind_ms, strict=True))
    return Freshness(name, median(lake_ms), median(behind_ms), beyond_ms)


def _append(table, num_rows: int) -> None:
    table.append(pa.table({"id": range(num_rows), "n": [1] * num_rows}))


def _timed(work) -> tuple[float, int]:
    began = time.perf_counter()
    found = work()
    return 1_000 * (time.perf_counter() - began), found
