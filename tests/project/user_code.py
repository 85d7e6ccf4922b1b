"""What users of the package write, for `test_user_types`. It is checked, and never run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

import streamhouse_spark as sh


def write(location: str) -> sh.Table:
    warehouse = sh.Warehouse(location, {"s3.region": "eu-central-1"})
    orders = warehouse.create_table(
        "sales.orders", "id BIGINT, day STRING, amount DOUBLE", partition_by=["day"], buckets=2, if_not_exists=True
    )
    rows = [{"id": 1, "day": "mon", "amount": 9.5}]
    num_rows: int = orders.append(rows).num_rows
    orders.append(pd.DataFrame({"id": [num_rows]}), transaction=sh.Transaction("load", 1))
    orders.append(pl.DataFrame({"id": [2]}))
    orders.append(pa.table({"id": [2]}))
    orders.append(duckdb.sql("SELECT 1::BIGINT AS id"))
    orders.append(orders.scan(version=1))
    orders.overwrite([{"id": 4}], where=[("id", "=", 4)])
    orders.overwrite_partitions([])
    deleted: int = orders.delete(where="id = 4")
    with orders.writer(flush_ms=deleted) as writer:
        offsets: sh.BucketOffsets = writer.send({"id": 3}).result()
    assert offsets[0].start >= 0
    return orders


def read(orders: sh.Table) -> pd.DataFrame:
    scan = orders.scan(filter=[("amount", ">", 5), ("day", "in", ["mon"])], columns=["id"]).limit(10)
    scan = scan.filter([[("id", "=", 1)], [("id", "not in", [2, 3])]]).filter(pc.field("id") > 1).filter("id < 3")
    frame: pl.DataFrame = scan.to_polars()
    lazy: pl.LazyFrame = sh.scan_polars(orders).filter(pl.col("amount") > 5)
    num_rows: int = scan.count() + frame.height + lazy.collect().height + scan.plan().lake_bytes
    connection: duckdb.DuckDBPyConnection = orders.to_duckdb("o")
    relation: duckdb.DuckDBPyRelation = sh.Warehouse("wh").sql("SELECT 1")
    assert num_rows == len(connection.sql("FROM o").fetchall()) == len(relation.df())
    for batch in orders.tail("earliest", until_ms=0):
        num_rows += batch.num_rows
    position: sh.LogPosition | None = orders.consumer_position("billing")
    offsets: dict[int, int] = dict(position.offsets) if position is not None else {}
    for batch in sh.scan("wh", "sales.orders", version="tag").to_batches():
        num_rows += batch.num_rows + len(offsets)
    changed: pd.DataFrame = orders.changes(1, "tag").to_pandas()
    appended: int = orders.incremental_append_scan(1).count()
    assert orders.lake.scan(version=3).head().num_rows == orders.inspect.history(limit=3).num_rows == appended
    return changed


def look_up(people: sh.Table) -> Iterator[str]:
    people.upsert([{"id": 1, "name": "Ann"}], columns=["name"])
    row = people.lookup_one(1)
    if row is not None:
        yield row["name"]
    deleted: sh.BucketOffsets = people.delete([(1, "a")])
    assert deleted.num_rows == 1


def maintain(warehouse: sh.Warehouse) -> dt.datetime | None:
    try:
        table = warehouse.table("sales.orders")
    except sh.TableNotFoundError as error:
        kind: sh.ErrorKind = error.kind
        return None if kind is sh.ErrorKind.INVALID else dt.datetime.now(dt.UTC)
    segments: int = table.maintain(dry_run=True).segments_merged
    assert table.create_tag("end", retain_ms=1000).version == segments
    names: list[str] = [branch.name for branch in table.branches()]
    assert warehouse.view("sales.orders$lake").to_arrow(columns=names).num_rows == 0
    return dt.datetime.now(dt.UTC)


def query_with_mistakes(orders: sh.Table) -> None:
    """Each line is a mistake that a type checker finds."""
    orders.apend([])  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    orders.scan(columns=1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    orders.append(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    sh.scann("wh", "t")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    _: str = orders.count()  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]
