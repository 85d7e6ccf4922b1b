"""Random queries on lake and log against a Parquet copy: `make differential SEEDS=1000`, one again by `SEED=17`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from spark.differential.compare import DifferenceError, SparkDefectError, check
from spark.differential.dataset import build
from spark.differential.queries import queries
from spark.differential.session import session
from streamhouse_spark import Warehouse

QUERIES = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="make differential", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="so many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="these seeds")
    parser.add_argument("--queries", type=int, default=QUERIES, help="of each seed")
    given = parser.parse_args()
    seeds = given.only or list(range(given.first, given.first + given.seeds))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="streamhouse-differential-") as folder:
        spark = session(Path(folder))
        try:
            return run(spark, Path(folder), seeds, given.queries)
        finally:
            spark.stop()


def run(spark: Any, folder: Path, seeds: list[int], num_queries: int) -> int:
    sides = build(spark, Warehouse(str(folder / "warehouse")), folder)
    started = time.monotonic()
    ran = with_rows = failed = refused = 0
    for position, seed in enumerate(seeds, start=1):
        for query in queries(seed, sides, num_queries):
            ran += 1
            try:
                with_rows += check(spark, query) > 0
            except SparkDefectError:
                refused += 1
            except DifferenceError as difference:
                failed += 1
                print(f"\nDIFFERENT: {difference}\n", flush=True)  # noqa: T201
        if position % 25 == 0:
            print(f"{position} seeds: {ran} queries, {failed} different", flush=True)  # noqa: T201
    seconds = time.monotonic() - started
    print(  # noqa: T201
        f"{len(seeds)} seeds, {ran} queries ({with_rows} with rows, {refused} that Spark cannot plan) "
        f"in {seconds:.0f} s: {failed} different"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
