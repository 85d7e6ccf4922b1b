"""``python -m benchmarks.far_reader KIND APPENDS``: the process that looks for appends which another one makes.

It says ``ready``, and at the end how old the rows of each append were when it had them, in milliseconds; of a peer the
time at which it saw each version, in nanoseconds of the clock that all processes of a host share.
"""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.iceberg_peer import CATALOG, NAMESPACE


def ages_ms(place: tuple[str, str, dict[str, str]], appends: int) -> Iterator[float]:
    """Of the rows of our tail."""
    from streamhouse_spark import Warehouse

    name, url, settings = place
    tail = Warehouse(url, settings).table(name).tail("latest")
    _ready()
    for _ in range(appends):
        batch = next(tail)
        yield (time.monotonic_ns() - batch.column("began_ns")[0].as_py()) / 1e6


def versions_of_delta(place: tuple[str, dict[str, str]]) -> Callable[[], int]:
    """Look for the newest version of a table of delta-rs."""
    from deltalake import DeltaTable

    table = DeltaTable(place[0], storage_options=place[1])

    def look() -> int:
        table.update_incremental()
        return int(table.version())

    return look


def versions_of_iceberg(place: tuple[str, dict[str, str]]) -> Callable[[], int]:
    """Look for the number of the newest snapshot of a table, by pyiceberg."""
    from pyiceberg.catalog.sql import SqlCatalog

    table = SqlCatalog(CATALOG, **place[1]).load_table((NAMESPACE, place[0]))

    def look() -> int:
        return int(table.refresh().metadata.last_sequence_number)

    return look


def seen_ns(look: Callable[[], int], appends: int) -> Iterator[int]:
    """When each of the next versions was seen."""
    known = look()
    _ready()
    left = appends
    while left > 0:
        newest = look()
        for _ in range(newest - known):
            yield time.monotonic_ns()
        left, known = left - (newest - known), newest


def _ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def main(kind: str, appends: int) -> None:
    place: Any = ast.literal_eval(os.environ["BENCH_PLACE"])
    looks = {"delta": versions_of_delta, "iceberg": versions_of_iceberg}
    found = list(ages_ms(place, appends) if kind == "ours" else seen_ns(looks[kind](place), appends))
    sys.stdout.write("\n".join(map(str, found)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
