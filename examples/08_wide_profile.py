# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[spark]"]
# ///
"""One wide table of customers, written by three streaming jobs that know nothing of each other: partial updates.

Run it with `uv run examples/08_wide_profile.py`. It needs Java 17 or newer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import streamhouse_spark as sh


def main(folder: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this Python
    spark = (
        SparkSession.builder.master("local[2]").appName("wide profile").config("spark.log.level", "ERROR").getOrCreate()
    )
    warehouse = str(Path(folder, "warehouse"))
    wh = sh.Warehouse(warehouse)
    profiles = wh.create_table(
        "crm.profiles",
        "customer BIGINT, name STRING, city STRING, last_order BIGINT, last_page STRING",
        primary_key=["customer"],
        buckets=2,
    )

    # Three systems deliver what they know, each into a table of its own.
    wh.create_table("crm.signups", "customer BIGINT, name STRING, city STRING").append(
        [{"customer": 1, "name": "ann", "city": "Oslo"}, {"customer": 2, "name": "bob", "city": "Rome"}]
    )
    wh.create_table("shop.orders", "order_id BIGINT, customer BIGINT").append(
        [{"order_id": 7, "customer": 1}, {"order_id": 8, "customer": 1}, {"order_id": 9, "customer": 3}]
    )
    visits = wh.create_table("web.visits", "customer BIGINT, page STRING")
    visits.append([{"customer": 2, "page": "/"}])

    def start(source: str, *columns: str) -> Any:
        """A job that keeps some columns of the profile; rows of the others' columns stay as they are."""
        stream = spark.readStream.format("streamhouse").option("warehouse", warehouse).load(source)
        return (
            stream.selectExpr("customer", *columns)
            .writeStream.format("streamhouse")
            .option("warehouse", warehouse)
            .option("partialUpdate", "true")  # the key, and the columns that the frame has
            .option("checkpointLocation", str(Path(folder, "checkpoints", source)))
            .trigger(availableNow=True)
            .start("crm.profiles")
        )

    jobs = [
        start("crm.signups", "name", "city"),
        start("shop.orders", "order_id AS last_order"),
        start("web.visits", "page AS last_page"),
    ]
    for job in jobs:  # they ran at the same time, and each batch of each is stored once
        job.awaitTermination()

    visits.append([{"customer": 1, "page": "/sale"}, {"customer": 2, "page": "/help"}])
    start("web.visits", "page AS last_page").awaitTermination()

    for row in sorted(profiles.to_arrow().to_pylist(), key=lambda row: row["customer"]):
        print(row["customer"], row["name"], row["city"], row["last_order"], row["last_page"])
    # From Python the same: only the columns that are named change.
    profiles.upsert([{"customer": 3, "name": "eve"}], columns=["name"])
    print("then:", profiles.lookup_one(3, columns=["name", "last_order"]))
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
