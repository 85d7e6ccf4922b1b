"""Streams into tables in real-time mode: each row once, soon, whatever is killed; and the queries that are refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from kit.waiting import wait_for
from spark import real_time_job
from spark.left_checkpoint import clear
from spark.rising_rows import RisingRows
from spark.session import COLUMNS, rows
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.write.sink_transactions import SourceProgress, SourceRows
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

pytestmark = [
    pytest.mark.spark,
    pytest.mark.classic,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not spark_versions.HAS_ADMISSION_CONTROL, reason="PySpark 4.1 has no trigger for real-time mode"
    ),
]

KILLS = 3
ROWS_PER_APPEND = 7


@contextmanager
def job(*arguments: str, master: str = "local[2]") -> Iterator[subprocess.Popen[str]]:
    """A query, of which nothing is left in the end."""
    command = [sys.executable, real_time_job.__file__, *arguments]
    environ = {**os.environ, "STREAMHOUSE_JOB_MASTER": master}
    started = subprocess.Popen(
        command, env=environ, start_new_session=True, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield started
    finally:
        os.killpg(started.pid, signal.SIGKILL)  # the JVM and its workers too
        assert started.stdin is not None
        started.stdin.close()
        started.wait()


def moved(table: Table, version: int, query: subprocess.Popen[str]) -> None:
    def is_so() -> bool:
        assert query.poll() is None, "the query ended by itself"
        return table.refresh().version > version

    wait_for(is_so, "a commit of the query")


@pytest.mark.parametrize("by_key", [False, True])
def test_killed_queries_write_each_row_once(wh: Warehouse, tmp_path: Path, by_key: bool) -> None:
    """A log has each row at one offset; sums by key would show one that is added twice."""
    name = f"rts.kill_{by_key}"
    source = wh.create_table(f"{name}_from", COLUMNS, buckets=2, properties={"bucket.key": "id"})
    columns = ["id % 5 AS id", "1L AS times", "id AS total"] if by_key else ["id", "upper(name) AS name", "amount"]
    if by_key:
        sums = {"table.merge-engine": "aggregation", "fields.times.agg": "sum", "fields.total.agg": "sum"}
        target = wh.create_table(name, "id BIGINT, times BIGINT, total BIGINT", primary_key=["id"], properties=sums)
    else:
        target = wh.create_table(name, COLUMNS, buckets=2, properties={"bucket.key": "id"})
    arguments = [wh.url, source.name, name, str(tmp_path / "checkpoint"), *columns]
    chance = random.Random(name)
    with RisingRows(source, lambda first: rows(ROWS_PER_APPEND, first), every_s=0.02) as written:
        for _ in range(KILLS):
            version = target.refresh().version + 1  # behind the mark of the first batch
            clear(tmp_path / "checkpoint")
            with job(*arguments) as query:
                moved(target, version, query)
                time.sleep(chance.uniform(0, 8))  # within a batch, or between two
                assert query.poll() is None
    wanted = [i for i in range(written.count) if i % 10 != 3]

    def found() -> list[int]:
        table = target.to_arrow(columns=["id", "times", "total"] if by_key else ["id"])
        if not by_key:
            return sorted(table["id"].to_pylist())
        return sorted([row["id"], row["times"], row["total"]] for row in table.to_pylist())

    expected: Any = wanted
    if by_key:
        expected = [[key, len(own), sum(own)] for key in range(5) if (own := [i for i in wanted if i % 5 == key])]
    clear(tmp_path / "checkpoint")
    with job(*arguments) as query:
        wait_for(lambda: found() == expected or query.poll() is not None, "all rows in the table")
        assert query.poll() is None
        time.sleep(1)
        assert found() == expected
        query.communicate("\n", timeout=60)


def test_a_task_that_runs_again_goes_on_behind_what_it_stored(wh: Warehouse, tmp_path: Path) -> None:
    """Spark begins a task that failed at the beginning of its batch, whose rows are stored by then."""
    source, target = wh.create_table("rts.failing", COLUMNS), wh.create_table("rts.after_failing", COLUMNS)
    source.append(rows(10))
    fails_once = "reflect('java.lang.System', 'setProperty', 'streamhouse.test.failed', '1')"  # the value before
    amount = f"IF(id = 25, amount + 0 * CAST({fails_once} AS DOUBLE), amount) AS amount"
    arguments = [wh.url, source.name, target.name, str(tmp_path / "checkpoint"), "id", "name", amount]
    with job(*arguments, master="local[2,3]") as query:
        wait_for(lambda: target.refresh().num_rows == 9 or query.poll() is not None, "the first rows")
        source.append(rows(10, 20))
        wait_for(lambda: target.refresh().num_rows >= 18 or query.poll() is not None, "the rows behind the failure")
        assert query.poll() is None
        query.communicate("\n", timeout=60)
    expected = [i for i in (*range(10), *range(20, 30)) if i % 10 != 3]
    assert sorted(target.to_arrow()["id"].to_pylist()) == expected


@pytest.fixture
def real_time(spark: Any) -> Iterator[None]:
    settings = {
        "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
        "spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled": "false",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",  # so that Spark lets micro-batches be followed
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key in settings:
        spark.conf.unset(key)


def started(frame: Any, target: str, checkpoint: Path) -> Any:
    writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
    return writer.trigger(realTime="5 seconds").toTable(f"streamhouse.{target}")


@pytest.mark.usefixtures("real_time")
def test_a_query_is_refused_where_places_do_not_tell_its_rows(spark: Any, wh: Warehouse, tmp_path: Path) -> None:
    source, target = wh.create_table("rts.some", COLUMNS), wh.create_table("rts.refused", COLUMNS)
    source.append(rows(3))

    def read(**options: str) -> Any:
        return spark.readStream.options(**options).table("streamhouse.rts.some")

    same = f.udf(lambda name: name)
    refused = {
        "Aggregate does more": read().groupBy("name").agg(f.max("id").alias("id")),
        "Union does more": read().union(read()),
        "Repartition does more": read().repartition(2),
        "Python functions": read().select("id", same("name").alias("name")),
        "other rows at equal offsets": read(onDifferentHistory="continue"),
    }
    for number, (said, frame) in enumerate(refused.items()):
        with pytest.raises(Exception, match=rf"INVALID_OPTION: .* real-time trigger: .*{said}.*foreach"):
            started(frame, target.name, tmp_path / str(number)).awaitTermination(60)
    assert target.refresh().num_rows == 0


@pytest.mark.usefixtures("real_time")
def test_a_query_goes_on_behind_the_last_commit_of_its_stopped_predecessor(
    spark: Any, wh: Warehouse, tmp_path: Path
) -> None:
    """A task of a stopped query may commit when the query that follows it from the same checkpoint has begun."""
    source, target = wh.create_table("rts.of_both", COLUMNS), wh.create_table("rts.by_both", COLUMNS)
    stream = spark.readStream.option("startingOffsets", "earliest").table(f"streamhouse.{source.name}")
    query = started(stream, target.name, tmp_path / "checkpoint")
    wait_for(lambda: target.refresh().transactions, "the mark of the query")
    late = SourceProgress(query.id, source.uuid).transaction(None, SourceRows(0, -1, 3), None)
    target.append(rows(3), transaction=late)
    source.append(rows(5))
    wait_for(lambda: target.refresh().num_rows >= 5 or not query.isActive, "the rows behind those")
    assert query.exception() is None
    query.stop()
    assert sorted(target.to_arrow()["id"].to_pylist()) == [*range(5)]


def told(query: Any, name: str) -> int:
    """The sum of what the progress of all batches tells."""
    batches = (json.loads(progress.json)["sink"].get("metrics", {}) for progress in query.recentProgress)
    return sum(int(counts.get(name, 0)) for counts in batches)


@pytest.mark.usefixtures("real_time")
def test_a_query_keeps_its_trigger(spark: Any, wh: Warehouse, tmp_path: Path) -> None:
    """Numbers of batches mean nothing in real-time mode, and places nothing to micro-batches."""
    source, target = wh.create_table("rts.source", COLUMNS), wh.create_table("rts.kept", COLUMNS)
    source.append(rows(3))
    stream = spark.readStream.option("startingOffsets", "earliest").table("streamhouse.rts.source")
    query = started(stream, target.name, tmp_path / "one")
    wait_for(lambda: target.refresh().num_rows == 3, "the rows")
    wait_for(lambda: told(query, "recordsWritten") >= 3, "the end of the rows' batches")
    assert told(query, "recordsWritten") == 3
    assert 1 <= told(query, "commits") <= 3
    assert told(query, "bytesWritten") > 0
    query.stop()
    source.append(rows(2, 3))

    def micro_batch(checkpoint: str) -> None:
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / checkpoint))
        writer.trigger(availableNow=True).toTable("streamhouse.rts.kept").awaitTermination(120)

    with pytest.raises(Exception, match=r"TRANSACTION_CONFLICT: .*in real-time mode"):
        micro_batch("one")
    assert target.refresh().num_rows == 3
    micro_batch("two")
    with pytest.raises(Exception, match=r"TRANSACTION_CONFLICT: .*, which wrote micro-batches.*new checkpointLocation"):
        started(stream, target.name, tmp_path / "two").awaitTermination(60)
    assert target.refresh().num_rows == 8
