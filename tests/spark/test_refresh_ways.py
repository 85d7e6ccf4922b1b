"""The ways of a refresh, each after the others, beside Spark's own answer: few changes added to what the view has, by
the driver or by Spark, and groups computed again from the sources.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

import streamhouse_spark as sh
from spark.view_histories import change, fill, order, random_query, require_right, upkeep
from streamhouse_spark.table import refresh_commit
from streamhouse_spark.views import local_executor, local_reads, refresh, step_execution, temp_views
from streamhouse_spark.views import step_execution as step_inputs
from streamhouse_spark.views.ivm import aggregates, delta_sql

pytestmark = pytest.mark.spark

QUERIES = {
    "added": "SELECT cust, count(*) AS n, sum(id) AS s, min(note) AS lo, max(amount) AS hi FROM KEYED GROUP BY cust",
    "plain": "SELECT note, count(*) AS n, sum(cust) AS s, min(id) AS lo FROM KEYED GROUP BY note",
    "small": "SELECT cust, note, count(*) AS n FROM KEYED GROUP BY cust, note",
    "nulls": "SELECT note, sum(cust) AS s, sum(cust) + 1 AS more, max(id) AS hi FROM KEYED GROUP BY note",
    "doubles": "SELECT cust, sum(amount) AS s, count(note) AS n FROM KEYED GROUP BY cust",
    "averages": "SELECT upper(note) AS u, sum(cust) AS s, count(cust) AS n, avg(cust) AS a FROM KEYED GROUP BY 1",
    "all": "SELECT sum(cust) AS s, count(cust) AS n, min(cust) AS lo, count(*) AS rows FROM KEYED",
    "distinct": "SELECT DISTINCT cust, note FROM KEYED",
    "decimals": "SELECT qty, sum(amount) AS s, count_if(cust > 1) AS c, min(at) AS first FROM SOURCE GROUP BY qty",
    "joined groups": "SELECT k.note, count(*) AS n, sum(o.qty) AS q FROM SOURCE o JOIN KEYED k ON o.cust = k.id"
    " GROUP BY k.note",
    "left": "SELECT o.id, o.amount, k.note FROM SOURCE o LEFT JOIN KEYED k ON o.cust = k.id AND k.amount > 0",
    "by key": "SELECT a.id, a.note, b.note AS other FROM KEYED a JOIN KEYED b ON a.cust = b.id",
    "hash": "SELECT a.id, b.id AS other, b.note FROM KEYED a LEFT JOIN KEYED b ON a.cust = b.id",
    "absent": "SELECT id, qty FROM SOURCE o WHERE NOT EXISTS (SELECT 1 FROM KEYED k WHERE k.id = o.cust)",
    "by value": "SELECT id, qty FROM SOURCE o WHERE NOT EXISTS (SELECT 1 FROM KEYED k WHERE k.cust = o.cust)",
    "equal": "SELECT note FROM KEYED WHERE cust > 0",
    "parts": "SELECT note AS x, cust FROM KEYED UNION ALL SELECT 'o', qty FROM SOURCE",
}


@pytest.fixture
def sources(wh, request):
    mark = f"{abs(hash(request.node.name)):x}"
    columns = "id BIGINT NOT NULL, cust INT, amount DECIMAL(12,2), qty INT, at TIMESTAMP"
    orders = wh.create_table(f"ways.o_{mark}", columns, buckets=2)
    columns = "id BIGINT, cust INT, amount DOUBLE, note STRING"
    keyed = wh.create_table(f"ways.k_{mark}", columns, primary_key=["id"], buckets=2)
    fill(orders, keyed)
    return orders, keyed


def query_of(name, sources):
    return with_sources(QUERIES[name], sources)


def with_sources(query, sources):
    orders, keyed = sources
    return query.replace("SOURCE", f"streamhouse.{orders.name}").replace("KEYED", f"streamhouse.{keyed.name}")


def by_the_driver(_patched):
    pass


def by_spark(patched):
    """Spark adds the changes to the view's rows."""
    patched.setattr(local_executor, "merge_aggregates", lambda *_: None)


def from_the_sources(patched):
    """Spark reads the changes, and computes groups that they touch again."""
    patched.setattr(local_reads, "LOCAL_ROWS_MAX", -1)
    patched.setattr(aggregates.IncrementalAggregate, "of", lambda _: None)


WAYS = (by_the_driver, by_spark, from_the_sources)


def refreshed(view, way, monkeypatch):
    with monkeypatch.context() as patched:
        way(patched)
        return view.refresh()


@pytest.mark.parametrize("name", QUERIES)
def test_all_ways_lead_to_the_answer(spark, sources, name, monkeypatch):
    query, chance = query_of(name, sources), random.Random(name)
    view = sh.materialize(spark, f"gold.w_{sources[0].name.split('_')[-1]}", query)
    for way in (*WAYS, *chance.sample(WAYS * 2, 3 if name != "added" else 0)):
        change(chance, *sources)
        assert refreshed(view, way, monkeypatch).whole_because is None
        require_right(spark, view, query)


@pytest.mark.parametrize("way", [by_the_driver, from_the_sources])
def test_rows_that_are_deleted_meanwhile_had_come(spark, sources, way, monkeypatch):
    """A step reads the changes up to its versions, also where somebody deletes of these rows behind them."""
    orders, _ = sources
    query = with_sources("SELECT qty, count(*) AS n FROM SOURCE GROUP BY qty", sources)
    view = sh.materialize(spark, f"gold.m_{orders.name.split('_')[-1]}", query)
    orders.append([order(5, qty=7), order(6, qty=7), order(7, qty=8)])

    def decided(*given, **chosen):
        step = refresh_commit.make_next_step(*given, **chosen)
        orders.delete(where=[("qty", "=", 7)])
        return step

    with monkeypatch.context() as patched:
        patched.setattr(refresh, "make_next_step", decided)
        report = refreshed(view, way, monkeypatch)
    found = {row.qty: row.n for row in spark.table(f"streamhouse.{view.name}").collect()}
    assert found == {1: 3, 7: 2, 8: 1}, f"the rows of version {report.versions}"
    assert "rows deleted" in view.refresh().whole_because
    require_right(spark, view, query)


@pytest.mark.long
@pytest.mark.parametrize("number", range(8))
def test_random_queries_are_refreshed_as_spark_answers(spark, sources, number, monkeypatch):
    """Also where changes do not tell all, lie in the lake, or are of a table that got columns."""
    chance = random.Random(number)
    mark = sources[0].name.split("_")[-1]
    for place in range(3):
        query = with_sources(random_query(chance), sources)
        view = sh.materialize(spark, f"gold.r{place}_{mark}", query)
        for _ in range(6):
            change(chance, *sources)
            if chance.random() < 0.2:
                upkeep(chance, *sources)
            refreshed(view, chance.choice(WAYS), monkeypatch)
            require_right(spark, view, query)


def test_few_changes_of_plain_groups_need_no_spark(spark, sources, monkeypatch):
    orders, keyed = sources
    views = {name: sh.materialize(spark, f"gold.plain_{number}", query_of(name, sources))
             for number, name in enumerate(("plain", "joined groups"))}  # fmt: skip
    orders.append([order(4, 2, "9.99", 3), order(5, 3), order(6, None)])
    keyed.delete([3])
    views["joined groups"].refresh()  # of changes of both sides one is beside all rows of the other
    orders.append([order(7, 1), order(8, 9)])
    with monkeypatch.context() as patched:

        def never(*_):
            raise AssertionError("Spark was asked")

        patched.setattr(temp_views.TempViews, "sql", never)
        assert [view.refresh().rows_written for view in views.values()] == [1, 1]
    for name, view in views.items():
        require_right(spark, view, query_of(name, sources))


def test_no_source_is_read_where_the_view_and_the_changes_suffice(spark, sources, monkeypatch):
    orders, keyed = sources
    names = ("added", "joined groups", "left", "averages")
    views = {name: sh.materialize(spark, f"gold.near_{number}", query_of(name, sources))
             for number, name in enumerate(names)}  # fmt: skip
    orders.append([order(4, 2, "9.99"), order(5, 3), order(6, None)])
    keyed.upsert([{"id": 9, "cust": 1, "amount": 9.0, "note": "c"}])
    views["joined groups"].refresh()  # of changes of both sides one is beside all rows of the other
    views["left"].refresh()
    orders.append([order(7, 9)])
    with monkeypatch.context() as patched:

        def never(*_):
            raise AssertionError("a source was read")

        patched.setattr(temp_views.TempViews, "_read_version", never)
        patched.setattr(temp_views.TempViews, "_read_delta", never)
        assert [views[name].refresh().rows_written for name in names] == [1, 1, 1, 1]
    for name in names:
        require_right(spark, views[name], query_of(name, sources))


def test_a_source_with_other_columns_is_compiled_again(spark, sources):
    """The columns of a plan are remembered only while they stay; a column of another name is refused or read anew."""
    _, keyed = sources
    query = query_of("added", sources)
    view = sh.materialize(spark, "gold.again", query)
    keyed.alter(add_columns="more INT")
    keyed.upsert([{"id": 30, "cust": 1, "amount": 99.0, "note": "z", "more": 1}])
    assert "columns changed" in view.refresh().whole_because
    keyed.upsert([{"id": 31, "cust": 1, "amount": 100.0, "note": "z", "more": 1}])
    assert view.refresh().whole_because is None
    require_right(spark, view, query)


def test_a_view_is_recomputed_if_most_rows_changed(spark, sources, monkeypatch):
    """Then the whole query is computed, and what differs is written."""
    orders, _ = sources
    query = query_of("decimals", sources)
    view = sh.materialize(spark, "gold.mostly", query)
    monkeypatch.setattr(local_reads, "MOSTLY_CHANGED_ROWS_MIN", 5)
    orders.append([order(n, 1, "2.00", n % 4) for n in range(8)])
    assert view.refresh().whole_because == refresh.MOSTLY_CHANGED
    require_right(spark, view, query)


def test_a_sum_that_does_not_fit_is_computed_again(spark, sources, caplog):
    """What came is too much for a sum by itself, and fits with what went."""
    _, keyed = sources
    most = (1 << 63) - 10
    keyed.upsert([{"id": -most, "cust": 8, "amount": 1.0, "note": "a"}])
    query = query_of("added", sources)
    view = sh.materialize(spark, "gold.fits", query)
    keyed.upsert([{"id": most, "cust": 8, "amount": 1.0, "note": "a"}])
    keyed.upsert([{"id": 50, "cust": 8, "amount": 1.0, "note": "a"}])
    with caplog.at_level("INFO"):
        view.refresh()
    assert "the full query was recomputed" in caplog.text
    require_right(spark, view, query)


def came_and_went_alike(patched):
    real = local_reads.LocalChanges.net

    def all_came(self, columns):
        return real(local_reads.LocalChanges(self.rows, np.abs(self.weights)), columns)

    patched.setattr(local_reads.LocalChanges, "net", all_came)


def a_sum_of_nothing_is_zero(patched):
    patched.setattr(aggregates.Aggregate, "result_sql", lambda self: aggregates.value_name(self.column))


def a_minimum_that_went_stays(patched):
    real = aggregates.Aggregate.is_known_sql
    known = lambda self: "TRUE" if self.kind in ("min", "max") else real(self)  # noqa: E731
    patched.setattr(aggregates.Aggregate, "is_known_sql", known)


def an_empty_group_stays(patched):
    patched.setattr(aggregates.IncrementalAggregate, "_remains_sql", lambda *_, **__: "TRUE")


def rows_before_are_those_behind(patched):
    patched.setattr(local_reads, "rewind_rows", lambda rows, *_: rows)


def no_rows_beside(patched):
    real = step_inputs.lookup_joined_rows

    def none(*args):
        found = real(*args)
        return found and local_reads.JoinedRows(found.old.slice(0, 0), found.new.slice(0, 0))

    patched.setattr(step_inputs, "lookup_joined_rows", none)


def equal_rows_begin_at_one(patched):
    patched.setattr(step_execution, "count_equal_rows", lambda _, keys: np.zeros(len(keys), np.int64))


def part_of_a_key_is_enough(patched):
    def first(on, side, moving, other, key):
        pairs = list(delta_sql.iter_equal_columns(on, side, other))
        return ("cust",) if pairs else None

    patched.setattr(delta_sql, "_matching_key_columns", first)


PLANTS = [
    (came_and_went_alike, "added"),
    (a_sum_of_nothing_is_zero, "nulls"),
    (a_minimum_that_went_stays, "added"),
    (an_empty_group_stays, "small"),
    (rows_before_are_those_behind, "by key"),
    (no_rows_beside, "left"),
    (equal_rows_begin_at_one, "equal"),
    (part_of_a_key_is_enough, "by value"),
]


@pytest.mark.parametrize(("bug", "name"), PLANTS, ids=lambda value: getattr(value, "__name__", value))
def test_planted_bugs_are_found(spark, sources, bug, name, monkeypatch):
    query, chance = query_of(name, sources), random.Random(1)
    view = sh.materialize(spark, f"gold.p_{sources[0].name.split('_')[-1]}", query)

    def history():
        for _ in range(30):
            change(chance, *sources)
            view.refresh()
            require_right(spark, view, query)

    with monkeypatch.context() as patched:
        by_spark(patched)  # the other way has plants of its own
        bug(patched)
        with pytest.raises((AssertionError, sh.StreamhouseError)):
            history()
