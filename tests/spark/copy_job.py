"""A streaming job in a process of its own, to be killed: copies one table into another, a few rows a batch."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def main(warehouse: str, source: str, target: str, checkpoint: str, rows_per_batch: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    stream = (
        spark.readStream.format("streamhouse")
        .option("warehouse", warehouse)
        .option("maxOffsetsPerTrigger", rows_per_batch)
        .load(source)
    )
    query = (
        stream.repartition(2)
        .writeStream.format("streamhouse")
        .option("warehouse", warehouse)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
