# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[spark,iceberg]"]
# ///
"""The same table in SQL: made, filled, tiered, joined without a shuffle, travelled in time, streamed and changed.

Run it with `uv run examples/06_sql_catalog.py [WAREHOUSE]`. It needs Java 17 or newer.
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
    builder = SparkSession.builder.master("local[2]").appName("sql").config("spark.log.level", "ERROR")
    spark = sh.configure(builder, warehouse=warehouse).getOrCreate()
    spark.sql("USE streamhouse")
    spark.sql("CREATE DATABASE IF NOT EXISTS shop")
    spark.sql("USE shop")

    # Two tables with the same buckets: a join on the key moves no row between tasks.
    for name, columns in (
        ("orders", "id BIGINT, customer BIGINT, amount DECIMAL(12,2)"),
        ("customers", "id BIGINT, name STRING"),
    ):
        key = "customer" if name == "orders" else "id"
        spark.sql(f"CREATE TABLE {name} ({columns}) PARTITIONED BY (bucket(4, {key}))")
    spark.sql("INSERT INTO customers VALUES (1, 'ann'), (2, 'bob')")
    spark.sql("INSERT INTO orders VALUES (10, 1, 9.50), (11, 2, 20.00)")
    sh.tier(spark, warehouse)
    spark.sql("INSERT INTO orders VALUES (12, 1, 30.50)")  # in the hot log only; every query sees it

    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")  # these tables are small: do not copy them instead
    total = spark.sql(
        "SELECT c.name, sum(o.amount) AS total FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.name"
    )
    total.orderBy("name").show()
    plan = spark.sql("SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.id")
    print("shuffles in the join:", "Exchange" in plan._jdf.queryExecution().executedPlan().toString())  # noqa: SLF001

    # What was tiered, what is hot, and how the table was before.
    spark.sql("SELECT count(*) AS rows, (SELECT count(*) FROM `orders$lake`) AS in_the_lake FROM orders").show()
    spark.sql("SELECT commit, actions FROM `orders$commits` ORDER BY commit").show(truncate=60)
    print("at commit 2:", spark.sql("SELECT * FROM orders VERSION AS OF 2").count(), "rows")

    # A stream into another table, and a column more.
    spark.sql("CREATE TABLE large (id BIGINT, amount DECIMAL(12,2))")
    large = spark.readStream.table("orders").where("amount > 10").select("id", "amount")
    writer = large.writeStream.option("checkpointLocation", f"{warehouse}-checkpoint").trigger(availableNow=True)
    writer.toTable("large").awaitTermination()
    spark.sql("ALTER TABLE large ADD COLUMN note STRING COMMENT 'why'")
    spark.sql("INSERT INTO large BY NAME SELECT 13L AS id, 'by hand' AS note")
    print("large orders:", [tuple(row) for row in spark.sql("SELECT id, note FROM large ORDER BY id").collect()])

    spark.sql("CALL streamhouse.system.table_status('shop.orders')").select("table", "rows", "lag_rows").show()
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else str(Path(folder, "warehouse")))
