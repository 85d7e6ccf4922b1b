"""Tables with rows of all ages behind a server, and questions about them in SQL that every engine speaks.

The right answers are DuckDB's, over what Python reads of the same state.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import pyarrow as pa

from doc_pages import PAGES, blocks
from kit.tables import tier
from streamhouse_spark import Table, Warehouse

ORDERS = "order_id BIGINT NOT NULL, customer BIGINT, region STRING, amount DOUBLE, placed DATE"
PEOPLE = "id BIGINT NOT NULL, name STRING, balance DOUBLE"
ANSWERS_MIN, ROUNDS_MIN = 8, 4
NAMES = ("orders", "people", "young", "evolved")
"""Tables of the database `sales` that engines read."""

QUESTIONS = [
    "SELECT count(*), sum(order_id), min(order_id), max(order_id), sum(amount) FROM sales.orders",
    "SELECT region, count(*), sum(amount), max(placed) FROM sales.orders GROUP BY region",
    "SELECT count(*), sum(order_id) FROM sales.orders WHERE region = 'r1' AND order_id >= 300",
    "SELECT order_id, customer, amount FROM sales.orders WHERE order_id IN (3, 40, 555, 640, 3000)",
    "SELECT order_id FROM sales.orders WHERE placed = DATE '2026-01-03' AND region <> 'r2'",
    "SELECT count(*) FROM sales.orders WHERE customer IS NULL OR amount > 120",
    "SELECT count(*), sum(id), min(id), max(id), sum(balance), count(DISTINCT name) FROM sales.people",
    "SELECT id, name, balance FROM sales.people WHERE id BETWEEN 45 AND 65",
    "SELECT count(*), sum(balance) FROM sales.people WHERE name LIKE 'c%'",
    """SELECT p.name, count(*), sum(o.amount) FROM sales.orders o JOIN sales.people p ON o.customer = p.id
    WHERE p.id < 60 AND o.region = 'r0' GROUP BY p.name""",
    "SELECT count(*), sum(a.order_id) FROM sales.orders a JOIN sales.orders b ON a.order_id = b.order_id",
    "SELECT count(*) FROM sales.orders o LEFT JOIN sales.people p ON o.customer = p.id WHERE p.id IS NULL",
    """SELECT count(*), sum(id) FROM sales.people
    WHERE id NOT IN (SELECT customer FROM sales.orders WHERE customer IS NOT NULL)""",
    "SELECT order_id, region FROM sales.orders ORDER BY order_id DESC LIMIT 5",
    "SELECT count(*), sum(id) FROM sales.young",
    "SELECT id, label, extra FROM sales.evolved",
    "SELECT count(*) FROM sales.evolved WHERE extra IS NULL AND label <> 'b'",
]


def make_tables(warehouse: Warehouse) -> None:
    """Make the tables: with cold and hot rows, deleted and changed ones of both; one that no round has seen; one whose
    columns and partitions changed; and one beside them that no Iceberg catalog shows.
    """
    orders = warehouse.create_table(
        "sales.orders", ORDERS, partition_by=["region"], buckets=2, properties={"bucket.key": "order_id"}
    )
    for begin in (0, 400):
        orders.append(order_rows(begin, begin + 200))
        tier(orders)
    orders.delete(where=[("order_id", "<", 10)])
    tier(orders)
    orders.append(order_rows(600, 650))
    orders.delete(where=[("order_id", "in", [40, 41, 555, 640])])
    people = warehouse.create_table("sales.people", PEOPLE, primary_key=["id"], buckets=2)
    people.upsert(people_rows(0, 300, "a"))
    tier(people)
    people.upsert(people_rows(0, 20, "b"))
    people.delete([{"id": i} for i in range(290, 300)])
    tier(people)
    people.upsert(people_rows(50, 90, "c"))
    people.upsert(people_rows(300, 320, "c"))
    people.delete([{"id": i} for i in (60, 100, 101, 310)])
    warehouse.create_table("sales.young", "id BIGINT").append([{"id": i} for i in range(25)])
    evolved = warehouse.create_table("sales.evolved", "id BIGINT, name STRING, day DATE", partition_by=["day"])
    day = dt.date(2026, 1, 1)
    evolved.append([{"id": i, "name": "a", "day": day} for i in range(5)])
    tier(evolved)
    evolved.rename_column("name", "label")
    evolved.add_columns("extra INT")
    evolved.append([{"id": i, "label": "b", "day": day, "extra": i} for i in range(5, 9)])
    tier(evolved)
    evolved.set_partitioning(["label"])
    evolved.append([{"id": i, "label": "c", "day": day, "extra": None} for i in range(9, 12)])
    tier(evolved)
    evolved.append([{"id": i, "label": "b", "day": None, "extra": None} for i in range(12, 15)])
    of_paimon = {"table.datalake.format": "paimon"}
    warehouse.create_table("sales.of_paimon", "id BIGINT", properties=of_paimon).append([{"id": 1}])


def order_rows(begin: int, end: int) -> pa.Table:
    ids = range(begin, end)
    return pa.table(
        {
            "order_id": pa.array(ids, pa.int64()),
            "customer": pa.array([None if i % 50 == 7 else i % 330 for i in ids], pa.int64()),
            "region": [f"r{i % 3}" for i in ids],
            "amount": [i / 4 for i in ids],
            "placed": [dt.date(2026, 1, 1 + i % 5) for i in ids],
        }
    )


def people_rows(begin: int, end: int, letter: str) -> pa.Table:
    ids = range(begin, end)
    return pa.table({"id": ids, "name": [f"{letter}{i}" for i in ids], "balance": [i / 2 for i in ids]})


def right_answer(warehouse: Warehouse, sql: str, of: Callable[[Table], pa.Table] = Table.to_arrow) -> list[Any]:
    """The answer over what ``of`` reads of each table that the question names, in an order of its own."""
    with duckdb.connect() as own:
        own.execute("CREATE SCHEMA sales")
        for name in dict.fromkeys(re.findall(r"sales\.(\w+)", sql)):
            rows = of(warehouse.table(f"sales.{name}"))  # noqa: F841 - DuckDB finds it by its name
            own.execute(f"CREATE TABLE sales.{name} AS SELECT * FROM rows")
        return in_order(own.execute(sql).fetchall())


def in_order(rows: list[Any]) -> list[Any]:
    """The rows, dates as text, sorted; engines give them in any order."""
    plain = [tuple(v.isoformat() if isinstance(v, dt.date) else v for v in row) for row in rows]
    return sorted(plain, key=lambda row: [(v is None, str(v)) for v in row])


def of_the_lake(table: Table) -> pa.Table:
    return table.lake.to_arrow()


def block_with(page: str, language: str, begin: str) -> str:
    """The block of a page that has a line which begins so."""
    (found,) = [
        text for text in blocks(PAGES[page], language) if re.search(rf"^{re.escape(begin)}", text, re.MULTILINE)
    ]
    return found


def every_answer_is_one_state(
    warehouse: Warehouse, ask: Callable[[], Callable[[str], list[Any]]], *, readers: int
) -> None:
    """Ask while batches of ten rows stream in and rounds run: each answer has all rows of the batches up to some one,
    which is no older than the last one before the question. ``ask`` opens a client.
    """
    table = warehouse.create_table("sales.streamed", "id BIGINT, n BIGINT", buckets=3)
    table.append(pa.table({"id": range(10), "n": [0] * 10}))
    tier(table)
    stop, written, rounds = threading.Event(), [1], [0]

    def append() -> None:
        own = Warehouse(warehouse.url, warehouse.settings).table("sales.streamed")
        while not stop.is_set():
            own.append(pa.table({"id": range(10), "n": [written[0]] * 10}))
            written[0] += 1
            time.sleep(0.02)

    def tier_on() -> None:
        own = Warehouse(warehouse.url, warehouse.settings).table("sales.streamed")
        while not stop.is_set():
            tier(own)
            rounds[0] += 1
            time.sleep(0.5)

    def read() -> list[int]:
        found, query = [], ask()
        while len(found) < ANSWERS_MIN or rounds[0] < ROUNDS_MIN:
            before = written[0]
            ((count, most, ids),) = query("SELECT count(*), max(n), sum(id) FROM sales.streamed")
            assert (count, ids) == (10 * (most + 1), 45 * (most + 1)), "a torn state"
            assert most + 1 >= before, "rows that were durable before the query began are missing"
            found.append(most)
        return found

    with ThreadPoolExecutor(readers + 2) as pool:
        background = [pool.submit(append), pool.submit(tier_on)]
        reading = [pool.submit(read) for _ in range(readers)]
        try:
            for found in [reader.result() for reader in reading]:
                assert found == sorted(found), "an answer went back"
        finally:
            stop.set()
        for thread in background:
            thread.result()


def what_writes_change(warehouse: Warehouse) -> Any:
    """The tables, the version of one of them, and the versions of the lake's metadata."""
    versions = [key for key in lake_files(warehouse) if key.endswith(".metadata.json")]
    return warehouse.tables("sales"), warehouse.table("sales.people").refresh().version, versions


def lake_files(warehouse: Warehouse) -> list[str]:
    """The keys of all files of lake tables. Rounds, and nothing else, add to them."""
    return sorted(info.key for info in warehouse.storage.list("lake/sales/"))
