"""`Warehouse.sql`: the tables and views of a warehouse in DuckDB's SQL."""

from __future__ import annotations

import sys

import duckdb
import pytest

from kit.tables import tier
from streamhouse_spark import InvalidNameError, InvalidOptionError, MissingExtraError


@pytest.fixture
def shop(wh):
    orders = wh.create_table("shop.orders", "id BIGINT, person BIGINT, amount DOUBLE")
    orders.append([{"id": n, "person": n % 2, "amount": n * 1.5} for n in range(4)])
    tier(orders)
    orders.append([{"id": 9, "person": 1, "amount": 9.0}])
    people = wh.create_table("people", "id BIGINT, name STRING", primary_key=["id"])
    people.upsert([{"id": 0, "name": "Ann"}, {"id": 1, "name": "Bob"}])
    wh.create_table("main.people", "name STRING").append([{"name": "Cy"}])
    wh.create_table("temp.people", "name STRING").append([{"name": "Di"}])
    return wh


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT count(*), sum(amount) FROM shop.orders", [(5, 18.0)]),
        ('SELECT count(*) FROM shop."orders$lake"', [(4,)]),
        (
            "SELECT name, sum(amount) FROM shop.orders o JOIN people p ON o.person = p.id GROUP BY name ORDER BY name",
            [("Ann", 3.0), ("Bob", 15.0)],
        ),
        ("WITH few AS (SELECT * FROM shop.orders LIMIT 2) SELECT count(*) FROM few", [(2,)]),
        ('WITH "a b" AS (SELECT 1 AS x) SELECT x FROM "a b"', [(1,)]),
        ('SELECT (SELECT max(id) FROM shop.orders) - min(id) FROM "default".people', [(9,)]),
        ("FROM shop.orders SELECT id WHERE id IN (SELECT id FROM people) ORDER BY id", [(0,), (1,)]),
        ("SELECT count(*) FROM range(3)", [(3,)]),
        ("SELECT count(*) FROM shop.orders JOIN Shop.ORDERS o USING (id)", [(5,)]),
        ("SELECT p.name, m.name FROM people p, main.people m WHERE p.id = 0", [("Ann", "Cy")]),
        ("SELECT name FROM memory.temp.people", [("Di",)]),
    ],
)
def test_a_query_sees_tables_and_views_by_name(shop, query, rows):
    assert shop.sql(query).fetchall() == rows


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("f > 2.5", [1, 2]),
        ("f >= 2.5", [1, 2]),
        ("f < 2.5", [3]),
        ("f <> 3", [1, 3]),
        ("NOT f <= 2.5", [1, 2]),
        ("g > 0.5", [1, 2]),
        ("s.x > 0.5", [1, 2]),
        ("f = 'nan'::DOUBLE", [1]),
    ],
)
def test_nan_is_greater_than_all_numbers_as_in_duckdb(wh, condition, ids):
    nan = float("nan")
    table = wh.create_table("shop.metrics", "id BIGINT, f DOUBLE, g FLOAT, s STRUCT<x: DOUBLE>")
    table.append(
        [
            {"id": 1, "f": nan, "g": 1.0, "s": {"x": nan}},
            {"id": 2, "f": 3.0, "g": nan, "s": {"x": 1.0}},
            {"id": 3, "f": 1.0, "g": 0.0, "s": None},
        ]
    )
    query = f"SELECT id FROM {{}} WHERE {condition} ORDER BY id"
    expected = [(number,) for number in ids]
    assert wh.sql(query.format("shop.metrics")).fetchall() == expected
    assert table.to_duckdb("measures").sql(query.format("measures")).fetchall() == expected


def test_the_rows_are_those_of_when_it_is_executed(shop):
    relation = shop.sql("SELECT count(*) FROM shop.orders")
    shop.table("shop.orders").append([{"id": 10}])
    assert relation.fetchall() == [(6,)]


@pytest.mark.parametrize("query", ["DELETE FROM shop.orders", "SELECT 1; SELECT 2", "selec", ""])
def test_anything_but_one_select_is_refused(shop, query):
    with pytest.raises(InvalidOptionError, match="expected one SELECT"):
        shop.sql(query)


@pytest.mark.parametrize("name", ["shop.nothing", "nothing", "query"])
def test_a_table_that_does_not_exist_is_an_error_of_duckdb(shop, name):
    with pytest.raises(duckdb.CatalogException, match=name):
        shop.sql(f"SELECT * FROM {name}")


def test_a_view_that_does_not_exist_is_an_error_of_ours(shop):
    with pytest.raises(InvalidNameError, match="unknown suffix"):
        shop.sql('SELECT * FROM shop."orders$nothing"')


def test_duckdb_is_named_where_it_is_not_installed(shop, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match="pip install duckdb"):
        shop.sql("SELECT 1")
