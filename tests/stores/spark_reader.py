"""A Spark session of its own that reads a lake by Spark's reader: ``python -m stores.spark_reader REQUEST``.

REQUEST is JSON: the warehouse, its settings, and configuration of the session. The answer is JSON on the last line: a
count and a sum, the plan, the events, the failure of a read that is none of the table, and the number of rows that a
query in real-time mode has.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import streamhouse_spark
from spark.noted_stream import Stream

STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def follow(spark: Any, folder: Path, num_rows: int) -> int:
    """Follow the log until so many rows came, and return their number."""
    rows = spark.readStream.option("startingOffsets", "earliest").table("streamhouse.s.orders").select("id")
    stream = Stream(spark, lambda: rows, folder)
    query = stream.start()
    found = stream.wait_for(query, num_rows)
    query.stop()
    return len(set(found))


def main() -> None:
    asked = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    with TemporaryDirectory() as events:
        conf = {
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": Path(events).as_uri(),
            "spark.eventLog.compress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
            **asked["conf"],
        }
        builder = SparkSession.builder.master("local[2]")
        for key, value in conf.items():
            builder = builder.config(key, value)
        spark = streamhouse_spark.configure(builder, warehouse=asked["url"], settings=asked["settings"]).getOrCreate()
        found = spark.sql("SELECT count(id), sum(id) FROM streamhouse.s.`orders$lake`")
        rows = list(found.first())
        plan = str(found._jdf.queryExecution().toString())
        try:
            spark.read.text(asked["url"].replace("abfss:", "abfs:")).count()
            bare = ""
        except Exception as error:  # noqa: BLE001 - any failure is the answer
            bare = str(error)
        followed = follow(spark, Path(events) / "followed", rows[0])
        spark.stop()
        said = "".join(path.read_text("utf-8", "replace") for path in Path(events).rglob("*") if path.is_file())
    print(json.dumps({"rows": rows, "plan": plan, "events": said, "bare": bare, "followed": followed}))  # noqa: T201


if __name__ == "__main__":
    main()
