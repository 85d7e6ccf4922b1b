"""A streaming job in a process of its own, to be killed: copies one table into another, a few rows a batch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

HOLD, RUNNING = "hold", "running"


def held_back(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """While the folder has a file `HOLD`, the second task of a batch says that it runs, and waits."""

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if TaskContext.get().partitionId() == 1:
            while Path(folder, HOLD).exists():
                Path(folder, RUNNING).touch()
                time.sleep(0.02)
        yield from batches

    return held


def main(warehouse: str, source: str, target: str, checkpoint: str, rows_per_batch: str, hold: str = "") -> None:
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
    copied = stream.repartition(2)
    if hold:
        copied = copied.mapInArrow(held_back(hold), copied.schema)
    query = (
        copied.writeStream.format("streamhouse")
        .option("warehouse", warehouse)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
