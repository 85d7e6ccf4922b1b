"""Jobs of drivers on a cluster, to be started as programs: ``jobs.py <name> <JSON>``. Each prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import streamhouse_spark as sh

ROWS = 20_000
RANGES = 8


def session(given: dict[str, Any]) -> Any:
    builder = (
        SparkSession.builder.master(given["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.task.maxFailures", "50")
    )
    for key, value in given.get("conf", {}).items():
        builder = builder.config(key, value)
    return sh.configure(builder, warehouse=given["warehouse"], settings=given["settings"]).getOrCreate()


def life(given: dict[str, Any]) -> dict[str, Any]:
    """Do what users do with tables: write and change rows, tier them, join by key, and read by both readers."""
    spark = session(given)
    sql = spark.sql
    sql("CREATE DATABASE IF NOT EXISTS streamhouse.shop")
    columns = "id BIGINT, customer BIGINT, amount DOUBLE"
    sql(f"CREATE TABLE streamhouse.shop.orders ({columns}) PARTITIONED BY (bucket(4, id))")
    sql("CREATE TABLE streamhouse.shop.customers (id BIGINT NOT NULL, name STRING, visits BIGINT, PRIMARY KEY (id)) "
        "TBLPROPERTIES ('bucket.num' = '4')")  # fmt: skip
    orders = spark.range(0, ROWS, 1, RANGES).selectExpr("id", "id % 100 AS customer", "id * 0.5D AS amount")
    orders.writeTo("streamhouse.shop.orders").append()
    customers = spark.range(0, 100, 1, 4).selectExpr("id", "concat('c', id) AS name", "0L AS visits")
    customers.writeTo("streamhouse.shop.customers").append()
    sql("MERGE INTO streamhouse.shop.customers t USING "
        "(SELECT customer, count(*) AS n FROM streamhouse.shop.orders GROUP BY customer) s ON t.id = s.customer "
        "WHEN MATCHED THEN UPDATE SET visits = s.n")  # fmt: skip
    sql("UPDATE streamhouse.shop.customers SET name = upper(name) WHERE id < 10")
    sql("DELETE FROM streamhouse.shop.customers WHERE id >= 90")
    reports = sh.tier(spark, given["warehouse"], settings=given["settings"])
    orders.selectExpr(f"id + {ROWS} AS id", "customer", "amount").writeTo("streamhouse.shop.orders").append()
    read = spark.read.format("streamhouse").option("warehouse", given["warehouse"]).options(**given["settings"])
    joined = sh.lookup_join(
        read.load("shop.orders"), "shop.customers", on={"customer": "id"}, columns=["name", "visits"],
        warehouse=given["warehouse"], settings=given["settings"],
    )  # fmt: skip
    return {
        "orders": list(sql("SELECT count(*), sum(id) FROM streamhouse.shop.orders").first()),
        "lake": list(sql("SELECT count(*), sum(id) FROM streamhouse.shop.`orders$lake` WHERE id >= 0").first()),
        "customers": list(sql("SELECT count(*), sum(visits), sum(CAST(name = upper(name) AS INT)) "
                              "FROM streamhouse.shop.customers").first()),
        "joined": list(joined.selectExpr("count(name)", "count(*)", "sum(visits)").first()),
        "tiered": sorted(reports),
        "executors": len({row[0] for row in spark.range(0, 64, 1, 16).selectExpr("id").rdd.map(_host_of).collect()}),
    }  # fmt: skip


def _host_of(_row: Any) -> tuple[int]:
    """Tell the disk that a task sees: each host has one of its own."""
    return (Path(os.environ["DISK"]).stat().st_dev,)


def batches(given: dict[str, Any]) -> dict[str, Any]:
    """Write numbered batches, each with its transaction, and tier after every second. What was stored is not again."""
    spark = session(given)
    for number in range(given["batches"]):
        start = number * ROWS
        frame = spark.range(start, start + ROWS, 1, RANGES).selectExpr("id", "repeat('x', 20) AS text")
        (
            frame.write.format("streamhouse")
            .option("warehouse", given["warehouse"])
            .options(**given["settings"], txnAppId="job", txnVersion=str(number))
            .mode("append")
            .save(given["table"])
        )
        if number % 2:
            sh.tier(spark, given["warehouse"], [given["table"]], settings=given["settings"])
    return {"batches": given["batches"]}


def copy(given: dict[str, Any]) -> dict[str, Any]:
    """Copy a table into another by a stream, with its checkpoint on the store."""
    spark = session(given)
    both = {"warehouse": given["warehouse"], **given["settings"]}
    stream = spark.readStream.format("streamhouse").options(**both, maxOffsetsPerTrigger="2000").load(given["source"])
    query = (
        stream.writeStream.format("streamhouse")
        .options(**both, checkpointLocation=given["checkpoint"])
        .trigger(availableNow=True)
        .start(given["table"])
    )
    query.awaitTermination()
    return {}


JOBS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"life": life, "batches": batches, "copy": copy}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)  # noqa: T201
