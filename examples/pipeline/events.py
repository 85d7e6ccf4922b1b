# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[spark,iceberg]", "pyspark[pipelines]>=4.2,<4.4"]
# ///
"""Events for the pipeline beside this file, and what it made of them.

Run `uv run examples/pipeline/events.py append`, then the pipeline (4.2 or newer for its AUTO CDC), then `… show`:

    spark-pipelines run --jars "$(streamhouse jar)" --spec examples/pipeline/spark-pipeline.yml

and once more, with more events. Without Spark, `append` and `show` take no time.
"""

from __future__ import annotations

import sys

import streamhouse_spark as sh

EVENTS = (
    [(1, "ann", 10.0, "new", 1), (2, "bob", 20.0, "new", 2), (1, "ann", 10.0, "new", 1)],
    [(1, "ann", 12.5, "change", 4), (1, "ann", 11.0, "change", 3), (2, "bob", 20.0, "cancel", 5)],
)
"""The first batch has an order twice. The second changes one, out of order, and cancels the other."""
COLUMNS = "order_id BIGINT, customer STRING, amount DOUBLE, op STRING, seq BIGINT"


def main(command: str, warehouse: str) -> None:
    wh = sh.Warehouse(warehouse)
    if command == "append":
        events = wh.create_table("shop.events", COLUMNS, if_not_exists=True)
        batch = EVENTS[min(events.state.version - 1, 1)]
        names = [column.split()[0] for column in COLUMNS.split(", ")]
        print("appended", events.append([dict(zip(names, event, strict=True)) for event in batch]))
    else:
        for name in ("bronze", "silver", "gold"):
            rows = wh.table(f"shop.{name}").to_arrow()
            shown = rows.select([column for column in rows.column_names if not column.startswith("__")]).to_pylist()
            print(f"{name}:", sorted(tuple(row.values()) for row in shown))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "/tmp/streamhouse-pipeline/warehouse")
