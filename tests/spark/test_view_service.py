"""Views that the tiering service's process keeps: beside its rounds, as fresh as they say, and not while paused."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest

import streamhouse_spark as sh
from kit.waiting import wait_for
from spark.view_histories import order, require_right
from streamhouse_spark.datasource.session import connect_catalog
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.service import tiering_service
from streamhouse_spark.views import refresh
from streamhouse_spark.views.create import create_view_table

pytestmark = pytest.mark.spark
GROUPS = "SELECT cust, count(*) AS n FROM SOURCE GROUP BY cust"


@pytest.fixture
def orders(wh, request):
    return wh.create_table(
        f"served.o_{abs(hash(request.node.name)):x}",
        "id BIGINT NOT NULL, cust INT, amount DECIMAL(12,2), qty INT, at TIMESTAMP",
        properties={"table.datalake.freshness": "300ms"},
    )


@contextmanager
def running(service):
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield
    finally:
        service.stop()
        thread.join(240)
    assert not thread.is_alive()


def tiered(table):
    state = table.refresh()
    return all(state.lake_offset(bucket) == log.end for bucket, log in state.buckets.items())


def often(spark, orders):
    """A view that is due five times a second."""
    query = GROUPS.replace("SOURCE", f"streamhouse.{orders.name}")
    properties = {"table.datalake.freshness": "300ms"}
    view = sh.materialize(
        spark, f"gold.{orders.name.partition('.')[2]}", query, freshness="200ms", properties=properties
    )
    return view, query


def test_one_process_tiers_tables_and_refreshes_views(spark, wh, orders):
    view, query = often(spark, orders)
    told = []
    service = sh.TieringService(spark, wh.url, [orders.name, view.name], views=True, on_view=told.append)
    assert service.view_status() == []
    with running(service):
        orders.append([order(1), order(2), order(3, 2)])
        wait_for(lambda: any(found.rows_written == 2 for found in service.view_status()), "a refresh")
        wait_for(lambda: tiered(orders) and tiered(view.table), "rounds of both")
        require_right(spark, view, query)

        view.pause()
        assert view.describe().paused
        wait_for(lambda: service.view_status()[0].doing == "paused", "the pause")
        number = view.describe().refreshes
        orders.append([order(4, 7)])
        wait_for(lambda: tiered(orders), "a round, which a pause of views does not concern")
        wait_for(lambda: service.view_status()[0].commits_behind > 0, "a look at what it lacks")
        assert service.view_status()[0].lag_ms > 0
        assert view.describe().refreshes == number

        view.resume()
        assert not view.describe().paused
        wait_for(lambda: view.describe().refreshes > number, "the refresh behind it")
    require_right(spark, view, query)
    assert [one.doing for one in told[:2]] == ["refreshing", "waiting"]
    assert told[1].last.changed
    assert (service.view_status()[0].error, service.view_status()[0].whole) == (None, 0)


def test_a_paused_view_is_refreshed_by_hand(spark, orders):
    view, query = often(spark, orders)
    view.pause()
    view.pause()
    orders.append([order(1)])
    assert view.refresh().changed
    assert view.describe().paused
    require_right(spark, view, query)


def test_neither_waits_for_the_other(spark, wh, orders, monkeypatch):
    """A refresh that takes long stops no round, and a round that takes long stops no refresh."""
    view, query = often(spark, orders)
    go_on, real_refresh, real_round = threading.Event(), refresh.refresh, tiering_service.tier_table
    held = threading.Event()

    def slow_refresh(*args):
        held.set()
        assert go_on.wait(240)
        return real_refresh(*args)

    def slow_round(*args):
        held.set()
        assert go_on.wait(240)
        return real_round(*args)

    service = sh.TieringService(spark, wh.url, [orders.name, view.name], views=True)
    try:
        with running(service):
            with monkeypatch.context() as patched:
                patched.setattr(refresh, "refresh", slow_refresh)
                orders.append([order(1)])
                assert held.wait(240)
                wait_for(lambda: tiered(orders), "a round beside the refresh")
                wait_for(lambda: service.view_status()[0].refreshing_ms > 0, "the refresh under way")
                assert service.view_status()[0].doing == "refreshing"
            go_on.set()
            wait_for(lambda: service.view_status()[0].refreshes == 1, "its end")
            held.clear()
            go_on.clear()
            monkeypatch.setattr(tiering_service, "tier_table", slow_round)
            orders.append([order(2, 9)])
            assert held.wait(240)
            wait_for(lambda: service.view_status()[0].refreshes == 2, "a refresh beside the round")
            require_right(spark, view, query)
            assert not tiered(orders)
            go_on.set()
            wait_for(lambda: tiered(orders), "the round")
    finally:
        go_on.set()


def test_a_backfill_in_steps_beside_a_view_that_is_to_be_fresh(spark, wh, caplog):
    """The other view comes between the steps whenever it is due. A stop ends the service behind a step, and another
    service makes the rest.
    """
    hot = {"table.datalake.enabled": "false"}
    visits, clicks = (wh.create_table(f"served.{name}", "cust INT", properties=hot) for name in ("visits", "clicks"))
    for _ in range(10):
        visits.append([{"cust": number % 4} for number in range(10)])
    query, of_clicks = (GROUPS.replace("SOURCE", f"streamhouse.{source.name}") for source in (visits, clicks))
    big = create_view_table(spark, connect_catalog(spark), "gold.of_visits", query, "1h", "incremental", hot, 20)
    fast = sh.materialize(spark, "gold.of_clicks", of_clicks, freshness="1s", properties=hot)
    seen, services = [], []

    def on_view(view):
        of = {status.name: status for status in services[-1].view_status()}
        if view.name != big.name:
            return
        seen.append((view.doing, view.steps, view.rows_behind, of[fast.name].refreshes))
        if view.doing == "refreshing":
            assert of[fast.name].due_ms >= of[big.name].due_ms, "the one that is due for longer goes first"
        if view.doing == "between steps":
            clicks.append([{"cust": view.steps}])
            time.sleep(0.4)
        if len(services) == 1 and view.steps == 2:
            services[-1].stop()

    def serve():
        services.append(sh.TieringService(spark, wh.url, [big.name, fast.name], views=True, on_view=on_view))
        return running(services[-1])

    with serve():
        for step in (1, 2):
            wait_for(lambda step=step: len(seen) == 2 * step, f"step {step}")
    steps = [told[1] for told in seen if told[0] == "between steps"]  # the rows behind may be those of the step before
    assert steps == [1, 2]
    assert (big.describe().refreshes, sum(big.describe().rows_behind.values())) == (2, 60)
    visits.append([{"cust": 3}])
    with serve():
        for step in (1, 2, 3, 4):
            wait_for(lambda step=step: len(seen) >= 4 + 2 * step, f"step {step}")
        wait_for(lambda: fast.table.to_arrow().num_rows == 3, "the clicks of all steps")
    status = next(found for found in services[-1].view_status() if found.name == big.name)
    assert (status.refreshes, status.last.steps, status.error) == (1, 4, None)
    amid = [refreshes for doing, _, _, refreshes in seen[4:] if doing == "between steps"]
    assert amid[-1] - amid[0] >= 1, "the other one came between"
    require_right(spark, big, query)
    require_right(spark, fast, of_clicks)
    assert "on_view failed" not in caplog.text


def test_a_session_of_another_warehouse_has_no_views_of_this(spark, tmp_path):
    other = sh.Warehouse(str(tmp_path / "other"))
    other.create_table("a.b", "k INT")
    sh.TieringService(spark, other.url)
    with pytest.raises(InvalidOptionError, match="the warehouse of the session's catalog"):
        sh.TieringService(spark, other.url, views=True)
