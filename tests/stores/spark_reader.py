"""A Spark session of its own that reads a lake by Spark's reader: ``python -m stores.spark_reader REQUEST``.

REQUEST is JSON: the warehouse, its settings, and configuration of the session. The answer is JSON on the last line: a
count and a sum, the plan, the events, and the failure of a read that is none of the table.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import streamhouse_spark


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
        spark.stop()
        said = "".join(path.read_text("utf-8", "replace") for path in Path(events).rglob("*") if path.is_file())
    print(json.dumps({"rows": rows, "plan": plan, "events": said, "bare": bare}))  # noqa: T201


if __name__ == "__main__":
    main()
