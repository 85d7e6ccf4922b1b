"""Everything that streams, in one process that is to be killed: all of it reads one table.

``kills_job.py WAREHOUSE FOLDER`` runs until it is killed, a query fails, or it gets a line. The folder keeps
checkpoints, and what `foreach` saw.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

SOURCE = "kills.source"
LOG, SUMS, COPY, VIEW, SEEN = "kills.log", "kills.sums", "kills.copy", "kills.by_rest", "seen"
"""Two tables that a real-time sink writes, one of micro-batches, a view, and the folder of a real-time query."""
VIEW_QUERY = f"SELECT id % 7 AS rest, count(*) AS n, sum(id) AS total FROM streamhouse.{SOURCE} GROUP BY id % 7"


class Noted:
    """Notes the ids that a query hands out."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def open(self, partition: int, epoch: int) -> bool:
        self.file = Path(f"{self.folder}/{partition}-{epoch}-{os.getpid()}").open("a", buffering=1)  # noqa: SIM115
        return True

    def process(self, row: Any) -> None:
        self.file.write(f"{row.id}\n")

    def close(self, error: Exception | None) -> None:
        self.file.close()


def queries(spark: Any, folder: Path) -> list[Any]:
    def writer(name: str, *columns: str) -> Any:
        rows = spark.readStream.option("startingOffsets", "earliest").table(f"streamhouse.{SOURCE}")
        return rows.selectExpr(*columns).writeStream.option("checkpointLocation", str(folder / name))

    real_time = {"realTime": "5 seconds"}
    (folder / SEEN).mkdir(exist_ok=True)
    noted = writer("foreach", "id").foreach(Noted(folder / SEEN)).outputMode("update").trigger(**real_time).start()
    log = writer(LOG, "id").outputMode("update").trigger(**real_time).toTable(f"streamhouse.{LOG}")
    sums = writer(SUMS, "id % 5 AS id", "1L AS times", "id AS total").outputMode("update").trigger(**real_time)
    copy = writer(COPY, "id").trigger(processingTime="0 seconds").toTable(f"streamhouse.{COPY}")
    return [noted, log, sums.toTable(f"streamhouse.{SUMS}"), copy]


def main(warehouse: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    import streamhouse_spark as sh

    builder = (
        SparkSession.builder.master("local[6]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.streaming.realTimeMode.allowlistCheck", "false")
        .config("spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled", "false")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = sh.configure(builder, warehouse=warehouse).getOrCreate()
    ends = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ends.set()), daemon=True).start()
    running = queries(spark, Path(folder))
    view = sh.materialize(spark, VIEW, VIEW_QUERY)
    while not ends.wait(0.1):
        view.refresh()
        failed = next((query.exception() for query in running if not query.isActive), None)
        if failed is not None:
            sys.exit(str(failed))
    for query in running:
        query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
