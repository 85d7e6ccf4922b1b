"""Engines that read a table as a pyarrow dataset: they push columns and filters down, and compare NaN in their way."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import streamhouse_spark as sh
from kit.tables import tier
from streamhouse_spark import InvalidOptionError, MissingExtraError, Table
from streamhouse_spark.table.scan import Scan, create_duckdb_view

NAN = float("nan")
ROWS = [
    {"id": number, "f": NAN if number % 3 == 0 else float(number), "s": {"x": number / 2}, "name": f"n{number}"}
    for number in range(20)
]


@pytest.fixture
def table(wh) -> Table:
    table = wh.create_table("d.t", "id BIGINT, f DOUBLE, s STRUCT<x: DOUBLE>, name STRING", buckets=1)
    table.append(ROWS[:15])
    tier(table)
    table.append(ROWS[15:])
    return table


@pytest.fixture
def asked(monkeypatch) -> list[tuple[tuple[str, ...] | None, tuple[str, ...]]]:
    """The columns and filters of each read."""
    scans: list[Any] = []
    open_reader = Scan.to_arrow_batch_reader
    monkeypatch.setattr(
        Scan,
        "to_arrow_batch_reader",
        lambda scan: (scans.append((scan.columns, tuple(map(str, scan.filters)))), open_reader(scan))[1],
    )
    return scans


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


def test_a_dataset_reads_the_columns_and_rows_that_are_asked_for(table, asked):
    rows = table.to_arrow_dataset()
    assert isinstance(rows, ds.Dataset)
    assert rows.schema == table.schema
    assert ids(rows.to_table(columns=["id"], filter=pc.field("name") > "n17")) == [2, 3, 4, 5, 6, 7, 8, 9, 18, 19]
    assert asked == [(("id",), ('(name > "n17")',))]
    assert rows.count_rows() == rows.to_table(columns=[]).num_rows == sum(b.num_rows for b in rows.to_batches()) == 20
    assert rows.head(3, columns=["name"]).shape == (3, 1)
    assert ids(rows.filter(pc.field("f") > 16).to_table()) == [17, 19]
    assert rows.to_table(columns={"twice": pc.field("id") * 2}, filter=pc.field("id") == 4).to_pylist() == [
        {"twice": 8}
    ]
    table.append([{"id": 99}])
    assert rows.count_rows(filter=pc.field("id") > 19) == 1


def test_a_dataset_travels_to_another_process(tmp_path):
    table = sh.Warehouse(tmp_path / "wh").create_table("d.t", "id BIGINT")
    rows = pickle.loads(pickle.dumps(table.scan(limit=2).to_arrow_dataset()))
    table.append([{"id": number} for number in range(5)])
    assert rows.count_rows() == 2


def test_a_dataset_of_a_limited_scan_filters_within_the_limit(table):
    rows = table.scan(limit=5).to_arrow_dataset()
    first = ids(rows.to_table())
    assert ids(rows.to_table(columns=["id"], filter=pc.field("id") > 2)) == [number for number in first if number > 2]


@pytest.mark.parametrize("method", ["join", "join_asof", "sort_by", "replace_schema"])
def test_what_a_dataset_cannot_do_is_an_error(table, method):
    with pytest.raises(InvalidOptionError, match="to_table"):
        getattr(table.to_arrow_dataset(), method)("id")


def test_duckdb_pushes_columns_and_comparisons_down_but_none_of_floating_point_numbers(table, asked):
    connection = table.to_duckdb("t")
    assert connection.sql("SELECT id FROM t WHERE id > 16 AND f > 5 ORDER BY id").fetchall() == [(17,), (18,), (19,)]
    assert connection.sql("SELECT count(*) FROM t WHERE s.x > 9").fetchall() == [(1,)]
    assert connection.sql("SELECT count(*) FROM t WHERE name = 'n7'").fetchall() == [(1,)]
    assert asked == [(("id", "f"), ("(id > 16)",)), (("s",), ()), (("name",), ('(name == "n7")',))]


def test_names_are_quoted_for_duckdb(wh):
    table = wh.create_table("d.t", pa.schema([('a "b"', pa.float64()), ("select", pa.int64())]))
    table.append([{'a "b"': NAN, "select": 1}])
    assert table.to_duckdb('x "y"').sql('SELECT "select" FROM "x ""y""" WHERE "a ""b""" > 1').fetchall() == [(1,)]


def test_a_view_of_any_scan_is_made_in_a_connection(table):
    connection = duckdb.connect()
    create_duckdb_view(connection, "few", table.scan(columns=["f"], filter="id < 3", limit=2))
    assert len(connection.sql("FROM few").fetchall()) == 2


@pytest.fixture
def datafusion() -> Any:
    return pytest.importorskip("datafusion", reason="datafusion is not installed: pip install datafusion")


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("f > 16", [0, 3, 6, 9, 12, 15, 17, 18, 19]),
        ("f < 2", [1]),
        ("f = 'nan'::double AND id > 12", [15, 18]),
        ("s['x'] > 9", [19]),
        ("id IN (1, 2) OR name = 'n7'", [1, 2, 7]),
    ],
)
def test_datafusion_reads_a_table_and_orders_nan_in_its_way(datafusion, table, condition, expected):
    context = table.to_datafusion("t")
    rows = context.sql(f"SELECT id FROM t WHERE {condition} ORDER BY id").to_pylist()
    assert [row["id"] for row in rows] == expected


def test_datafusion_pushes_columns_and_comparisons_down(datafusion, wh, table, asked):
    context = table.to_datafusion("t")
    assert context.sql("SELECT id FROM t WHERE id > 16 AND f > 5").count() == 3
    assert asked == [(("f",), ("(id > 16)",))]
    other = wh.create_table("d.other", "id BIGINT")
    other.append([{"id": 19}])
    assert other.to_datafusion("o", context).sql("SELECT name FROM t JOIN o USING (id)").to_pylist() == [
        {"name": "n19"}
    ]
    assert datafusion.SessionContext().from_arrow(table).count() == 20
    assert table.append(context.sql("SELECT * FROM t WHERE id = 3")).num_rows == 1
    with pytest.raises(InvalidOptionError, match="SessionContext"):
        table.to_datafusion("t", "no context")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # ibis calls DuckDB by an older name
def test_ibis_reads_a_table_by_duckdb(table):
    ibis = pytest.importorskip("ibis", reason="ibis is not installed: pip install ibis-framework[duckdb]")
    t = ibis.duckdb.from_connection(table.to_duckdb("t")).table("t")
    assert t.filter(t.f > 16).count().execute() == 9


def test_datafusion_is_named_where_it_is_not_installed(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "datafusion", None)
    with pytest.raises(MissingExtraError, match="pip install datafusion"):
        table.to_datafusion("t")


def test_polars_reads_a_dataset_as_well(table):
    import polars as pl

    frame = pl.scan_pyarrow_dataset(table.to_arrow_dataset())
    assert frame.filter(pl.col("id") > 16).select("id").collect().height == 3
    assert sh.scan_polars(table).filter(pl.col("f") > 16).collect().height == 9
