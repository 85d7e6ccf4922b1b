"""Streams of tables, and checkpoints, that were put back to an older copy; sinks that would lose rows in silence."""

from __future__ import annotations

import re
import shutil

import pytest
from pyspark.errors import PySparkException

from spark.session import COLUMNS, drain, ids, load_stream, rows
from streamhouse_spark import Warehouse

pytestmark = pytest.mark.spark


@pytest.fixture
def own(tmp_path):
    """A warehouse of this test alone, which can be put back."""
    return Warehouse(str(tmp_path / "own"))


class Copy:
    """A copy of a folder, and the way back."""

    def __init__(self, folder, to):
        self._folder, self._to = folder, to
        shutil.copytree(folder, to)

    def restore(self):
        shutil.rmtree(self._folder)
        shutil.copytree(self._to, self._folder)


@pytest.mark.long
def test_a_source_that_was_restored(spark, own, tmp_path, checkpoint):
    source, target = own.create_table("h.a", COLUMNS), own.create_table("h.b", COLUMNS)
    source.append(rows(10))
    backup = Copy(tmp_path / "own" / "tables" / source.uuid, tmp_path / "backup")
    source.append(rows(10, 100))
    drain(load_stream(spark, own, "h.a"), own, "h.b", checkpoint)
    backup.restore()
    source = Warehouse(own.url).table("h.a")
    source.append(rows(50, 200))
    with pytest.raises(
        PySparkException, match=r"DIFFERENT_HISTORY: .*restored from a backup.*onDifferentHistory=continue"
    ):
        drain(load_stream(spark, own, "h.a"), own, "h.b", checkpoint)
    assert ids(target) == [*range(10), *range(100, 110)]
    drain(load_stream(spark, own, "h.a", onDifferentHistory="continue"), own, "h.b", checkpoint)
    assert ids(target) == [*range(10), *range(100, 110), *range(210, 250)]


@pytest.mark.parametrize("path", ["plain", "catalog"])
@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.long
def test_a_checkpoint_that_was_restored(spark, wh, tmp_path, checkpoint, path, by_key):
    """The batch of the same number, or of a lower one, has other rows: they are not dropped in silence."""
    name = re.sub(r"\W+", "_", f"restored_{path}_{by_key}")
    source = wh.create_table(f"h.{name}_from", COLUMNS)
    options = {"primary_key": ["id"]} if by_key else {}
    target = wh.create_table(f"h.{name}_to", COLUMNS, **options)

    def copy():
        stream = load_stream(spark, wh, source.name)
        if path == "plain":
            return drain(stream, wh, target.name, checkpoint)
        writer = stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.toTable(f"streamhouse.{target.name}")
        return query.awaitTermination()

    source.append(rows(10))
    copy()
    backup = Copy(checkpoint, tmp_path / "backup")
    for start in (10, 20):
        source.append(rows(10, start))
        copy()
    source.append(rows(70, 30))
    backup.restore()
    with pytest.raises(PySparkException, match=r"DIFFERENT_HISTORY: batch 1 of stream .* batch 2 is stored"):
        copy()
    assert ids(target) == list(range(30))
    target.forget_transactions(*target.state.transactions)
    copy()
    assert set(ids(target)) == set(range(100)), "what the error advises: every row, some of them twice"


@pytest.mark.long
def test_a_batch_number_with_other_rows_is_detected(spark, wh, tmp_path, checkpoint):
    source, target = wh.create_table("h.same_from", COLUMNS), wh.create_table("h.same_to", COLUMNS)
    source.append(rows(10))
    drain(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    backup = Copy(checkpoint, tmp_path / "backup")
    source.append(rows(10, 10))
    drain(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    source.append(rows(30, 20))
    backup.restore()
    with pytest.raises(
        PySparkException, match=r"DIFFERENT_HISTORY: batch 1 of stream .* of this number with other offsets"
    ):
        drain(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    assert ids(target) == list(range(20))


@pytest.mark.parametrize("path", ["plain", "catalog"])
@pytest.mark.parametrize("by_key", [False, True])
def test_real_time_streams_are_refused(spark, wh, tmp_path, checkpoint, path, by_key):
    """Also where Spark's own list of sinks, which has none of ours, is switched off; micro-batches beside go on."""
    java = spark._jvm.org.apache.spark.sql.execution.streaming.sources
    try:
        memory = java.LowLatencyMemoryStream
        trigger = spark._jvm.org.apache.spark.sql.streaming.Trigger.RealTime("5 seconds")
        made = memory.apply(spark._jsparkSession, spark._jvm.org.apache.spark.sql.Encoders.LONG())
    except Exception:  # noqa: BLE001 - py4j says in many ways that a class is not there
        pytest.skip("no real-time mode")
    name = f"h.real_time_{path}_{by_key}"
    target = wh.create_table(name, "id BIGINT NOT NULL", **({"primary_key": ["id"]} if by_key else {}))
    spark.conf.set("spark.sql.streaming.realTimeMode.allowlistCheck", "false")
    spark.conf.set("spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled", "false")
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    try:
        writer = made.toDF().withColumnRenamed("value", "id").writeStream()
        writer = writer.outputMode("update").option("checkpointLocation", checkpoint).trigger(trigger)
        start = writer.format("streamhouse").option("warehouse", wh.url).start if path == "plain" else writer.toTable
        said = "does not support Update mode" if path == "plain" else r"INVALID_OPTION: .* real-time trigger.*foreach"
        with pytest.raises(Exception, match=said):
            start(name if path == "plain" else f"streamhouse.{name}").awaitTermination(60_000)
        source, beside = wh.create_table(f"{name}_from", COLUMNS), wh.create_table(f"{name}_to", COLUMNS)
        source.append(rows(3))
        drain(load_stream(spark, wh, source.name), wh, beside.name, str(tmp_path / "beside"))
        stream = spark.readStream.table(f"streamhouse.{source.name}").writeStream.trigger(availableNow=True)
        place = str(tmp_path / "by-catalog")
        stream.option("checkpointLocation", place).toTable(f"streamhouse.{beside.name}").awaitTermination(60)
        assert sorted(ids(beside)) == [0, 0, 1, 1, 2, 2]
    finally:
        spark.conf.unset("spark.sql.streaming.realTimeMode.allowlistCheck")
        spark.conf.unset("spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled")
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    assert ids(target) == []
