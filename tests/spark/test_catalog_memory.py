"""Reads that end early, fail or are repeated leave neither Arrow memory nor Python processes behind."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import repeat, udf

from kit.waiting import WAIT_S_MAX
from spark.session import COLUMNS, rows
from streamhouse_spark.spark import tier

pytestmark = [
    pytest.mark.spark,
    pytest.mark.classic,
    pytest.mark.skipif("STREAMHOUSE_TEST_MASTER" in os.environ, reason="looks at memory of executors in this JVM"),
]

NUM_ROWS = 400_000
HOT = "streamhouse.memory.hot"


@pytest.fixture(scope="module")
def hot(spark, wh):
    """Rows that come in many batches, all of them in the log."""
    table = wh.create_table("memory.hot", "id BIGINT, text STRING", buckets=2)
    for start in range(0, NUM_ROWS, 100_000):
        ids = range(start, start + 100_000)
        table.append(pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{i:09d}" for i in ids]}))
    return table


def allocated(spark):
    """Bytes of Arrow memory behind the columns of our scans; closing them with rows in it is an error of Arrow's own.

    Not all of Spark's: a cancelled Python function leaves some of that behind over a Parquet file too.
    """
    root = spark._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()
    return sum(child.getAllocatedMemory() for child in root.getChildAllocators() if child.getName() == "streamhouse")


def settled(read, wanted, seconds=WAIT_S_MAX):
    """The value once it is as wanted; tasks that were killed end a little after their query. Or the last one."""
    deadline = time.monotonic() + seconds
    while not wanted(found := read()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def require_no_arrow_memory(spark):
    assert settled(lambda: allocated(spark), lambda size: size == 0) == 0


def python_processes():
    """The Python processes below this one's JVM."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    below, found = {os.getpid()}, True
    while found:
        found = {pid for pid, parent in parents.items() if parent in below} - below
        below |= found
    return len(below)


def test_whole_scans_leave_no_arrow_memory(spark, hot):
    assert spark.sql(f"SELECT count(text), min(text), max(text), sum(id) FROM {HOT} WHERE id >= 0").first() == (
        NUM_ROWS, f"{0:09d}", f"{NUM_ROWS - 1:09d}", NUM_ROWS * (NUM_ROWS - 1) // 2,
    )  # fmt: skip
    require_no_arrow_memory(spark)


@pytest.mark.parametrize("whole_stage", ["true", "false"])
def test_values_outlive_their_batch(spark, hot, whole_stage):
    """Texts are in Arrow's memory until Spark copies them: aggregates, sorts and windows keep some for longer."""
    key = "spark.sql.codegen.wholeStage"
    before = spark.conf.get(key)
    spark.conf.set(key, whole_stage)
    try:
        last = f"{NUM_ROWS - 1:09d}"
        assert spark.sql(f"SELECT max(text) FROM {HOT} WHERE id % 100000 = 99999").first()[0] == last
        assert spark.sql(f"SELECT max_by(text, id), min_by(text, id) FROM {HOT} WHERE id >= 0").first() == (
            last, f"{0:09d}",
        )  # fmt: skip
        top = spark.sql(f"SELECT text FROM {HOT} ORDER BY text DESC LIMIT 3").collect()
        assert [row.text for row in top] == [f"{NUM_ROWS - i:09d}" for i in (1, 2, 3)]
        firsts = spark.sql(f"SELECT id % 7 AS r, min(text) AS low FROM {HOT} WHERE id >= 0 GROUP BY 1 ORDER BY 1")
        assert [row.low for row in firsts.collect()] == [f"{i:09d}" for i in range(7)]
        lists = spark.sql(f"SELECT collect_list(text) AS l FROM {HOT} WHERE id % 50000 = 0").first().l
        assert sorted(lists) == [f"{i:09d}" for i in range(0, NUM_ROWS, 50000)]
    finally:
        spark.conf.set(key, before)
    require_no_arrow_memory(spark)


@pytest.mark.long
def test_limit_over_hot_rows(spark, hot):
    for _ in range(5):
        assert len(spark.sql(f"SELECT text FROM {HOT} LIMIT 10").collect()) == 10
        assert len(spark.sql(f"SELECT text FROM {HOT} WHERE id % 2 = 1 LIMIT 10").collect()) == 10
    assert spark.table(HOT).first() is not None
    require_no_arrow_memory(spark)


@pytest.mark.long
def test_a_failing_function_leaves_no_arrow_memory(spark, hot):
    @udf("long")
    def fails(number):
        if number == 70_000:
            raise ValueError("that row")
        return number

    with pytest.raises(PySparkException, match="that row"):
        spark.table(HOT).select(fails("id")).collect()
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        spark.sql(f"SELECT sum(1 / (id - 150000)), max(text) FROM {HOT}").collect()
    require_no_arrow_memory(spark)
    assert spark.table(HOT).where("id >= 0").count() == NUM_ROWS


@pytest.mark.parametrize("how", ["join", "function"])
@pytest.mark.long
def test_a_cancelled_query_leaves_no_arrow_memory(spark, hot, how):
    @udf("long")
    def slow(number, _text):
        if number % 1000 == 0:
            time.sleep(0.2)
        return number

    if how == "join":
        # Spark sees that it was cancelled where it asks for the next batch: not after too many matches of this one.
        frame = spark.sql(f"SELECT max(l.text < r.text) FROM {HOT} l JOIN {HOT} r ON l.id % 200 = r.id % 200")
    else:
        # Long texts: of short ones a socket's buffers hold so many that the scan is over while the function has begun.
        frame = spark.table(HOT).select(slow("id", repeat("text", 200)), "text")
    context = spark.sparkContext
    tag = f"memory-cancelled-{how}"
    failures = []

    def run():
        context.addJobTag(tag)
        try:
            frame.write.format("noop").mode("overwrite").save()
        except Exception as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)
        finally:
            context.removeJobTag(tag)

    thread = threading.Thread(target=run)
    thread.start()
    assert settled(lambda: allocated(spark), lambda size: size > 0 or failures) > 0, failures
    while thread.is_alive():
        context.cancelJobsWithTag(tag)
        thread.join(0.2)
    assert any("cancel" in str(error) for error in failures), failures
    require_no_arrow_memory(spark)
    assert spark.table(HOT).where("id >= 0").count() == NUM_ROWS


@pytest.mark.long
def test_many_small_scans_leave_no_arrow_memory(spark, wh):
    table = wh.create_table("memory.small", COLUMNS)
    table.append(rows(20))
    tier(spark, wh.url, ["memory.small"])
    table.append(rows(20, 20))
    query = "SELECT name FROM streamhouse.memory.small WHERE id IN (3, 33)"
    for _ in range(20):
        assert len(spark.sql(query).collect()) == 2
    before = python_processes()
    for _ in range(100):
        assert len(spark.sql(query).collect()) == 2
    require_no_arrow_memory(spark)
    assert settled(python_processes, lambda count: count <= before + 2) <= before + 2
