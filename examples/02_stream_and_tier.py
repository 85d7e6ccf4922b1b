# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[spark,iceberg]"]
# ///
"""A Structured Streaming job writes, a tiering service moves rows into the lake, another stream reads them all.

Run it with `uv run examples/02_stream_and_tier.py [SECONDS]`. It needs Java 17 or newer.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

import streamhouse_spark as sh


def main(folder: str, seconds: float) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this Python
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("stream and tier")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    warehouse = str(Path(folder, "warehouse"))
    events = sh.Warehouse(warehouse).create_table(
        "web.events",
        "at TIMESTAMP, value BIGINT",
        buckets=2,
        properties={"bucket.key": "value", "table.datalake.freshness": "2s"},
    )

    # The tiering service runs here on a thread; in production give it a process of its own: `streamhouse tier`.
    service = sh.TieringService(spark, warehouse)
    thread = threading.Thread(target=service.run)
    thread.start()

    source = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    writer = (
        source.selectExpr("timestamp AS at", "value")
        .writeStream.format("streamhouse")
        .option("warehouse", warehouse)
        .option("checkpointLocation", str(Path(folder, "writer")))
        .trigger(processingTime="1 second")
        .start("web.events")
    )

    # `full`: first the lake, then the log, without a gap and without repeating a row.
    reader = (
        spark.readStream.format("streamhouse")
        .option("warehouse", warehouse)
        .option("startingOffsets", "full")
        .load("web.events")
        .writeStream.format("memory")
        .queryName("seen")
        .start()
    )

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or events.refresh().lake is None:
        time.sleep(1)
        state = events.refresh()
        tiered = sum(state.lake_offset(bucket) for bucket in state.buckets)
        print(f"written {sum(state.ends.values()):>6}   tiered {tiered:>6}", flush=True)

    writer.stop()
    reader.processAllAvailable()
    reader.stop()
    service.stop()
    thread.join()
    sh.tier(spark, warehouse)

    written = events.to_arrow()["value"].to_pylist()
    seen = [row.value for row in spark.table("seen").select("value").collect()]
    tiered = events.lake.to_arrow()["value"].to_pylist()
    print(f"{len(written)} rows written, {len(seen)} seen by the stream, {len(tiered)} in the lake")
    assert sorted(written) == sorted(seen) == sorted(tiered) == list(range(len(written)))
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch, float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
