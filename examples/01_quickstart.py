# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[spark,iceberg]"]
# ///
"""A table with two tiers: write, read, tier, and read both tiers.

Run it with `uv run examples/01_quickstart.py [WAREHOUSE]`. It needs Java 17 or newer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import streamhouse_spark as sh


def main(warehouse: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this Python
    spark = (
        SparkSession.builder.master("local[2]").appName("quickstart").config("spark.log.level", "ERROR").getOrCreate()
    )

    orders = sh.Warehouse(warehouse).create_table(
        "sales.orders",
        "order_id BIGINT NOT NULL, customer STRING, amount DOUBLE",
        buckets=4,
        properties={"bucket.key": "order_id"},
        if_not_exists=True,
    )

    # From Python, without Spark: the rows are durable, and visible to everybody, when this returns.
    print("appended", orders.append([{"order_id": 1, "customer": "ann", "amount": 9.5}]))

    # From Spark: columns match by name.
    frame = spark.createDataFrame([(2, "bob", 20.0), (3, "eve", 30.5)], "order_id long, customer string, amount double")
    frame.write.format("streamhouse").option("warehouse", warehouse).mode("append").save("sales.orders")

    # One round of tiering: what was written before is in the Iceberg table now.
    for report in sh.tier(spark, warehouse).values():
        print(f"tiered {report.rows} rows of {report.table}")

    orders.append([{"order_id": 4, "customer": "dan", "amount": 40.0}])  # in the hot log only

    read = spark.read.format("streamhouse").option("warehouse", warehouse)
    print("both tiers:", sorted(row.order_id for row in read.load("sales.orders").collect()))
    print("the lake:  ", sorted(row.order_id for row in read.load("sales.orders$lake").collect()))
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder, "warehouse")))
