# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[spark]"]
# ///
"""Change events of a PostgreSQL table, as Debezium writes them, keep a table equal to it.

Run it with `uv run examples/11_debezium_orders.py`. It needs Java 17 or newer. With Kafka, `events` would be
`spark.readStream.format("kafka")...load()`; here they are lines of files.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import streamhouse_spark as sh

DDL = "order_id INT, customer STRING, amount DECIMAL(10, 2), placed_at TIMESTAMP_NTZ, ship_on DATE"


def event(offset: int, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    """A record of the topic `shop.public.orders`, by the JSON converter with schemas; the schema is left short."""
    source = {"version": "3.0.0.Final", "connector": "postgresql", "db": "shop", "schema": "public", "table": "orders"}
    payload = {"before": before, "after": after, "source": {**source, "lsn": 24023128 + offset}, "op": op, "ts_ms": 1}
    value = {"schema": {"type": "struct", "name": "shop.public.orders.Envelope"}, "payload": payload}
    return json.dumps({"offset": offset, "value": json.dumps(value)})


def main(folder: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this Python
    spark = SparkSession.builder.master("local[2]").appName("cdc").config("spark.log.level", "ERROR").getOrCreate()
    warehouse, topic = str(Path(folder, "warehouse")), Path(folder, "topic")
    topic.mkdir()
    orders = sh.Warehouse(warehouse).create_table("shop.orders", DDL, primary_key=["order_id"], buckets=2)

    def run() -> None:
        events = spark.readStream.schema("offset BIGINT, value STRING").json(str(topic))
        sh.cdc(
            events,
            "shop.orders",
            checkpoint=str(Path(folder, "checkpoint")),
            warehouse=warehouse,
            times="micros",  # PostgreSQL's timestamps are io.debezium.time.MicroTimestamp
            decimals="base64",  # decimal.handling.mode=precise, the connector's default
            dead_letter="shop.unread",
            trigger={"availableNow": True},
        ).awaitTermination()

    def show(title: str) -> None:
        print(title)
        for row in orders.to_arrow().sort_by("order_id").to_pylist():
            print(" ", row["order_id"], row["customer"], row["amount"], row["placed_at"], row["ship_on"])

    # The snapshot, and what happened since. Amounts are 1234.50 and -0.07 as unscaled bytes.
    ann = {"order_id": 1, "customer": "ann", "amount": "AeI6", "placed_at": 1767225600000000, "ship_on": 20455}
    bob = {"order_id": 2, "customer": "bob", "amount": "+Q==", "placed_at": 1767229200000000, "ship_on": None}
    lines = [event(0, "r", None, ann), event(1, "r", None, bob), event(2, "u", bob, {**bob, "ship_on": 20456})]
    Path(topic, "1.json").write_text("\n".join(lines))
    run()
    show("after the snapshot and an update:")

    # With REPLICA IDENTITY DEFAULT a deletion has the key alone. The last event was cut on its way.
    gone = {"order_id": 1, "customer": None, "amount": None, "placed_at": None, "ship_on": None}
    lines = [event(3, "d", gone, None), json.dumps({"offset": 4, "value": '{"payload": {"op": "c", "after": {"or'})]
    Path(topic, "2.json").write_text("\n".join(lines))
    run()
    show("after a deletion:")
    for letter in sh.Warehouse(warehouse).table("shop.unread").to_arrow().to_pylist():
        print(f"  unread at {letter['position']}: {letter['reason']}")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
