# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[spark]"]
# ///
"""Bronze, silver and gold: events as they came, the newest state of each order, revenue by region. And how old each is.

Run it with `uv run examples/medallion/medallion.py [SECONDS]`. It needs Java 17 or newer.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

import streamhouse_spark as sh

ORDER = "order_id BIGINT NOT NULL, region STRING NOT NULL, amount BIGINT NOT NULL"
REVENUE = "SELECT region, count(*) AS orders, sum(amount) AS revenue FROM silver.orders GROUP BY region"
PROBES = "probes"
"""The region of orders that measure: one at a time, so that its count in gold tells when it arrived."""


def events(bronze: sh.Table, ends: threading.Event) -> None:
    """Some hundred orders a second. Each comes twice, as from a queue that delivers at least once."""
    chance = random.Random(0)
    number = 0
    while not ends.wait(0.1):
        new = [{"order_id": number + i, "region": chance.choice("NESW"), "amount": 10} for i in range(20)]
        bronze.append(new + new)
        number += len(new)


def measure(bronze: sh.Table, silver: sh.Table, gold: sh.Table, seconds: float) -> dict[str, list[float]]:
    """Send an order, and look at each layer until it is there. Returns the milliseconds from before the append."""
    taken: dict[str, list[float]] = {"bronze": [], "silver": [], "gold": []}
    ends = time.monotonic() + seconds
    sent = 0
    while time.monotonic() < ends or not sent:
        sent += 1
        order = {"order_id": -sent, "region": PROBES, "amount": 1}
        began = time.monotonic()
        bronze.append([order, order])  # visible to everybody when this returns
        taken["bronze"].append((time.monotonic() - began) * 1000)
        while silver.lookup_one(-sent) is None:
            time.sleep(0.01)
        taken["silver"].append((time.monotonic() - began) * 1000)
        while (found := gold.lookup_one(PROBES)) is None or found["orders"] < sent:
            time.sleep(0.01)
        taken["gold"].append((time.monotonic() - began) * 1000)
    return taken


def main(folder: str, seconds: float) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this Python
    warehouse = str(Path(folder, "warehouse"))
    builder = SparkSession.builder.master("local[2]").appName("medallion").config("spark.log.level", "ERROR")
    builder = builder.config("spark.sql.shuffle.partitions", "1").config("spark.ui.showConsoleProgress", "false")
    spark = sh.configure(builder, warehouse=warehouse).getOrCreate()
    wh = sh.Warehouse(warehouse)

    # Bronze is a log: rows are added, and nothing else. Silver has a key: an order that comes twice is there once.
    bronze = wh.create_table("bronze.orders", ORDER)
    silver = wh.create_table("silver.orders", ORDER, primary_key=["order_id"])
    stream = spark.readStream.table("streamhouse.bronze.orders").writeStream.outputMode("update")
    stream = stream.option("checkpointLocation", str(Path(folder, "silver")))
    query = stream.toTable("streamhouse.silver.orders")  # the next batch begins when one has ended

    # Gold is a query that is kept: a refresh reads what changed in silver, and not the whole of it.
    sh.materialize(spark, "gold.revenue", REVENUE, freshness="1s")
    gold = wh.table("gold.revenue")
    service = sh.RefreshService(spark, warehouse)
    refreshing = threading.Thread(target=service.run)
    refreshing.start()

    measure(bronze, silver, gold, 0)  # the first order pays for what starts
    ends = threading.Event()
    sending = threading.Thread(target=events, args=(bronze, ends))
    sending.start()
    wh.table("silver.orders").delete([-1])
    while gold.lookup_one(PROBES) is not None:  # a deletion reaches gold too
        time.sleep(0.01)
    taken = measure(bronze, silver, gold, seconds)
    ends.set()
    sending.join()
    for layer, found in taken.items():
        print(f"{layer}: {statistics.median(found):.0f} ms in the median of {len(found)}, at most {max(found):.0f} ms")

    query.processAllAvailable()
    query.stop()
    service.stop()
    refreshing.join()
    sh.materialize(spark, "gold.revenue", REVENUE, freshness="1s").refresh()
    rows = silver.to_arrow()
    revenue = {row["region"]: (row["orders"], row["revenue"]) for row in gold.to_arrow().to_pylist()}
    print(f"{bronze.to_arrow().num_rows} events of {rows.num_rows} orders")
    for region in sorted(set(rows["region"].to_pylist())):
        amounts = [row["amount"] for row in rows.to_pylist() if row["region"] == region]
        assert revenue[region] == (len(amounts), sum(amounts))
    print("gold has the revenue of silver's orders")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch, float(sys.argv[1]) if len(sys.argv) > 1 else 30.0)
