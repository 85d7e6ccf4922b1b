# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[spark]"]
# ///
"""Which channel first brought the customer of an order? A stream of orders, joined with a table by lookups.

Run it with `uv run examples/07_first_touch_attribution.py`. It needs Java 17 or newer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import streamhouse_spark as sh


def main(folder: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this Python
    spark = (
        SparkSession.builder.master("local[2]").appName("first touch").config("spark.log.level", "ERROR").getOrCreate()
    )
    warehouse = str(Path(folder, "warehouse"))
    wh = sh.Warehouse(warehouse)

    # The first row of a key stays, whatever comes later: nobody has to ask whether a customer is new.
    touches = wh.create_table(
        "web.first_touch",
        "customer BIGINT, channel STRING, page STRING",
        primary_key=["customer"],
        buckets=2,
        properties={"table.merge-engine": "first_row"},
    )
    touches.upsert(
        [{"customer": 1, "channel": "search", "page": "/"}, {"customer": 2, "channel": "mail", "page": "/sale"}]
    )
    touches.upsert([{"customer": 1, "channel": "mail", "page": "/sale"}])  # changes nothing
    print("customer 1 came by", touches.lookup_one(1)["channel"])

    orders = wh.create_table("sales.orders", "id BIGINT, customer BIGINT, amount DOUBLE")
    wh.create_table("sales.attributed", "id BIGINT, amount DOUBLE, channel STRING")
    orders.append([{"id": 10, "customer": 1, "amount": 5.0}, {"id": 11, "customer": 2, "amount": 7.0}])

    def attribute() -> None:
        """The streaming job: each task looks up the customers of its orders on its own host, without a shuffle."""
        stream = spark.readStream.format("streamhouse").option("warehouse", warehouse).load("sales.orders")
        joined = sh.lookup_join(stream, "web.first_touch", on=["customer"], columns=["channel"], warehouse=warehouse)
        query = (
            joined.select("id", "amount", "channel")
            .writeStream.format("streamhouse")
            .option("warehouse", warehouse)
            .option("checkpointLocation", str(Path(folder, "checkpoint")))
            .trigger(availableNow=True)  # what is there now; without a trigger it would go on
            .start("sales.attributed")
        )
        query.awaitTermination()

    attribute()
    touches.upsert([{"customer": 3, "channel": "search", "page": "/help"}])
    orders.append([{"id": 12, "customer": 3, "amount": 3.0}, {"id": 13, "customer": 4, "amount": 1.0}])  # 4 is unknown
    attribute()  # goes on where the checkpoint says, and sees customer 3

    attributed = wh.table("sales.attributed").to_arrow()
    totals = attributed.group_by("channel").aggregate([("amount", "sum")]).to_pylist()
    for channel, amount in sorted((row["channel"] or "unknown", row["amount_sum"]) for row in totals):
        print(f"{channel}: {amount:.2f}")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
