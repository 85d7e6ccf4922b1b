"""Queries that are kept as tables, beside Spark's own answer after each refresh."""

from __future__ import annotations

import random
import threading

import pyarrow.compute as pc
import pytest

import streamhouse_spark as sh
from kills.workers import tier
from kit.waiting import wait_for
from spark.view_histories import change, fill, kept, order, require_right
from streamhouse_spark import InvalidOptionError, TableExistsError
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.table import refresh_commit
from streamhouse_spark.views import local_reads, refresh, temp_views
from streamhouse_spark.views.ivm import aggregates, delta_sql

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(wh, request):
    name = f"views.o_{abs(hash(request.node.name)):x}"
    return wh.create_table(name, "id BIGINT NOT NULL, cust INT, amount DECIMAL(12,2), qty INT, at TIMESTAMP", buckets=2)


@pytest.fixture
def keyed(wh, request):
    name = f"views.k_{abs(hash(request.node.name)):x}"
    return wh.create_table(name, "id BIGINT, cust INT, amount DOUBLE, note STRING", primary_key=["id"], buckets=2)


@pytest.mark.always
def test_groups_of_a_log_table(spark, orders):
    orders.append([order(1), order(2, None), order(3, 2)])
    view, query = kept(
        spark, orders, "SELECT cust, count(*) AS n, sum(amount) AS s, avg(qty) AS q FROM SOURCE GROUP BY 1"
    )
    assert view.refresh().changed is False
    before = view.table.state.version
    orders.append([order(4, 2, "9.99"), order(5, None), order(6, 7)])
    report = view.refresh()
    assert (report.changed, report.rows_written, report.rows_deleted, report.whole_because) == (True, 3, 0, None)
    assert view.table.refresh().version == before + 1
    require_right(spark, view, query)


def test_a_view_of_a_log_table_is_refreshed_by_new_rows(spark, orders):
    orders.append([order(1), order(1), order(3, 2)])
    view, query = kept(spark, orders, "SELECT id, amount * 2 AS twice FROM SOURCE WHERE qty > 0")
    orders.append([order(1), order(4, 2, "9.99"), order(5, 1, "1.00", 0)])
    report = view.refresh()
    assert (report.rows_written, report.whole_because) == (2, None)
    require_right(spark, view, query)


def test_a_view_of_a_keyed_table_is_refreshed_by_retractions(spark, keyed):
    keyed.upsert([{"id": i, "cust": i % 3, "amount": float(i), "note": "a"} for i in range(9)])
    query = "SELECT cust, min(amount) AS lo, max(amount) AS hi, count(DISTINCT note) AS d FROM SOURCE GROUP BY cust"
    view, query = kept(spark, keyed, f"{query} HAVING count(*) > 1")
    keyed.delete([0, 3])
    keyed.upsert(
        [{"id": 1, "cust": 2, "amount": -1.0, "note": None}, {"id": 20, "cust": None, "amount": 1.0, "note": "z"}]
    )
    assert view.refresh().rows_deleted == 2
    require_right(spark, view, query)
    keyed.upsert([{"id": 21, "cust": None, "amount": 5.0, "note": "z"}])
    assert view.refresh().whole_because is None
    require_right(spark, view, query)


def test_a_parts_refusal_names_it(spark, orders):
    with pytest.raises(InvalidOptionError, match="a window function: ROW_NUMBER"):
        sh.materialize(
            spark, "gold.refused", f"SELECT row_number() OVER (PARTITION BY id ORDER BY qty) AS r FROM {orders.name}"
        )
    with pytest.raises(InvalidOptionError, match="not known to be deterministic: RAND"):
        sh.materialize(spark, "gold.refused", f"SELECT rand() AS r FROM {orders.name}")


def test_the_whole_query_where_it_is_asked_for(spark, orders):
    orders.append([order(1), order(2), order(3, 2)])
    query = f"SELECT id, row_number() OVER (PARTITION BY cust ORDER BY id) AS r FROM streamhouse.{orders.name}"
    view = sh.materialize(spark, "gold.whole", query, mode="full")
    require_right(spark, view, query)
    orders.append([order(0)])
    assert view.refresh().rows_written == 3
    assert view.refresh().changed is False
    require_right(spark, view, query)
    with pytest.raises(TableExistsError, match="another query"):
        sh.materialize(spark, "gold.whole", query)


def test_a_source_that_was_emptied_is_computed_anew_once(spark, orders):
    orders.append([order(1), order(2, 2)])
    view, query = kept(spark, orders, "SELECT cust, count(*) AS n FROM SOURCE GROUP BY cust")
    orders.truncate()
    orders.append([order(3, 5)])
    assert "was truncated" in view.refresh().whole_because
    require_right(spark, view, query)
    orders.append([order(4, 5)])
    assert view.refresh().whole_because is None
    require_right(spark, view, query)


def test_what_a_view_is_not(spark, wh, orders, keyed):
    """Each refusal comes before anything is written, and its advice leads on."""
    query = f"SELECT cust, count(*) AS n FROM streamhouse.{orders.name} GROUP BY cust"
    with pytest.raises(TableExistsError, match="is not a materialized table"):
        sh.materialize(spark, keyed.name, query)
    with pytest.raises(InvalidOptionError, match=r"reads gold\.not_it itself"):
        sh.materialize(spark, "gold.not_it", "SELECT * FROM gold.not_it")
    with pytest.raises(InvalidOptionError, match=r"materialize sets the property"):
        sh.materialize(spark, "gold.not_it", query, properties={"primary.key": "cust"})
    with pytest.raises(sh.InvalidNameError, match="without a suffix"):
        sh.materialize(spark, "gold.not_it", f"SELECT * FROM {keyed.name}.`x$lake`")
    with pytest.raises(sh.TableNotFoundError):
        wh.table("gold.not_it")

    view = sh.materialize(spark, "gold.is_it", query)
    with pytest.raises(TableExistsError, match="with another query or mode; drop it first"):
        sh.materialize(spark, "gold.is_it", query, mode="full")
    orders.append([order(1)])
    assert view.refresh().rows_written == 1
    wh.drop_table("gold.is_it")
    assert sh.materialize(spark, "gold.is_it", query, mode="full").describe().mode == "full"


def test_a_description_shows_how_far_a_view_is_behind(spark, wh, orders):
    orders.append([order(1)])
    view, _ = kept(spark, orders, "SELECT cust, count(*) AS n FROM SOURCE GROUP BY cust")
    first = orders.refresh().version
    orders.append([order(2)])
    assert view.describe().commits_behind == {orders.name: 1}
    view.refresh()
    rows = spark.sql(f"SELECT * FROM streamhouse.gold.`{view.name.split('.')[1]}$lineage`").collect()
    assert [tuple(row)[1:] for row in rows] == [(orders.name, first, None), (orders.name, first + 1, None)]
    assert rows[-1].version == view.table.refresh().version
    found = view.describe()
    assert (found.refreshes, found.commits_behind, found.mode) == (2, {orders.name: 0}, "incremental")


def test_joins_of_two_tables_that_both_change(spark, orders, keyed):
    orders.append([order(1, 1), order(2, 2), order(3, 3), order(4, None)])
    keyed.upsert([{"id": i, "cust": i, "amount": 1.0, "note": f"n{i}"} for i in (1, 2)])
    select = f"FROM SOURCE o LEFT JOIN streamhouse.{keyed.name} k ON o.cust = k.id"
    rows, its = kept(spark, orders, f"SELECT o.id, o.amount, k.note {select}")
    query = f"WITH j AS (SELECT k.note AS note, o.qty AS qty {select}) SELECT note, sum(qty) AS q FROM j GROUP BY note"
    query = query.replace("SOURCE", f"streamhouse.{orders.name}")
    groups = sh.materialize(spark, f"{rows.name}_groups", query)
    for _ in range(2):
        orders.append([order(5, 2), order(6, 3)])
        keyed.delete([1])
        keyed.upsert(
            [{"id": 3, "cust": 3, "amount": 1.0, "note": "n3"}, {"id": 2, "cust": 3, "amount": 1.0, "note": None}]
        )
        assert (rows.refresh().whole_because, groups.refresh().whole_because) == (None, None)
        require_right(spark, rows, its)
        require_right(spark, groups, query)


def test_a_slower_refresh_changes_nothing(spark, orders, monkeypatch):
    """Another refresh commits between the computation and the commit of this one, which begins anew."""
    orders.append([order(1)])
    view, query = kept(spark, orders, "SELECT cust, count(*) AS n FROM SOURCE GROUP BY cust")
    orders.append([order(2), order(3, 2)])
    real, calls = refresh_commit.commit_step, []

    def after_another(*args):
        calls.append(args)
        if len(calls) % 2:
            orders.append([order(9)])
            assert view.refresh().changed
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(refresh, "commit_step", after_another)
        assert view.refresh().changed is False
    require_right(spark, view, query)
    assert view.describe().refreshes == 2

    monkeypatch.setattr(refresh, "commit_step", lambda *_: False)
    orders.append([order(4)])
    with pytest.raises(sh.CommitConflictError, match="from one place"):
        view.refresh()
    monkeypatch.undo()
    assert view.refresh().rows_written == 1
    require_right(spark, view, query)


def test_a_large_source_is_refreshed_in_steps(spark, orders, keyed):
    """Rows of the lake, one large commit of the log, and a table with a key; each step is Spark's answer of then."""
    for first in range(0, 40, 10):
        orders.append([order(first + number, number % 5) for number in range(10)])
    tier(orders)
    orders.log.commit(lambda state, _: (Trim({b: state.lake_offset(b) for b in state.buckets}),))
    orders.append([order(number, number % 5) for number in range(30)])
    for first in range(0, 6, 2):
        keyed.upsert([{"id": first + i, "cust": i, "amount": float(first), "note": "a"} for i in range(2)])
    query = (
        f"SELECT k.amount, count(*) AS n, max(o.id) AS m FROM streamhouse.{orders.name} o "
        f"JOIN streamhouse.{keyed.name} k ON o.cust = k.id GROUP BY k.amount"
    )
    view = sh.materialize(spark, f"gold.s_{orders.name.split('_')[-1]}", query, step_rows=20)
    require_right(spark, view, query)
    steps = view.table.inspect.lineage().to_pylist()
    assert [row["source_offsets"] is None for row in steps if row["source"] == orders.name] == [False] * 4 + [True]
    table, name = f"streamhouse.{view.name}", f"streamhouse.{orders.name}"
    for step in steps[:-2]:
        if step["source_offsets"] is None:
            continue
        part = f"{name} VERSION AS OF {step['source_version']} WITH ('endingOffsets' = '{step['source_offsets']}')"
        of_step = spark.sql(query.replace(name, f"(SELECT * FROM {part})")).toArrow().sort_by("amount")
        then = spark.sql(f"SELECT amount, n, m FROM {table} VERSION AS OF {step['version']}").toArrow()
        assert then.sort_by("amount").to_pylist() == of_step.to_pylist()
    orders.append([order(number, number % 5) for number in range(50)])
    keyed.delete([0, 3])
    report = view.refresh()
    assert (report.steps, report.whole_because) == (3, None)
    require_right(spark, view, query)


def test_a_view_of_a_view_is_refreshed_from_its_changes(spark, orders):
    """A view is a table: another one is kept from its changes, also behind a computation of the whole query."""
    orders.append([order(1), order(2), order(3, 2)])
    view, query = kept(spark, orders, "SELECT cust, count(*) AS n FROM SOURCE GROUP BY cust")
    over = f"SELECT n, count(*) AS custs FROM streamhouse.{view.name} GROUP BY n"
    above = sh.materialize(spark, f"{view.name}_above", over)
    orders.append([order(4, 2), order(5, 3)])
    view.refresh()
    assert above.refresh().whole_because is None
    require_right(spark, above, over)
    orders.truncate()
    orders.append([order(4, 2), order(5, 3), order(6, 3)])
    assert "was truncated" in view.refresh().whole_because
    assert above.refresh().whole_because is None
    require_right(spark, view, query)
    require_right(spark, above, over)


def test_the_service_refreshes_what_is_due(spark, wh, orders):
    orders.append([order(1)])
    view, query = kept(spark, orders, "SELECT cust, count(*) AS n FROM SOURCE GROUP BY cust")
    with pytest.raises(InvalidOptionError, match="the warehouse of the session's catalog"):
        sh.RefreshService(spark, "/elsewhere")
    service, stop = sh.RefreshService(spark, wh.url, [view.name, orders.name]), threading.Event()
    thread = threading.Thread(target=service.run, args=(stop,))
    orders.append([order(2), order(3, 2)])
    thread.start()
    try:
        wait_for(lambda: any(found.refreshes for found in service.status()), "a refresh")
    finally:
        stop.set()
        thread.join()
    require_right(spark, view, query)
    (found,) = service.status()
    assert (found.name, found.error, found.last.rows_written) == (view.name, None, 2)


QUERIES = (
    "SELECT k.cust AS c, sum(qty) AS q, count(note) AS n FROM SOURCE o FULL JOIN KEYED k ON o.cust = k.id GROUP BY 1",
    "SELECT DISTINCT cust, qty FROM SOURCE WHERE EXISTS (SELECT 1 FROM KEYED k WHERE k.id = cust AND k.cust > 0)",
    "SELECT o.id, o.qty FROM SOURCE o WHERE NOT EXISTS (SELECT 1 FROM KEYED k WHERE k.cust = o.cust)",
    "SELECT cust AS x, 1 AS side FROM SOURCE UNION ALL SELECT cust, 2 FROM KEYED UNION ALL SELECT cust, 1 FROM KEYED",
    "SELECT max(s) AS m, count(*) AS n FROM (SELECT note, sum(cust) AS s FROM KEYED GROUP BY note) g WHERE s > 1",
    "SELECT date_trunc('HOUR', at) AS h, min(qty) AS lo, stddev(qty) AS d FROM SOURCE GROUP BY date_trunc('HOUR', at)",
    "SELECT a.id, b.id AS other FROM KEYED a JOIN KEYED b ON a.cust = b.cust AND a.id < b.id",
    "SELECT id FROM SOURCE WHERE cust IN (SELECT cust FROM KEYED) AND qty > 1",
)


@pytest.mark.parametrize("number", [pytest.param(n, marks=[pytest.mark.long] if n > 3 else []) for n in range(8)])
def test_views_equal_their_query_after_random_changes(spark, orders, keyed, number):
    """After each refresh the view is Spark's own answer, and no refresh needed the whole query."""
    chance = random.Random(number)
    fill(orders, keyed)
    view, query = kept(spark, orders, QUERIES[number].replace("KEYED", f"streamhouse.{keyed.name}"))
    for _ in range(4):
        change(chance, orders, keyed)
        assert view.refresh().whole_because is None
        require_right(spark, view, query)


def a_lost_retraction(patched):
    real = temp_views.TempViews._read_delta

    def came_alone(self, *args):
        return real(self, *args).where("_change_type IN ('insert', 'update_after')")

    patched.setattr(temp_views.TempViews, "_read_delta", came_alone)


def a_group_that_should_vanish(patched):
    real = refresh_commit.commit_step

    def without_gone(view, step, rows, gone):
        return real(view, step, rows.filter(pc.invert(gone)), gone.filter(pc.invert(gone)))

    patched.setattr(refresh, "commit_step", without_gone)


def a_minimum_that_is_not_computed_again(patched):
    real = delta_sql.DeltaSqlWriter.rows_of_groups
    patched.setattr(
        delta_sql.DeltaSqlWriter, "rows_of_groups", lambda self, node, _, *touched: real(self, node, "old", *touched)
    )


@pytest.mark.parametrize(
    "bug",
    [a_lost_retraction, a_group_that_should_vanish, a_minimum_that_is_not_computed_again],
    ids=lambda b: b.__name__,
)
def test_planted_bugs_are_found(spark, keyed, bug, monkeypatch):
    keyed.upsert([{"id": i, "cust": i % 3, "amount": float(i), "note": "a"} for i in range(6)])
    view, query = kept(spark, keyed, "SELECT cust, min(amount) AS lo, count(*) AS n FROM SOURCE GROUP BY cust")
    keyed.delete([0, 3])
    keyed.upsert([{"id": 1, "cust": 2, "amount": -1.0, "note": None}])
    monkeypatch.setattr(local_reads, "LOCAL_ROWS_MAX", -1)  # Spark reads the changes, and groups are computed again
    monkeypatch.setattr(aggregates.IncrementalAggregate, "of", lambda _: None)
    with monkeypatch.context() as patched:
        bug(patched)
        view.refresh()
        with pytest.raises(AssertionError):
            require_right(spark, view, query)
