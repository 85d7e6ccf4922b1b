"""A query in real-time mode that writes a table's rows into another, in a process of its own, to be killed.

``real_time_job.py WAREHOUSE SOURCE TARGET CHECKPOINT COLUMN...`` runs until it is killed, fails, or gets a line.
``STREAMHOUSE_JOB_MASTER`` names another master than two cores whose tasks are never run again.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings


def main(warehouse: str, source: str, target: str, checkpoint: str, *columns: str) -> None:
    from pyspark.sql import SparkSession

    import streamhouse_spark

    builder = (
        SparkSession.builder.master(os.environ.get("STREAMHOUSE_JOB_MASTER", "local[2]"))
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.streaming.realTimeMode.allowlistCheck", "false")
        .config("spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled", "false")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = streamhouse_spark.configure(builder, warehouse=warehouse).getOrCreate()
    rows = spark.readStream.option("startingOffsets", "earliest").table(f"streamhouse.{source}")
    writer = rows.where("id % 10 != 3").selectExpr(*columns).writeStream.outputMode("update")
    writer = writer.option("checkpointLocation", checkpoint).trigger(realTime="5 seconds")
    query = writer.toTable(f"streamhouse.{target}")
    threading.Thread(target=lambda: (sys.stdin.readline(), query.stop()), daemon=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
