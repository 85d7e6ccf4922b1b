# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[spark,iceberg]", "pyspark>=4.2"]
# ///
"""A shop: alerts on rapid clicks, first-touch attribution, a dashboard whose orders are corrected, and the long run.

Run it with `uv run examples/ecommerce/shop.py`. It needs Java 17 or newer, and PySpark 4.2 for the alerts.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import streamhouse_spark as sh

CLICKS = "visitor BIGINT NOT NULL, page STRING, channel STRING, gap_ms BIGINT"
REVENUE = """
    SELECT t.channel, count(*) AS orders, sum(o.amount) AS revenue
    FROM shop.orders o JOIN shop.first_touch t ON o.visitor = t.visitor GROUP BY t.channel
"""
REAL_TIME = "spark.sql.streaming.realTimeMode"
ALERTS = 20


def wait_for(happened: Callable[[], object]) -> None:
    while not happened():
        time.sleep(0.005)


def alert(spark: SparkSession, clicks: sh.Table, alerts: sh.Table, checkpoint: str) -> None:
    """Rapid clicks are alerts some milliseconds after they came. The time to each is measured."""
    spark.conf.set(f"{REAL_TIME}.allowlistCheck", "false")  # Spark's list of sinks has no tables of others
    spark.conf.set(f"{REAL_TIME}.asyncProgressTrackingByDefault.enabled", "false")
    rapid = spark.readStream.table("streamhouse.shop.clicks").where("gap_ms < 50").select("visitor", "page")
    stream = rapid.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    query = stream.trigger(realTime="5 minutes").toTable("streamhouse.shop.alerts")
    found = []
    for number in range(1 + ALERTS):
        began, known = time.monotonic(), alerts.refresh().num_rows
        clicks.append([{"visitor": 666, "page": "/cart", "channel": "bot", "gap_ms": 3}])
        wait_for(lambda known=known: alerts.refresh().num_rows > known)
        if number:  # the first one waited for the query to start
            found.append((time.monotonic() - began) * 1000)
        time.sleep(0.2)
    query.stop()
    print(f"an alert took {statistics.median(found):.0f} ms in the median of {len(found)}, at most {max(found):.0f} ms")


def attribute(spark: SparkSession, checkpoint: str) -> None:
    """The first click of a visitor says which channel brought them. A table that keeps the first row of a key."""
    touches = spark.readStream.table("streamhouse.shop.clicks").select("visitor", "channel")
    stream = touches.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    stream.toTable("streamhouse.shop.first_touch").awaitTermination()


def show(title: str, revenue: sh.Table) -> None:
    print(title, {row["channel"]: (row["orders"], row["revenue"]) for row in revenue.to_arrow().to_pylist()})


def main(folder: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this Python
    warehouse = str(Path(folder, "warehouse"))
    builder = SparkSession.builder.master("local[2]").appName("shop").config("spark.log.level", "FATAL")
    builder = builder.config("spark.sql.shuffle.partitions", "1").config("spark.ui.showConsoleProgress", "false")
    spark = sh.configure(builder, warehouse=warehouse).getOrCreate()
    wh = sh.Warehouse(warehouse)
    clicks = wh.create_table("shop.clicks", CLICKS)
    alerts = wh.create_table("shop.alerts", "visitor BIGINT, page STRING")
    first = {"table.merge-engine": "first_row"}
    wh.create_table(
        "shop.first_touch", "visitor BIGINT, channel STRING NOT NULL", primary_key=["visitor"], properties=first
    )
    orders = wh.create_table("shop.orders", "id BIGINT, visitor BIGINT, amount BIGINT", primary_key=["id"])

    # Clicks come in: visitors 1 and 2 by mail and search; 1 returns by an advertisement.
    for visitor, channel in ((1, "mail"), (2, "search"), (1, "ads")):
        clicks.append([{"visitor": visitor, "page": "/", "channel": channel, "gap_ms": 900}])
    attribute(spark, str(Path(folder, "touches")))
    alert(spark, clicks, alerts, str(Path(folder, "alerts")))

    # The dashboard is a query that is kept. A corrected or cancelled order changes its groups alone.
    orders.upsert([{"id": 10, "visitor": 1, "amount": 30}, {"id": 11, "visitor": 2, "amount": 50}])
    view = sh.materialize(spark, "shop.revenue", REVENUE, freshness="1s")
    revenue = wh.table("shop.revenue")
    show("revenue by first touch:", revenue)
    orders.upsert([{"id": 10, "visitor": 1, "amount": 25}, {"id": 12, "visitor": 1, "amount": 5}])
    orders.delete([11])
    view.refresh()
    show("after corrections:", revenue)

    # The long run is read from the lake, by any engine; tiering runs beside all this as `streamhouse tier`.
    sh.tier(spark, warehouse)
    pages = spark.sql("SELECT page, count(*) AS clicks FROM streamhouse.shop.`clicks$lake` GROUP BY page ORDER BY page")
    print("clicks in the lake:", {row.page: row.clicks for row in pages.collect()})
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
