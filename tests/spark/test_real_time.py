"""Streams in Spark's real-time mode: they give the rows that micro-batches give, from the same checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark.noted_stream import WAIT_S, Stream
from streamhouse_spark.warehouse.warehouse import Warehouse
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments

pytestmark = [pytest.mark.spark, pytest.mark.classic]

BATCH = "1 second"
TYPES = """
    id BIGINT NOT NULL, yes BOOLEAN, i8 TINYINT, i16 SMALLINT, i32 INT, f32 FLOAT, f64 DOUBLE, money DECIMAL(38,10),
    small DECIMAL(5,2), name STRING, raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, list ARRAY<INT>,
    tags MAP<STRING,BIGINT>, nested STRUCT<x:INT,y:ARRAY<STRING>>, padded CHAR(3)
"""


def typed(first: int, count: int) -> str:
    """A query of rows of every type, each third with nulls."""
    return f"""
        SELECT id, IF(full, id % 2 = 0, NULL), CAST(-id % 100 AS TINYINT), CAST(id AS SMALLINT), CAST(-id AS INT),
          CAST(id / 2 AS FLOAT), IF(full, id * 1e300, NULL), CAST(id * -1234567.0000000001BD AS DECIMAL(38,10)),
          IF(full, CAST(id % 100 / 4 AS DECIMAL(5,2)), NULL), IF(full, concat('nämé ', id), NULL),
          IF(full, CAST(concat('raw', id) AS BINARY), NULL), DATE'2026-01-02' + CAST(id AS INT),
          TIMESTAMP'2026-01-02 03:04:05.000006Z' + make_interval(0, 0, 0, CAST(id AS INT)),
          TIMESTAMP_NTZ'2026-01-02 03:04:05.000006', IF(full, array(CAST(id AS INT), NULL), NULL),
          IF(full, map('k', id, '', NULL), NULL),
          IF(full, named_struct('x', CAST(id AS INT), 'y', array('a', NULL)), NULL),
          IF(full, 'abc', NULL)
        FROM (SELECT id, id % 3 > 0 AS full FROM range({first}, {first + count}))
    """


@pytest.fixture
def real_time(spark: Any) -> Iterator[None]:
    """Set what real-time mode requires, with batches of one second, or skip if Spark has no such mode."""
    try:
        spark._jvm.org.apache.spark.sql.streaming.Trigger.RealTime("5 seconds")
    except Exception:  # noqa: BLE001 - py4j says in many ways that a method is not there
        pytest.skip("no real-time mode")
    settings = {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.realTimeMode.minBatchDuration": "1s",
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key in settings:
        spark.conf.unset(key)


def ended(query: Any) -> str:
    with pytest.raises(PySparkException) as raised:
        query.awaitTermination(WAIT_S)
    return str(raised.value)


@pytest.mark.always
@pytest.mark.usefixtures("real_time")
def test_a_query_reads_rows_in_real_time_and_goes_on_in_micro_batches(
    spark: Any, wh: Warehouse, tmp_path: Path
) -> None:
    table = wh.create_table("rt.early", "id BIGINT NOT NULL")
    table.append([{"id": 1}])
    stream = Stream(spark, lambda: spark.readStream.table("streamhouse.rt.early"), tmp_path, BATCH)
    query = stream.start()
    stream.wait_for(query, 1)
    table.append([{"id": 2}])
    assert stream.wait_for(query, 2) == ["(1,)", "(2,)"]
    query.stop()
    table.append([{"id": 3}])
    assert stream.micro_batches() in (["(3,)"], ["(2,)", "(3,)"]), "the last batch may not have been stored"


@pytest.mark.usefixtures("real_time")
def test_real_time_mode_gives_the_rows_of_micro_batches(spark: Any, wh: Warehouse, tmp_path: Path) -> None:
    """Of every type, inline, as files, compressed and from before a column was added, by one checkpoint of both."""
    name = "streamhouse.rt.rows"
    spark.sql("CREATE DATABASE IF NOT EXISTS streamhouse.rt")
    spark.sql(f"CREATE TABLE {name} ({TYPES}) TBLPROPERTIES ('bucket.num' = '2', 'bucket.key' = 'id')")
    columns = ["*", "_bucket", "_log_offset", "CAST(_commit_timestamp AS STRING)"]

    def rows() -> Any:
        return spark.readStream.table(name).selectExpr(*columns)

    def append(first: int, count: int) -> None:
        spark.sql(f"INSERT INTO {name} {typed(first, count)}")

    append(0, 30)
    both, alone = (Stream(spark, rows, tmp_path / folder, BATCH) for folder in ("both", "alone"))
    query = both.start()
    both.wait_for(query, 30)
    append(100, 20)
    table = wh.table("rt.rows")
    table.alter_properties({"table.log.arrow.compression.type": "zstd"})
    table.log_writer.stager()._inline_bytes_max = 0
    append(200, 6000)
    both.wait_for(query, 6050)
    query.stop()
    seen = set(both.rows())
    append(10_000, 10)
    stored = both.micro_batches()
    assert len(stored) >= 10
    table.refresh()
    compact_small_segments(table)
    compact_inline_rows(table)
    query = both.start()
    append(20_000, 10)
    both.wait_for(query, 10)
    query.stop()
    assert seen | set(stored) | set(both.rows()) == set(alone.micro_batches())
    assert len(alone.rows()) == 6070


def has_unions(spark: Any) -> None:
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 3):
        pytest.skip("unions are not on the list of this Spark")


@pytest.mark.long
@pytest.mark.usefixtures("real_time")
def test_unions_joins_and_what_ends_a_query(spark: Any, wh: Warehouse, tmp_path: Path) -> None:
    """A table that is read twice, and it beside changes by key, each joined with a third one; until it is truncated."""
    has_unions(spark)
    log = wh.create_table("rt.log", "id BIGINT NOT NULL, name STRING", buckets=2, properties={"bucket.key": "id"})
    keyed = wh.create_table("rt.keyed", "id BIGINT, name STRING", primary_key=["id"])
    log.append([{"id": i, "name": "log"} for i in range(5)])
    keyed.upsert([{"id": i, "name": "keyed"} for i in range(3)])
    wh.create_table("rt.names", "id BIGINT, text STRING").append([{"id": i, "text": f"text {i}"} for i in range(9)])

    def read() -> Any:
        return spark.readStream.table("streamhouse.rt.log").selectExpr("id", "name")

    def texts() -> Any:
        return spark.table("streamhouse.rt.names").hint("broadcast")

    def twice() -> Any:
        return read().union(read()).join(texts(), "id")

    def beside_changes() -> Any:
        changes = spark.readStream.table("streamhouse.rt.`keyed$changelog`")
        changes = changes.selectExpr("id", "concat(name, ' ', _change_type, ' ', _log_offset)")
        return read().union(changes).join(texts(), "id")

    def wait(stream: Stream, query: Any, count: int) -> list[str]:
        end = time.monotonic() + WAIT_S
        while len(stream.rows()) < count and query.exception() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert query.exception() is None
        return stream.rows()

    stream = Stream(spark, twice, tmp_path / "twice")
    query = stream.start()
    assert wait(stream, query, 10) == sorted(2 * [f"({i}, 'log', 'text {i}')" for i in range(5)])
    query.stop()
    stream = Stream(spark, beside_changes, tmp_path / "changes")
    query = stream.start()
    wait(stream, query, 8)
    keyed.upsert([{"id": 1, "name": "new"}])
    assert "(1, 'new update_after 4', 'text 1')" in wait(stream, query, 10)
    log.truncate()
    assert "OFFSETS_TRIMMED" in ended(query)


@pytest.mark.long
@pytest.mark.usefixtures("real_time")
def test_queries_that_need_more_cores_together_are_refused_but_the_first(
    spark: Any, wh: Warehouse, tmp_path: Path
) -> None:
    """Spark would run the tasks of the first, and leave those of the second waiting without a word."""
    slots = spark.sparkContext.defaultParallelism
    table = wh.create_table("rt.wide", "id BIGINT NOT NULL", buckets=slots, properties={"bucket.key": "id"})
    table.append([{"id": 1}])
    wide = Stream(
        spark, lambda: spark.readStream.option("realTimeTasks", slots).table("streamhouse.rt.wide"), tmp_path / "wide"
    )
    narrow = Stream(spark, lambda: spark.readStream.table("streamhouse.rt.wide"), tmp_path / "narrow")
    first = wide.start()
    wide.wait_for(first, 1)
    text = ended(narrow.start())
    assert "INVALID_OPTION: a query that reads rt.wide in real-time mode needs" in text
    assert f"{slots + 1} concurrent tasks, including {slots} of running real-time queries" in text
    table.append([{"id": 2}])
    wide.wait_for(first, 2)  # it goes on
    end = time.monotonic() + WAIT_S
    while wide.stored() < 2 and time.monotonic() < end:  # its later batches are not refused either
        assert first.exception() is None
        time.sleep(0.1)
    first.stop()
    second = narrow.start()
    assert narrow.wait_for(second, 2) == ["(1,)", "(2,)"]
    second.stop()


@pytest.mark.long
@pytest.mark.usefixtures("real_time")
def test_a_query_of_more_streams_than_cores_is_refused(spark: Any, wh: Warehouse, tmp_path: Path) -> None:
    """Spark would read some of them, and say nothing of the others. With a shuffle it refuses them itself."""
    has_unions(spark)
    wh.create_table("rt.many", "id BIGINT NOT NULL", buckets=2, properties={"bucket.key": "id"}).append([{"id": 1}])
    slots = spark.sparkContext.defaultParallelism

    def many() -> Any:
        found = spark.readStream.option("realTimeTasks", 7).table("streamhouse.rt.many")
        for _ in range(slots - 1):
            found = found.union(spark.readStream.table("streamhouse.rt.many"))
        return found

    stream = Stream(spark, many, tmp_path)
    text = ended(stream.start())
    assert "INVALID_OPTION: a query that reads rt.many and other streams" in text
    assert f"needs {slots + 1} concurrent tasks" in text
    assert f"this session has {slots}" in text
    assert stream.rows() == []
