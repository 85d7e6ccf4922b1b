# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[spark]"]
# ///
"""Changes of a database become a table, and its changes become sums that stay right under updates and deletes.

Run it with `uv run examples/09_cdc_into_sums.py`. It needs Java 17 or newer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import streamhouse_spark as sh

ROW = "STRUCT<id: BIGINT, customer: STRING, amount: BIGINT>"


def main(folder: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this Python
    spark = SparkSession.builder.master("local[2]").appName("cdc").config("spark.log.level", "ERROR").getOrCreate()
    warehouse = str(Path(folder, "warehouse"))
    wh = sh.Warehouse(warehouse)

    # What a tool like Debezium delivers: an operation (c, u, d), the row before and the row after.
    changes = wh.create_table("cdc.orders", f"op STRING, before {ROW}, after {ROW}")
    orders = wh.create_table("shop.orders", "id BIGINT, customer STRING, amount BIGINT", primary_key=["id"], buckets=2)
    totals = wh.create_table(
        "shop.totals",
        "customer STRING, orders BIGINT, amount BIGINT",
        primary_key=["customer"],
        properties={
            "table.merge-engine": "aggregation",
            "fields.orders.agg": "sum",
            "fields.amount.agg": "sum",
        },
    )

    def stream(name: str) -> DataFrame:
        return spark.readStream.format("streamhouse").option("warehouse", warehouse).load(name)

    def write(frame: DataFrame, name: str, **options: str) -> None:
        writer = frame.writeStream.format("streamhouse").option("warehouse", warehouse).options(**options)
        writer = writer.option("checkpointLocation", str(Path(folder, "checkpoints", name)))
        writer.trigger(availableNow=True).start(name).awaitTermination()

    def run() -> None:
        # Job 1: `op` says what each row does to its key. A deletion has no row after, and needs the key only.
        rows = stream("cdc.orders").select("op", f.coalesce("after", "before").alias("row")).select("op", "row.*")
        write(rows, "shop.orders", rowKindColumn="op")

        # Job 2: rows that come count, rows that go count the other way. An update is both: the row before goes.
        sign = f.when(f.col("_change_type").isin("insert", "update_after"), 1).otherwise(-1).cast("long")
        signed = stream("shop.orders$changelog").select(
            "customer", sign.alias("orders"), (sign * f.col("amount")).alias("amount")
        )
        write(signed, "shop.totals")

    def show(title: str) -> None:
        rows = sorted(totals.to_arrow().to_pylist(), key=lambda row: row["customer"])
        print(title, {row["customer"]: (row["orders"], row["amount"]) for row in rows})

    first = {"id": 1, "customer": "ann", "amount": 10}
    second = {"id": 2, "customer": "bob", "amount": 20}
    changes.append([{"op": "c", "after": first}, {"op": "c", "after": second}])
    run()
    show("two orders:")

    moved = {**first, "customer": "bob", "amount": 15}  # order 1 was bob's, and it was 15
    changes.append([{"op": "u", "before": first, "after": moved}, {"op": "d", "before": second}])
    run()
    show("an update and a deletion:")
    print("orders:", orders.to_arrow().to_pylist())
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
