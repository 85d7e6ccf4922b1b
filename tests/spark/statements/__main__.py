"""Random statements on tables against the same ones in DuckDB: `make differential HISTORIES=100 SEED=0`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from patient_spark import fill_conf_folder
from spark.differential.session import session
from spark.statements.history import STEPS, History
from spark.statements.lakehouse import Lakehouse
from spark.statements.subjects import DifferenceError, Figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="make differential", description=__doc__)
    parser.add_argument("--histories", type=int, default=100, help="so many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each history")
    parser.add_argument("--minutes", type=float, default=0, help="begin no history after so many")
    parser.add_argument("--shrink", action="store_true", help="leave steps out of a history that fails")
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    with tempfile.TemporaryDirectory(prefix="streamhouse-statements-") as folder:
        os.environ["STREAMHOUSE_CACHE_DIR"] = f"{folder}/cache"
        os.environ["SPARK_CONF_DIR"] = f"{folder}/conf"
        Path(folder, "conf").mkdir()
        fill_conf_folder(Path(folder, "conf"))
        spark = session(Path(folder))
        spark.sparkContext.setLogLevel("OFF")  # many statements have to be refused
        try:
            house = Lakehouse(spark, f"{folder}/warehouse")
            return run(house, given)
        finally:
            spark.stop()


def run(house: Lakehouse, given: Any) -> int:
    started = time.monotonic()
    total, ran, failed = Figures(), 0, 0
    for seed in range(given.first, given.first + given.histories):
        if given.minutes and time.monotonic() - started > given.minutes * 60:
            break
        history = History(house, seed, steps=given.steps)
        ran += 1
        try:
            history.run()
        except DifferenceError as difference:
            failed += 1
            found = shrunk(house, seed, given.steps, difference) if given.shrink else difference
            print(f"\nDIFFERENT: {found}\n", flush=True)  # noqa: T201
        total.add(history.figures)
        if ran % 10 == 0:
            print(f"{ran} histories in {time.monotonic() - started:.0f} s: {failed} different", flush=True)  # noqa: T201
    show(total)
    print(f"{ran} histories in {time.monotonic() - started:.0f} s: {failed} different")  # noqa: T201
    return 1 if failed else 0


def shrunk(house: Lakehouse, seed: int, steps: int, found: DifferenceError) -> DifferenceError:
    """Leave out each step without which the history still fails, the last ones first."""
    without: set[int] = set()
    for step in reversed(range(steps)):
        try:
            History(house, seed, steps=steps, without={*without, step}).run()
        except DifferenceError as again:
            without.add(step)
            found = again
    return DifferenceError(f"{found}\nwithout the steps {sorted(without)}")


def show(figures: Figures) -> None:
    for title in ("statements", "refusals", "upkeep", "checks", "seconds"):
        counts = getattr(figures, title)
        print(f"{title}: {counts.total():.0f}")  # noqa: T201
        for kind, count in sorted(counts.items()):
            print(f"  {count:6.0f}  {kind}")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
