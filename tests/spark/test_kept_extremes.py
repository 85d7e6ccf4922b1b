"""Smallest and largest values that go, of all types: the next ones are those of Spark's own answer, and no source is
read for them.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from decimal import Decimal

import pytest

import streamhouse_spark as sh
from faults.extreme_refresh import with_all_room, with_room
from property.test_kept_extremes import in_shares
from spark.test_refresh_ways import WAYS, by_spark, by_the_driver, refreshed
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.views import temp_views

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


def sources_are_not_read(patched):
    def never(*_):
        raise AssertionError("a source was read")

    patched.setattr(temp_views.TempViews, "_read_version", never)


@pytest.mark.long
@pytest.mark.parametrize("name", QUERIES)
def test_a_random_history(spark, source, name, monkeypatch):
    chance = random.Random(name)
    with_room(monkeypatch, 2)
    if chance.random() < 0.5:
        with_all_room(monkeypatch, 4)
    in_shares(monkeypatch, 2)
    source.upsert([row(chance, number) for number in range(20)])
    view, query = kept(spark, source, name)
    ways = [by_the_driver, by_spark] * 4 + chance.sample(WAYS * 2, 4)
    for number, way in enumerate(ways):
        change(chance, source)
        assert refreshed(view, way, monkeypatch).whole_because is None
        require_right(spark, view, query)
        if number == 6:
            close_tablets()


def test_groups_come_in_shares_until_no_source_is_read(spark, source, monkeypatch):
    """A refresh that reads the source reads it once, and lists some groups more than it needs, not all."""
    in_shares(monkeypatch, 4)
    source.upsert([{"id": n, "g": n % 40, "i": n} for n in range(200)])
    view, query = kept(spark, source, "plain")
    read = []
    real = temp_views.TempViews._read_version
    monkeypatch.setattr(
        temp_views.TempViews, "_read_version", lambda self, *args: read.append(args) or real(self, *args)
    )
    counts = []
    for number in range(8):
        source.delete([number, 199 - number])
        before = len(read)
        assert view.refresh().whole_because is None
        counts.append(len(read) - before)
        if number % 3 == 1:
            require_right(spark, view, query)
    assert counts[0] == 1
    assert max(counts) == 1
    assert 1 < sum(counts) <= 4


@pytest.mark.parametrize("name", ["plain", "others", "distinct"])
def test_no_source_is_read_for_the_next_value(spark, source, name, monkeypatch):
    """The first value that goes is looked for, and all others are known from then on, by both ways."""
    source.upsert([{"id": n, "g": n % 2, "i": n, "s": f"s{n:02}", "f": n / 4} for n in range(30)])
    view, query = kept(spark, source, name)
    source.delete([0])
    view.refresh()
    require_right(spark, view, query)
    for number, way in enumerate([by_the_driver, by_spark, by_the_driver, by_spark]):
        source.delete([number + 1, 28 - number])
        with monkeypatch.context() as patched:
            sources_are_not_read(patched)
            assert refreshed(view, way, patched).rows_written > 0
        require_right(spark, view, query)


@pytest.mark.parametrize("name", ["others", "plain"])
def test_two_hosts_that_refresh_in_turns_read_the_source_once_each(spark, source, name, monkeypatch, tmp_path):
    source.upsert([{"id": n, "g": n % 2, "i": n, "s": f"s{n:02}", "f": n / 4} for n in range(40)])
    view, query = kept(spark, source, name)
    for number in range(6):
        monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / f"host {number % 2}"))
        source.delete([2 * number, 39 - number])
        with monkeypatch.context() as patched:
            if number > 1:
                sources_are_not_read(patched)
            assert view.refresh().whole_because is None
        require_right(spark, view, query)
    close_tablets()


@pytest.mark.long
def test_a_group_that_ran_out_is_listed_again_with_more_room(spark, source, monkeypatch):
    """Where the oldest values go one after the other, they are looked for less and less often."""
    with_room(monkeypatch, 2)
    source.upsert([{"id": n, "g": 1, "i": n} for n in range(60)])
    view, query = kept(spark, source, "plain")
    read = []
    real = temp_views.TempViews._read_version
    monkeypatch.setattr(
        temp_views.TempViews, "_read_version", lambda self, *args: read.append(args) or real(self, *args)
    )
    computed = []
    for number in range(12):
        source.delete([2 * number, 2 * number + 1])
        before = len(read)
        view.refresh()
        computed.append(len(read) > before)
    require_right(spark, view, query)
    assert computed == [True, True, *[False] * 3, True, *[False] * 6]
