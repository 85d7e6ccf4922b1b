"""Spark's pages show what a write through the catalog wrote: read from the store behind these pages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamhouse_spark import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.classic]
METRICS = {
    "recordsWritten": "rows written",
    "bytesWritten": "bytes of segments",
    "segmentsWritten": "segments written",
    "storeRequests": "requests to the store",
}


@pytest.fixture(scope="module")
def table(wh: Warehouse) -> Any:
    return wh.create_table("written.events", "id BIGINT, word STRING", buckets=1)


def shown(spark: Any, beyond: int) -> dict[str, int]:
    """The sums that the pages show of the writes of queries beyond an execution."""
    store = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    found = dict.fromkeys(METRICS, -1)
    for number in range(executions.size()):
        execution = executions.apply(number)
        if execution.executionId() <= beyond:
            continue
        values = store.executionMetrics(execution.executionId())
        for at in range(execution.metrics().size()):
            metric = execution.metrics().apply(at)
            for name, description in METRICS.items():
                value = values.get(metric.accumulatorId())
                if metric.name() == description and value.isDefined():
                    found[name] = max(found[name], int(value.get().replace(",", "")))
    return found


def newest(spark: Any) -> int:
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    return max((executions.apply(n).executionId() for n in range(executions.size())), default=-1)


@pytest.fixture
def settled(spark: Any) -> Any:
    """Waits until Spark has told its pages everything."""
    return lambda: spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()


def test_metrics_of_a_batch_show_rows_and_segments(spark, wh, table, settled):
    settled()
    before = newest(spark)
    frame = spark.range(50_000).selectExpr("id", "concat('word ', id) as word").coalesce(1)
    frame.writeTo("streamhouse.written.events").append()
    settled()
    found = shown(spark, before)
    segments = table.refresh().live_segments()
    assert found["recordsWritten"] == sum(segment.num_rows for segment in segments) == 50_000
    assert found["segmentsWritten"] == len(segments) == 1
    assert found["bytesWritten"] == segments[0].size_bytes
    assert found["storeRequests"] == 0, "a local disk has none"


def test_changes_of_rows_count_nothing(spark, wh, settled):
    keyed = wh.create_table("written.keyed", "id BIGINT NOT NULL, word STRING", primary_key=["id"])
    keyed.upsert([{"id": 1, "word": "a"}])
    settled()
    before = newest(spark)
    spark.sql("UPDATE streamhouse.written.keyed SET word = 'b' WHERE id = 1")
    settled()
    assert max(shown(spark, before).values()) <= 0
    assert keyed.to_arrow()["word"].to_pylist() == ["b"]


def test_metrics_of_a_stream_show_rows_and_staged_segments(spark, wh, table, settled, tmp_path):
    """A task with many rows stages them; one with few carries them to the driver, and counts rows alone."""
    settled()
    for rows, segments in ((40_000, 1), (3, 0)):
        source = tmp_path / f"rows-{rows}"
        spark.range(rows).selectExpr("id", "concat('w', id) as word").coalesce(1).write.parquet(str(source))
        settled()
        before = newest(spark)
        stream = spark.readStream.schema("id BIGINT, word STRING").parquet(str(source))
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / f"checkpoint-{rows}"))
        query = writer.trigger(availableNow=True).toTable("streamhouse.written.events")
        query.awaitTermination()
        settled()
        found = shown(spark, before)
        assert found["recordsWritten"] == rows
        assert max(found["segmentsWritten"], 0) == segments
        told = sink_metrics(query)
        assert told.pop("recordsWritten") == found["recordsWritten"]
        assert set(told) == ({"bytesWritten", "segmentsWritten", "storeRequests"} if segments else set())
        assert all(found[name] == value for name, value in told.items())


def sink_metrics(query: Any) -> dict[str, int]:
    """What the progress of a query tells of the batch that it wrote last."""
    sink = json.loads(query.lastProgress.json if hasattr(query.lastProgress, "json") else "{}")["sink"]
    return {name: int(value) for name, value in sink["metrics"].items()}


def test_metrics_of_a_keyed_stream_are_those_of_its_batch(spark, wh, tmp_path):
    """Its tasks stage changes, and the next batch tells of itself alone."""
    wh.create_table("written.by_key", "id BIGINT NOT NULL, word STRING", primary_key=["id"])
    source = tmp_path / "rows"
    for rows in (5_000, 700):
        frame = spark.range(rows).selectExpr("id", "concat('w', id) as word").coalesce(1)
        frame.write.mode("append").parquet(str(source))
        stream = spark.readStream.schema("id BIGINT, word STRING").parquet(str(source))
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).toTable("streamhouse.written.by_key")
        query.awaitTermination()
        told = sink_metrics(query)
        assert told["recordsWritten"] == rows
        assert told["bytesWritten"] > 0
