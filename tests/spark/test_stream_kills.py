"""A process with real-time queries, both sinks and the refresh of a view is killed, again and again: nothing is lost,
and nothing is there twice.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kit.waiting import WAIT_S_MAX, wait_for
from spark import kills_job as job
from spark.left_checkpoint import clear
from spark.rising_rows import RisingRows
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.errors import TableNotFoundError
from streamhouse_spark.warehouse.warehouse import Warehouse

KILLS = int(os.environ.get("STREAMHOUSE_KILLS", "2"))
"""`make stream-kills` has more."""
ROWS_PER_APPEND = 3
pytestmark = [
    pytest.mark.spark,
    pytest.mark.classic,
    pytest.mark.long,
    pytest.mark.timeout(600 + 120 * KILLS),
    pytest.mark.skipif(
        not spark_versions.HAS_ADMISSION_CONTROL, reason="PySpark 4.1 has no trigger for real-time mode"
    ),
]


def batch(first: int) -> list[dict[str, int]]:
    return [{"id": i} for i in range(first, first + ROWS_PER_APPEND)]


@contextmanager
def process(url: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The job, of which nothing is left in the end."""
    for query in ("foreach", job.LOG, job.SUMS, job.COPY):
        clear(folder / query)
    command = [sys.executable, job.__file__, url, str(folder)]
    with (folder / "errors").open("w") as errors:
        started = subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)  # the JVM and its workers too
        assert started.stdin is not None
        started.stdin.close()
        started.wait()


def errors(folder: Path) -> str:
    """What the job said, without the places in the code."""
    lines = (folder / "errors").read_text().splitlines()
    return "\n".join(line[:500] for line in lines if not line.startswith("\tat "))[:6000]


def going(running: subprocess.Popen[str], folder: Path) -> bool:
    assert running.poll() is None, f"the job ended by itself: {errors(folder)}"
    return True


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    found = Warehouse(str(tmp_path / "warehouse"))
    split = {"buckets": 2, "properties": {"bucket.key": "id"}}
    for name in (job.SOURCE, job.LOG, job.COPY):
        found.create_table(name, "id BIGINT NOT NULL", **split)
    sums = {"table.merge-engine": "aggregation", "fields.times.agg": "sum", "fields.total.agg": "sum"}
    found.create_table(job.SUMS, "id BIGINT, times BIGINT, total BIGINT", primary_key=["id"], properties=sums)
    return found


def seen(folder: Path) -> set[int]:
    paths = (folder / job.SEEN).iterdir() if (folder / job.SEEN).exists() else ()
    lines = [path.read_text().split("\n")[:-1] for path in paths]  # a kill may cut the last one
    return {int(line) for found in lines for line in found}


def tables(wh: Warehouse) -> dict[str, Any]:
    """What is in each table, in a form that does not depend on the order."""
    found: dict[str, Any] = {name: sorted(wh.table(name).to_arrow()["id"].to_pylist()) for name in (job.LOG, job.COPY)}
    for name, columns in ((job.SUMS, ["id", "times", "total"]), (job.VIEW, ["rest", "n", "total"])):
        with suppress(TableNotFoundError):
            found[name] = sorted(tuple(row.values()) for row in wh.table(name).to_arrow(columns=columns).to_pylist())
    return found


def expected(count: int) -> dict[str, Any]:
    every = range(count)

    def by(divisor: int) -> list[tuple[int, int, int]]:
        return [(k, len(own), sum(own)) for k in range(divisor) if (own := [i for i in every if i % divisor == k])]

    return {job.LOG: list(every), job.COPY: list(every), job.SUMS: by(5), job.VIEW: by(7)}


def differences(wh: Warehouse, folder: Path, count: int) -> dict[str, Any]:
    """Of each part that does not have exactly the rows of the source: some that lack, and some that are too many."""
    found = tables(wh)
    parts = {name: (Counter(wanted), Counter(found.get(name, ()))) for name, wanted in expected(count).items()}
    left = {
        name: (list(want - have)[:9], list(have - want)[:9]) for name, (want, have) in parts.items() if want != have
    }
    unseen = sorted(set(range(count)) - seen(folder))
    return {**left, **({job.SEEN: unseen[:9]} if unseen else {})}


def progress(wh: Warehouse, folder: Path) -> list[Callable[[], int]]:
    """How far each of the parts is; a kill waits until one of them goes on."""

    def version(name: str) -> Callable[[], int]:
        def found() -> int:
            try:
                return wh.table(name).refresh().version
            except TableNotFoundError:
                return 0

        return found

    return [version(name) for name in (job.LOG, job.SUMS, job.COPY, job.VIEW)] + [lambda: len(seen(folder))]


def test_nothing_is_lost_and_nothing_is_there_twice(warehouse: Warehouse, tmp_path: Path) -> None:
    parts, chance = progress(warehouse, tmp_path), random.Random(KILLS)
    with RisingRows(warehouse.table(job.SOURCE), batch, every_s=0.2) as written:
        for kill in range(KILLS):
            part = parts[kill % len(parts)]
            before = part()
            with process(warehouse.url, tmp_path) as running:
                wait_for(
                    lambda part=part, before=before, running=running: going(running, tmp_path) and part() > before + 1,
                    f"progress of part {kill % len(parts)} before kill {kill}",
                )
                time.sleep(chance.uniform(0, 5))  # within a batch of five seconds, or between two
                going(running, tmp_path)
            found, most = tables(warehouse), range(written.count)
            for name in (job.LOG, job.COPY):
                assert len(found[name]) == len(set(found[name])), f"rows of {name} twice behind kill {kill}"
                assert set(found[name]) <= set(most)
            print(f"kill {kill + 1}: {written.count} rows written", flush=True)  # noqa: T201
    with process(warehouse.url, tmp_path) as running:
        until = time.monotonic() + WAIT_S_MAX
        while (left := differences(warehouse, tmp_path, written.count)) and time.monotonic() < until:
            going(running, tmp_path)
            time.sleep(1)
        assert left == {}
        time.sleep(6)  # a batch of real-time mode ends meanwhile, and another begins
        assert differences(warehouse, tmp_path, written.count) == {}
        running.communicate("\n", timeout=120)
