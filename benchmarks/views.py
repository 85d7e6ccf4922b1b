"""Refreshes of materialized tables, beside the computation of their whole queries."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import streamhouse_spark
from benchmarks.keyed import NO_LAKE, own_cache
from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, Goal, in_turns, ratio_at_most, time_figure, timed
from benchmarks.spark import FILES, parquet_files, session_builder
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.views import refresh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamhouse_spark.views.create import MaterializedTable

ROWS = (1_000_000, 10_000_000)
LOADED_AT_ONCE = 1_000_000
CHANGED_SHARE = 0.001
"""Of ten changes eight are updates, of which two move the row to another group, one is an insert and one a delete."""
PRODUCTS, KINDS = 1_000, 30
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.int64()),
        pa.field("product", pa.int32()),
        pa.field("quantity", pa.int32()),
        pa.field("amount", pa.decimal128(12, 2)),
    ]
)
SUMS = "SELECT customer, count(*) AS orders, sum(amount) AS revenue FROM bench.orders GROUP BY customer"
JOINED = """SELECT p.kind, count(*) AS orders, sum(o.amount) AS revenue
    FROM bench.orders o JOIN bench.products p ON o.product = p.id GROUP BY p.kind"""
EXTREMES = """SELECT customer, min(quantity) AS least, max(quantity) AS most, count(*) AS orders
    FROM bench.orders GROUP BY customer"""
VIEWS = {
    "sums": (SUMS, ratio_at_most(1 / 20)),
    "sums over a join": (JOINED, ratio_at_most(1 / 20)),
    "smallest and largest": (EXTREMES, ratio_at_most(1 / 5)),
}
"""A view → its query, and the goal. Groups whose smallest or largest value went are computed again."""
WHOLE = "the whole query, and what differs written"
QUERY = "the query alone over Parquet files, its rows thrown away"


def views(bench: Bench) -> Iterator[Figure]:
    """0.1 % of the rows change between two refreshes, and at last all of them."""
    for num_rows in ROWS[:1] if bench.quick else ROWS:
        shrunk = num_rows // 10 if bench.quick else num_rows
        with own_cache(bench.directory(f"cache-{num_rows}")):
            yield from _of_size(bench, shrunk, f"{shrunk / 1_000_000:g} M rows")


def _of_size(bench: Bench, num_rows: int, size: str) -> Iterator[Figure]:
    url = str(bench.scratch / f"warehouse-{num_rows}")
    orders = Orders(Warehouse(url), num_rows)
    spark = streamhouse_spark.configure(session_builder(bench.scratch), warehouse=url).getOrCreate()
    try:
        orders.show_as_parquet(bench, spark)
        for name, (query, goal) in VIEWS.items():
            yield from _of_view(bench, spark, orders, f"{name}, 0.1 % of {size} changed", query, goal)
        yield _all_changed(bench, spark, orders, f"sums, all of {size} changed")
    finally:
        spark.stop()


def _of_view(
    bench: Bench, spark: SparkSession, orders: Orders, name: str, query: str, goal: Goal | None
) -> Iterator[Figure]:
    number = zlib.crc32(query.encode())
    alone = query.replace("bench.orders", "orders").replace("bench.products", "products")
    ours = streamhouse_spark.materialize(spark, f"bench.ours_{number}", query)
    peer = streamhouse_spark.materialize(spark, f"bench.peer_{number}", query)

    turns = Turns(orders.change)
    refreshes = {"ours": turns.of(lambda: _require_changes(ours)), WHOLE: turns.of(lambda: _whole(peer))}
    runs = in_turns(
        {
            **refreshes,
            QUERY: lambda: timed(lambda: spark.sql(alone).write.format("noop").mode("overwrite").save()),
        },
        bench.rounds(7, 2),
        warm_up=2,
    )
    _require_same(ours, peer)
    yield time_figure(name, runs, WHOLE, goal)
    yield time_figure(name, runs, QUERY)


def _all_changed(bench: Bench, spark: SparkSession, orders: Orders, name: str) -> Figure:
    ours = streamhouse_spark.materialize(spark, "bench.ours_of_all", SUMS)
    peer = streamhouse_spark.materialize(spark, "bench.peer_of_all", SUMS, mode="full")

    turns = Turns(orders.change_all)
    runs = in_turns({"ours": turns.of(ours.refresh), "mode=full": turns.of(peer.refresh)}, bench.rounds(3, 1))
    return time_figure(name, runs, "mode=full", ratio_at_most(1.2))


def _require_changes(view: MaterializedTable) -> None:
    report = view.refresh()
    if not report.changed or report.whole_because is not None:
        raise AssertionError(f"{view.name} was not kept by changes: {report}")


def _whole(view: MaterializedTable) -> None:
    with mock.patch.object(refresh, "is_mostly_changed", return_value=True):
        view.refresh()


def _require_same(ours: MaterializedTable, peer: MaterializedTable) -> None:
    ours.refresh()
    _whole(peer)
    keys = [(name, "ascending") for name in ours.table.schema.names]
    if not ours.table.to_arrow().sort_by(keys).equals(peer.table.to_arrow().sort_by(keys)):
        raise AssertionError(f"{ours.name} is not the answer to its query")


class Turns:
    """Actions in turns, each behind the same changes, and each of them behind no more than one."""

    def __init__(self, change: Callable[[], None]) -> None:
        self._change = change
        self._changes = 0

    def of(self, action: Callable[[], object]) -> Callable[[], float]:
        seen = 0

        def run() -> float:
            nonlocal seen
            if seen == self._changes:
                self._change()
                self._changes += 1
            seen = self._changes
            return timed(action)

        return run


class Orders:
    """A table of orders with a primary key, which changes, and one of products."""

    def __init__(self, warehouse: Warehouse, num_rows: int) -> None:
        self._chance = np.random.default_rng(7)
        self._customers = num_rows // 10
        self._next = num_rows
        self._deleted: set[int] = set()
        products = warehouse.create_table(
            "bench.products", "id INT NOT NULL, kind STRING", primary_key=["id"], properties=NO_LAKE
        )
        products.upsert([{"id": number, "kind": f"kind {number % KINDS}"} for number in range(PRODUCTS)])
        self.table: Table = warehouse.create_table("bench.orders", SCHEMA, primary_key=["id"], buckets=2)
        for start in range(0, num_rows, LOADED_AT_ONCE):
            self.table.upsert(self._rows(np.arange(start, min(start + LOADED_AT_ONCE, num_rows))))
        self._num_changes = int(num_rows * CHANGED_SHARE)
        self._products = products
        tier(self.table)

    def show_as_parquet(self, bench: Bench, spark: SparkSession) -> None:
        """Make the views `orders` and `products` of the session, of the rows as they are now in Parquet files."""
        for table in (self.table, self._products):
            name = table.name.partition(".")[2]
            rows = table.to_arrow()
            folder = bench.directory(f"{name}-beside-{self._next}")
            files = parquet_files(folder, rows, -(-rows.num_rows // FILES))
            spark.read.parquet(files).createOrReplaceTempView(name)

    def change(self) -> None:
        """Change a share of the rows: updates, inserts, deletions."""
        tenth = max(1, self._num_changes // 10)
        chosen = self._chance.choice(self._next, 9 * tenth, replace=False)
        there = np.array([number for number in chosen if number not in self._deleted])
        gone, updated = there[:tenth], there[tenth:]
        found = self.table.lookup(pa.table({"id": updated})).drop_columns(["_found"])
        rows = self._rows(updated)
        stays = np.arange(len(updated)) >= 2 * tenth
        customers = np.where(stays, found["customer"].to_numpy(), rows["customer"].to_numpy())
        rows = rows.set_column(1, SCHEMA.field("customer"), pa.array(customers))
        new = self._rows(np.arange(self._next, self._next + tenth))
        self._next += tenth
        self._deleted |= set(gone.tolist())
        self.table.upsert(pa.concat_tables([rows, new]))
        self.table.delete(pa.table({"id": gone}))

    def change_all(self) -> None:
        """Give all rows other amounts."""
        for start in range(0, self._next, LOADED_AT_ONCE):
            self.table.upsert(self._rows(np.arange(start, min(start + LOADED_AT_ONCE, self._next))))

    def _rows(self, ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
        size = len(ids)
        cents = pa.array(self._chance.integers(1, 100_000, size)).cast(pa.decimal128(19, 0))
        hundredth = pa.scalar(Decimal("0.01"), pa.decimal128(3, 2))
        columns = [
            pa.array(ids),
            pa.array(self._chance.integers(0, self._customers, size)),
            pa.array(self._chance.integers(0, PRODUCTS, size).astype(np.int32)),
            pa.array(self._chance.integers(1, 100, size).astype(np.int32)),
            pc.multiply(cents, hundredth).cast(pa.decimal128(12, 2)),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)
