"""Views beside their sources through random histories: `make view-histories HISTORIES=2000 SEED=0`.

Refreshes run their statements in DuckDB, of each tenth history on Spark, beside whose answers the view is then, too.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patient_spark import fill_conf_folder
from spark.function_views import FunctionHistory
from spark.typed_views import TypedHistory
from view_histories.history import STEPS, DifferenceError, Figures, History
from view_histories.house import House


def main() -> int:
    parser = argparse.ArgumentParser(prog="make view-histories", description=__doc__)
    parser.add_argument("--histories", type=int, default=100, help="so many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each history")
    parser.add_argument("--spark-each", type=int, default=10, help="each so many runs on Spark; 0: none does")
    parser.add_argument("--minutes", type=float, default=0, help="begin no history after so many")
    parser.add_argument("--typed", type=int, default=0, help="so many on Spark of columns of two types, besides")
    parser.add_argument("--functions", type=int, default=0, help="so many on Spark of calls of functions, besides")
    parser.add_argument("--shrink", action="store_true", help="leave steps out of a history that fails")
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # the product tells of each fault
    memory = os.environ.get("PYTEST_DEBUG_TEMPROOT") or None
    with tempfile.TemporaryDirectory(prefix="streamhouse-views-", dir=memory) as folder:
        os.environ["STREAMHOUSE_CACHE_DIR"] = f"{folder}/cache"
        with engine(Path(folder), given.spark_each or given.typed or given.functions) as spark:
            typed = run_typed(TypedHistory, "types", range(given.first, given.first + given.typed), spark)
            called = run_typed(FunctionHistory, "functions", range(given.first, given.first + given.functions), spark)
            return run(given, spark, folder) | typed | called


@contextmanager
def engine(folder: Path, spark_each: int) -> Iterator[Any]:
    if not spark_each:
        yield None
        return
    from spark.differential.session import session

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    os.environ["SPARK_CONF_DIR"] = str(folder / "conf")
    (folder / "conf").mkdir()
    fill_conf_folder(folder / "conf")
    spark = session(folder)
    spark.sparkContext.setLogLevel("OFF")  # many refreshes have to fail
    logging.getLogger("SQLQueryContextLogger").disabled = True  # as do random expressions of types that do not fit
    try:
        yield spark
    finally:
        spark.stop()


def run(given: Any, spark: Any, folder: str) -> int:
    started, total, ran, failed = time.monotonic(), Figures(), 0, 0
    for seed in range(given.first, given.first + given.histories):
        if given.minutes and time.monotonic() - started > given.minutes * 60:
            break
        on_spark = spark if given.spark_each and seed % given.spark_each == 0 else None
        history = new_history(seed, on_spark, folder, given.steps)
        ran += 1
        try:
            history.run()
        except DifferenceError as difference:
            failed += 1
            found = shrunk(seed, on_spark, folder, given.steps, difference) if given.shrink else difference
            print(f"\nDIFFERENT: {found}\n", flush=True)  # noqa: T201
        total.add(history.figures)
        if ran % 50 == 0:
            print(f"{ran} histories in {time.monotonic() - started:.0f} s: {failed} different", flush=True)  # noqa: T201
    show(total)
    print(f"{ran} histories in {time.monotonic() - started:.0f} s: {failed} different")  # noqa: T201
    return 1 if failed else 0


def run_typed(kind: type[TypedHistory], about: str, seeds: range, spark: Any) -> int:
    started, checks, failed = time.monotonic(), 0, 0
    if not seeds:
        return 0
    for seed in seeds:
        history = kind(spark, seed)
        try:
            history.run()
        except DifferenceError as difference:
            failed += 1
            print(f"\nDIFFERENT, {about} of seed {seed}: {difference}\n", flush=True)  # noqa: T201
        checks += history.checks
    took = time.monotonic() - started
    print(f"{len(seeds)} histories of {about} in {took:.0f} s: {checks} checks, {failed} different")  # noqa: T201
    return 1 if failed else 0


def new_history(seed: int, spark: Any, folder: str, steps: int, without: Any = ()) -> History:
    return History(House(seed, spark=spark, url=f"{folder}/warehouse"), steps=steps, without=without)


def shrunk(seed: int, spark: Any, folder: str, steps: int, found: DifferenceError) -> DifferenceError:
    """Leave out each step without which the history still fails, the last ones first."""
    without: set[int] = set()
    if spark is not None:
        return found
    for step in reversed(range(steps)):
        try:
            new_history(seed, spark, folder, steps, {*without, step}).run()
        except DifferenceError as again:
            without.add(step)
            found = again
    return DifferenceError(f"{found}\nwithout the steps {sorted(without)}")


def show(figures: Figures) -> None:
    for title in ("queries", "deeds", "refreshes", "faults", "checks"):
        counts = getattr(figures, title)
        print(f"{title}: {counts.total()}")  # noqa: T201
        for kind, count in sorted(counts.items()):
            print(f"  {count:6}  {kind}")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
