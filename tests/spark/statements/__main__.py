"""Random statements on tables against the same ones in DuckDB: `make differential HISTORIES=100 SEED=0`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from patient_spark import fill_conf_folder
from spark.differential.session import session
from spark.statements.history import STEPS, History
from spark.statements.lakehouse import Lakehouse
from spark.statements.subjects import DifferenceError, Figures
from spark.statements.workers import begin_quickly

PROGRESS_HISTORIES = 5
"""After so many histories a line says how many there are by now."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make differential", description=__doc__)
    parser.add_argument("--histories", type=int, default=100, help="so many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each history")
    parser.add_argument("--threads", type=int, default=1, help="histories at a time, each with a session of its own")
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
        begin_quickly(Path(folder, "python"))
        spark = session(Path(folder))
        spark.sparkContext.setLogLevel("OFF")  # many statements have to be refused
        try:
            return run(spark, f"{folder}/warehouse", given)
        finally:
            spark.stop()


def run(spark: Any, url: str, given: Any) -> int:
    runs = Runs(given)
    houses = [Lakehouse(spark.newSession(), url, f"random{number}") for number in range(given.threads)]
    with ThreadPoolExecutor(given.threads) as pool:
        for each in [pool.submit(runs.work, house) for house in houses]:
            each.result()
    show(runs.total)
    print(runs)  # noqa: T201
    return 1 if runs.num_failed else 0


class Runs:
    """Histories that threads run, one seed after the other, and what came of them."""

    def __init__(self, given: Any) -> None:
        self._given, self._started, self._lock = given, time.monotonic(), threading.Lock()
        self._seeds = iter(range(given.first, given.first + given.histories))
        self.total, self.num_run, self.num_failed = Figures(), 0, 0

    def __str__(self) -> str:
        return f"{self.num_run} histories in {time.monotonic() - self._started:.0f} s: {self.num_failed} different"

    def work(self, house: Lakehouse) -> None:
        classic = house.spark._jvm.org.apache.spark.sql.classic
        classic.SparkSession.setActiveSession(house.spark._jsparkSession)
        while (seed := self._next()) is not None:
            history, different = History(house, seed, steps=self._given.steps), ""
            try:
                history.run()
            except DifferenceError as error:
                found = shrunk(house, seed, self._given.steps, error) if self._given.shrink else error
                different = f"\nDIFFERENT: {found}\n"
            self._add(history, different)

    def _next(self) -> int | None:
        limit = self._given.minutes * 60
        with self._lock:
            is_late = limit and time.monotonic() - self._started > limit
            return None if is_late else next(self._seeds, None)

    def _add(self, history: History, different: str) -> None:
        with self._lock:
            self.total.add(history.figures)
            self.num_run += 1
            self.num_failed += bool(different)
            if different:
                print(different, flush=True)  # noqa: T201
            if self.num_run % PROGRESS_HISTORIES == 0:
                print(self, flush=True)  # noqa: T201


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
    for title in ("statements", "rejections", "upkeep", "checks", "seconds"):
        counts = getattr(figures, title)
        print(f"{title}: {counts.total():.0f}")  # noqa: T201
        for kind, count in sorted(counts.items()):
            print(f"  {count:6.0f}  {kind}")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
