"""Deleted minima, maxima and distinct values, of all types: the view's new ones are those of Spark's own answer."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from decimal import Decimal

import pytest

import streamhouse_spark as sh
from spark.test_refresh_ways import WAYS, by_spark, by_the_driver, refreshed
from streamhouse_spark.views.step_execution import StepExecution

pytestmark = pytest.mark.spark

COLUMNS = "id BIGINT, g INT, i INT, d DECIMAL(12,2), s STRING, day DATE, f DOUBLE, b BOOLEAN, at TIMESTAMP"
QUERIES = {
    "plain": "SELECT g, min(i) AS lo, max(i) AS hi, max(d) AS d, min(s) AS s, max(day) AS day FROM SOURCE GROUP BY g",
    "by key": "SELECT id % 3 AS r, min(s) AS lo, max(s) AS hi, count(*) AS n FROM (SELECT coalesce(id, 0) AS id, s"
    " FROM SOURCE) q GROUP BY id % 3",
    "others": "SELECT g, min(f) AS lo, max(f) AS hi, max(b) AS b, min(at) AS first, max(i * -1) AS most, min(5) AS five"
    " FROM SOURCE WHERE s IS NULL OR s <> 'q' GROUP BY g",
    "distinct": "SELECT g, count(DISTINCT s) AS s, max(i) AS hi, count(DISTINCT i) AS i FROM SOURCE GROUP BY g",
    "distinct others": "SELECT id % 3 AS r, count(DISTINCT f) AS f, count(DISTINCT b) + count(DISTINCT at) AS n"
    " FROM SOURCE GROUP BY id % 3",
    "doubles": "SELECT f, min(s) AS lo, max(i) AS hi, min(at) AS first FROM SOURCE GROUP BY f",
    "wide": "SELECT d, b, day, max(s) AS hi, min(id) AS lo FROM SOURCE WHERE id > 2 GROUP BY d, b, day",
    "all": "SELECT min(i) AS lo, max(s) AS hi FROM SOURCE",
}


@pytest.fixture
def source(wh, request):
    name = f"extremes.t_{abs(hash(request.node.name)):x}"
    return wh.create_table(name, COLUMNS, primary_key=["id"], buckets=2)


def row(chance, number):
    day = dt.date(2026, 1, chance.randint(1, 28))
    return {
        "id": number,
        "g": chance.choice([None, 1, 2]),
        "i": chance.choice([None, *range(9)]),
        "d": chance.choice([None, Decimal("-1.25"), Decimal("0.00"), Decimal("99.50")]),
        "s": chance.choice([None, "", "a", "ä", "z", "q"]),
        "day": chance.choice([None, day]),
        "f": chance.choice([None, float("nan"), -0.0, 0.0, float("inf"), 1.5, -3.0]),
        "b": chance.choice([None, True, False]),
        "at": dt.datetime(2026, 1, 1, 10, chance.randint(0, 59), tzinfo=dt.UTC),
    }


def change(chance, source, ids=30):
    rows = sorted(source.to_arrow().to_pylist(), key=lambda r: (r["i"] is None, r["i"]))
    source.delete([r["id"] for r in rows[: chance.randint(0, 3)]] or [chance.randrange(ids)])
    source.upsert([row(chance, n) for n in {chance.randrange(ids) for _ in range(3)}])


def answer(spark, query):
    """Rows as texts: NaN is no value that is equal to itself, and -0.0 is 0.0."""

    def text(value):
        return repr(value + 0.0) if isinstance(value, float) else repr(value)

    return Counter(tuple(map(text, found)) for found in spark.sql(query).collect())


def require_right(spark, view, query):
    shown = ", ".join(f"`{name}`" for name in spark.sql(query).columns)
    assert answer(spark, f"SELECT {shown} FROM streamhouse.{view.name}") == answer(spark, query)


def kept(spark, source, name):
    query = QUERIES[name].replace("SOURCE", f"streamhouse.{source.name}")
    return sh.materialize(spark, f"gold.x_{source.name.split('_')[-1]}", query), query


@pytest.mark.long
@pytest.mark.parametrize("name", QUERIES)
def test_minima_and_maxima_are_right_after_random_deletions(spark, source, name, monkeypatch):
    chance = random.Random(name)
    source.upsert([row(chance, number) for number in range(20)])
    view, query = kept(spark, source, name)
    ways = [by_the_driver, by_spark] * 4 + chance.sample(WAYS * 2, 4)
    for way in ways:
        change(chance, source)
        assert refreshed(view, way, monkeypatch).whole_because is None
        require_right(spark, view, query)


@pytest.mark.parametrize("way", [by_the_driver, by_spark])
def test_only_groups_whose_extreme_was_deleted_are_recomputed(spark, source, way, monkeypatch):
    source.upsert([{"id": n, "g": n % 10, "i": n} for n in range(100)])
    view, query = kept(spark, source, "plain")
    recomputed = []
    real = StepExecution._recompute_groups
    monkeypatch.setattr(
        StepExecution,
        "_recompute_groups",
        lambda self, statements, writer, groups, schema: (
            recomputed.append(groups.num_rows) or real(self, statements, writer, groups, schema)
        ),
    )
    source.delete([0, 91, 50, 51, 52])  # the first one of group 0, the last one of group 1, and some in between
    assert refreshed(view, way, monkeypatch).rows_written == 2
    require_right(spark, view, query)
    assert recomputed == [2]
