# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[spark]"]
# ///
"""A batch job that may run twice and still writes its rows once: `txnAppId` and `txnVersion`.

Run it with `uv run examples/05_exactly_once_batch.py`. It needs Java 17 or newer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import streamhouse_spark as sh


def nightly_job(spark: SparkSession, warehouse: str, day: int) -> None:
    """Safe to repeat: a version that is stored adds nothing."""
    (
        spark.range(day * 1000, day * 1000 + 100)
        .selectExpr("id", f"{day} AS day")
        .write.format("streamhouse")
        .option("warehouse", warehouse)
        .option("txnAppId", "nightly")
        .option("txnVersion", day)
        .mode("append")
        .save("jobs.results")
    )


def main(warehouse: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this Python
    spark = (
        SparkSession.builder.master("local[2]").appName("exactly once").config("spark.log.level", "ERROR").getOrCreate()
    )
    results = sh.Warehouse(warehouse).create_table("jobs.results", "id BIGINT, day INT")

    for day in (1, 2, 2, 1, 3):  # the scheduler repeats days 2 and 1
        nightly_job(spark, warehouse, day)
        print(f"day {day}: the table has {results.to_arrow(columns=['id']).num_rows} rows")

    assert results.to_arrow(columns=["id"]).num_rows == 300
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(str(Path(folder, "warehouse")))
