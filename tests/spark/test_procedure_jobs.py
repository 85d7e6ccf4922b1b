"""Procedures whose files tasks of Spark write: what Spark shows of their jobs, cancelling, and attempts that fail."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kit.waiting import wait_for
from spark.session import COLUMNS, ids, rows
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.spark import optimize
from streamhouse_spark.table.maintenance.tiering import tier_table

pytestmark = pytest.mark.spark

ROUNDS, ROWS = 6, 300
MANY = 40_000
"""Rows that are too many for a record: their segments are objects."""


@pytest.fixture
def table(wh: Warehouse, request) -> Table:
    name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")
    return wh.create_table(f"jobs.{name}", COLUMNS, buckets=3, properties={"bucket.key": "id"})


def call(spark, text: str) -> dict[str, Any]:
    (row,) = spark.sql(f"CALL streamhouse.system.{text}").collect()
    return row.asDict()


def fill(table: Table) -> None:
    for turn in range(ROUNDS):
        table.append(rows(ROWS, ROWS * turn))
        tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))


def lake_ids(table: Table) -> list[int]:
    return sorted(table.lake.to_arrow(columns=["id"])["id"].to_pylist())


@pytest.mark.spark41
def test_tasks_write_what_procedures_commit(spark, table):
    fill(table)
    table.append(rows(ROWS, ROWS * ROUNDS))
    expected = list(range(ROWS * (ROUNDS + 1)))
    done = call(spark, f"tier(table => '{table.name}', spark_job => true)")
    assert (done["rows"], done["files"], done["snapshots"], done["conflicts"]) == (ROWS, 3, 1, 0)
    shown = call(spark, f"compact(table => '{table.name}', dry_run => true, spark_job => true)")
    done = call(spark, f"compact(table => '{table.name}', spark_job => true)")
    assert (done["files_removed"], done["files_added"], done["rows"]) == (21, 3, len(expected))
    assert (shown["files_removed"], shown["rows"]) == (21, len(expected))
    done = call(spark, f"optimize(table => '{table.name}', order_by => 'name', spark_job => true)")
    assert done["rows"] == 0, "each bucket has one file, which stays one"
    assert lake_ids(table) == ids(table) == expected


@pytest.mark.classic
@pytest.mark.long
def test_spark_shows_the_jobs_and_runs_none_for_little(spark, wh, table):
    fill(table)
    with jobs_in(spark, "shown") as jobs:
        optimize(spark, wh.url, table.name, "amount")
        assert spark.sparkContext.getLocalProperty("spark.job.description") == "ours"
        table.append(rows(ROWS, ROWS * ROUNDS))
        call(spark, f"tier('{table.name}')")
        assert len(jobs()) == 1
        call(spark, f"optimize(table => '{table.name}', order_by => 'name', spark_job => true)")
        assert spark.sparkContext.getLocalProperty("spark.job.description") == "ours"
        _, job = jobs()
    sizes = table.lake.files()["file_size_in_bytes"].to_pylist()
    shown = f"optimize {table.name}: 3 groups of files, 0 MiB"
    assert [one.description().get() for one in jobs()] == [shown, shown]
    assert (job.numTasks(), job.numCompletedTasks()) == (3, 3)
    stage = store(spark).lastStageAttempt(job.stageIds().head())
    assert stage.outputRecords() == ROWS * (ROUNDS + 1)
    assert stage.outputBytes() == sum(sizes)
    assert lake_ids(table) == list(range(ROWS * (ROUNDS + 1)))


@pytest.mark.classic
@pytest.mark.long
@pytest.mark.parametrize("how", ["group", "session"])
def test_a_cancelled_job_changes_nothing(spark, table, how):
    append_many(table)
    with jobs_in(spark, f"cancelled {how}") as jobs, held(table) as segment:
        called = Called(spark, f"tier(table => '{table.name}', spark_job => true)", f"cancelled {how}")
        wait_for(segment.is_waited_for, "a read of a segment")
        if how == "group":
            spark.sparkContext.cancelJobGroup(f"cancelled {how}")
        else:
            spark.interruptAll()
        called.thread.join(120)
        assert not called.thread.is_alive()
        assert "SPARK_JOB_CANCELLED" in str(called.error)
        (job,) = jobs()
        assert (job.numTasks(), job.status().toString()) == (3, "FAILED")
    assert table.lake.newest() is None
    assert table.refresh().lake is None
    assert call(spark, f"tier('{table.name}')")["rows"] == MANY
    assert lake_ids(table) == ids(table) == list(range(MANY))


@pytest.mark.classic
@pytest.mark.long
def test_an_attempt_that_is_killed_is_repeated_and_counts_once(spark, table):
    append_many(table)
    with jobs_in(spark, "killed") as jobs, held(table) as segment:
        called = Called(spark, f"tier(table => '{table.name}', spark_job => true)", "killed")
        wait_for(segment.is_waited_for, "a read of a segment")
        wait_for(lambda: jobs()[0].numCompletedTasks() == 2, "the end of the others")
        stage = jobs()[0].stageIds().head()
        tasks = store(spark).taskList(stage, 0, 10)
        running = [tasks.apply(i) for i in range(tasks.size()) if tasks.apply(i).status() == "RUNNING"]
        for task in running:
            spark.sparkContext._jsc.sc().killTaskAttempt(task.taskId(), True, "the test")
        wait_for(lambda: store(spark).lastStageAttempt(stage).numKilledTasks() == 1, "the end of the attempt")
        segment.release()
        called.thread.join(240)
        assert called.error is None
        assert called.row["rows"] == MANY
    assert store(spark).lastStageAttempt(stage).numCompleteTasks() == 3
    assert lake_ids(table) == ids(table) == list(range(MANY))


@pytest.mark.classic
@pytest.mark.long
def test_an_error_of_a_task_is_told_by_its_text(spark, table):
    append_many(table)
    segment = segments(table)[0]
    data = segment.read_bytes()
    segment.write_bytes(data[:-200_000] + bytes(200_000))
    with pytest.raises(Exception, match=r"^\[?CORRUPT_DATA") as error:
        call(spark, f"tier(table => '{table.name}', spark_job => true)")
    assert "Traceback" not in str(error.value)
    assert table.lake.newest() is None
    segment.write_bytes(data)
    assert call(spark, f"tier(table => '{table.name}', spark_job => true)")["rows"] == MANY


@pytest.mark.classic
@pytest.mark.long
def test_calls_beside_each_other_have_their_own_jobs(spark, wh):
    tables = [
        wh.create_table(f"jobs.beside_{i}", COLUMNS, buckets=3, properties={"bucket.key": "id"}) for i in range(3)
    ]
    for table in tables:
        fill(table)
    calls = [Called(spark, f"compact(table => '{t.name}', spark_job => true)", f"beside {t.name}") for t in tables]
    for one, table in zip(calls, tables, strict=True):
        one.thread.join(240)
        assert (one.error, one.row["table"], one.row["files_added"]) == (None, table.name, 3)
        assert lake_ids(table) == list(range(ROUNDS * ROWS))


@pytest.mark.long
def test_a_call_through_connect_is_interrupted_and_made_again(table):
    append_many(table)
    statement = f"CALL streamhouse.system.tier(table => '{table.name}', spark_job => true)"
    command = [sys.executable, str(Path(__file__).with_name("connect_call.py")), table.storage.url, statement]
    own = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "MASTER", "SPARK_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    with (
        held(table) as segment,
        subprocess.Popen(command, env=kept, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job,
    ):
        assert job.stdin is not None
        assert job.stdout is not None
        try:
            wait_for(lambda: segment.is_waited_for() or job.poll() is not None, "a read of a segment")
            job.stdin.write("\n")
            job.stdin.flush()
            told = [job.stdout.readline().split(maxsplit=1) for _ in range(2)]
            segment.release()
            assert sorted(word for word, _ in told) == ["error", "interrupted"], told
            assert table.lake.newest() is None
            out, _ = job.communicate("\n", timeout=240)
        finally:
            job.kill()
    assert out.startswith("row ")
    assert f"'rows': {MANY}" in out
    assert lake_ids(table) == ids(table) == list(range(MANY))


# -- helpers ----------------------------------------------------------------------------------------------------------


def append_many(table: Table) -> None:
    table.append(pa.table({"id": range(MANY), "name": [f"n{i}" for i in range(MANY)], "amount": [0.5] * MANY}))


def segments(table: Table) -> list[Path]:
    folder = Path(table.storage.url.removeprefix("file://")) / "tables" / table.uuid / "segments"
    return sorted(folder.iterdir())


class Held:
    """A segment that this process has a lease of: who opens it waits until it is released, or for 45 s."""

    def __init__(self, segment: Path) -> None:
        self._file: int | None = os.open(segment, os.O_RDONLY)
        fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def is_waited_for(self) -> bool:
        return self._file is not None and fcntl.fcntl(self._file, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def release(self) -> None:
        if self._file is not None:
            fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            os.close(self._file)
        self._file = None


@contextmanager
def held(table: Table) -> Iterator[Held]:
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel tells so that somebody waits
    segment = Held(segments(table)[0])
    try:
        yield segment
    finally:
        segment.release()
        signal.signal(signal.SIGIO, before)


def store(spark: Any) -> Any:
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return spark.sparkContext._jsc.sc().statusStore()


@contextmanager
def jobs_in(spark: Any, group: str) -> Iterator[Any]:
    """Gives a function of the jobs that this thread, or `Called` with this group, has Spark run."""
    context = spark.sparkContext
    before = set(context.statusTracker().getJobIdsForGroup(group))
    context.setJobGroup(group, "ours")

    def jobs() -> list[Any]:
        found = set(context.statusTracker().getJobIdsForGroup(group)) - before
        return [store(spark).job(number) for number in sorted(found)]

    try:
        yield jobs
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)


class Called:
    """A CALL in a thread, with its row or its error."""

    def __init__(self, spark: SparkSession, text: str, group: str) -> None:
        self.row: dict[str, Any] = {}
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, args=(spark, text, group))
        self.thread.start()

    def _run(self, spark: SparkSession, text: str, group: str) -> None:
        spark.sparkContext.setJobGroup(group, "ours")
        try:
            self.row = call(spark, text)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
