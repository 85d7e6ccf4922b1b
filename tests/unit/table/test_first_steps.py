"""What a new user types into a notebook, from the first table to a plot, without a page of the documentation."""

from __future__ import annotations

import datetime as dt

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import streamhouse_spark as sh
from streamhouse_spark import SchemaMismatchError

FRAME = pd.DataFrame(
    {
        "id": range(100),
        "day": pd.date_range("2026-01-01", periods=100, freq="h"),
        "customer": pd.Categorical(["ann", "bob"] * 50),
        "amount": [number / 2 for number in range(100)],
    },
    index=[f"row {number}" for number in range(100)],
)


def test_from_a_frame_to_the_data_of_a_plot(tmp_path):
    warehouse = sh.Warehouse(tmp_path / "wh")
    orders = warehouse.create_table("sales.orders", FRAME)
    assert orders.append(FRAME).num_rows == len(FRAME)
    assert repr(orders) == "Table(sales.orders: 4 columns, 1 bucket, 100 rows)"
    assert orders.head(3).num_rows == 3
    assert orders.count(filter="amount > 40") == len(orders.to_pandas(filter="amount > 40", columns=["id"])) == 19
    assert orders.to_polars(columns=["customer"], filter=[("id", "<", 3)]).rows() == [("ann",), ("bob",), ("ann",)]
    totals = sh.scan(tmp_path / "wh", "sales.orders").to_pandas().groupby("customer")["amount"].sum()
    assert totals.to_dict() == {"ann": 1225.0, "bob": 1250.0}
    daily = warehouse.sql("SELECT day::DATE AS day, sum(amount) AS total FROM sales.orders GROUP BY 1 ORDER BY 1").df()
    assert daily["total"].iloc[0] == 138.0
    assert orders.delete(where="amount > 49") == 1


@pytest.mark.parametrize(
    "rows",
    [FRAME, pl.DataFrame({"id": [1]}), pa.table({"id": [1]}), pa.table({"id": [1]}).to_reader()],
    ids=["pandas", "polars", "table", "reader"],
)
def test_a_table_has_the_columns_of_rows(wh, rows):
    table = wh.create_table("d.t", rows)
    assert table.schema.names[0] == "id"
    assert table.schema.field("id").type == pa.int64()
    assert table.count() == 0


def test_a_table_is_made_like_another(wh):
    first = wh.create_table("d.t", "id BIGINT, at TIMESTAMP, s STRUCT<x: INT>")
    first.append([{"id": 1, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}])
    second = wh.create_table("d.u", first.scan(columns=["id", "at"]))
    assert second.append(first.scan(columns=["id", "at"])).num_rows == 1


@pytest.mark.parametrize("schema", [{"id": "bigint"}, [1], pa.chunked_array([[1]]), pl.Series([1]), 3])
def test_what_is_no_schema_is_named(wh, schema):
    with pytest.raises(SchemaMismatchError, match="a frame"):
        wh.create_table("d.t", schema)
