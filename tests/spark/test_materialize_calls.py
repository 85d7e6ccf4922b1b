"""Materialized tables by ``CALL``: a process of its own works in the statement's session."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kit.waiting import wait_for
from spark.session import COLUMNS
from spark.test_procedure_jobs import Called, append_many, held, jobs_in
from spark.view_histories import order
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.table.refresh_commit import last_refresh

pytestmark = [pytest.mark.spark, pytest.mark.spark41]


@pytest.fixture
def orders(wh: Warehouse, request) -> Table:
    name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")
    return wh.create_table(
        f"calls.{name}", "id BIGINT NOT NULL, cust INT, amount DECIMAL(12,2), qty INT, at TIMESTAMP", buckets=2
    )


def call(spark, text: str) -> dict[str, Any]:
    (row,) = spark.sql(f"CALL streamhouse.system.{text}").collect()
    return row.asDict()


def test_a_view_is_made_and_refreshed(spark, wh, orders):
    orders.append([order(1), order(2, None), order(3, 2)])
    view = f"{orders.name}_view"
    query = f"SELECT cust, sum(amount) AS total FROM {orders.name} GROUP BY cust"
    made = call(spark, f"materialize(table => '{view}', query => '{query}', freshness => '10s', step_rows => 100)")
    assert (made["table"], made["changed"], made["rows_deleted"]) == (view, True, 0)
    assert made["rows_written"] == 3
    assert call(spark, f"materialize('{view}', '{query}')")["changed"] is False
    orders.append([order(4, 7, "9.99")])
    refreshed = call(spark, f"refresh('{view}')")
    assert refreshed == {
        "table": view, "changed": True, "rows_written": 1, "rows_deleted": 0, "whole_because": None
    }  # fmt: skip
    expected = {tuple(row) for row in spark.sql(query.replace("calls.", "streamhouse.calls.")).collect()}
    assert {tuple(row) for row in spark.sql(f"SELECT cust, total FROM streamhouse.{view}").collect()} == expected
    assert spark.sql("SELECT 1").collect()[0][0] == 1, "the session goes on"
    assert call(spark, f"pause('{view}')") == {"table": view, "changed": True}
    assert call(spark, f"pause('{view}')") == {"table": view, "changed": False}
    assert call(spark, f"resume('{view}')") == {"table": view, "changed": True}


def test_what_is_wrong_is_said_as_in_python(spark, wh, orders):
    query = f"SELECT row_number() OVER (PARTITION BY id ORDER BY qty) AS r FROM {orders.name}"
    with pytest.raises(Exception, match="a window function: ROW_NUMBER"):
        call(spark, f"materialize('calls.refused', '{query}')")
    with pytest.raises(Exception, match=f"{orders.name} is not a materialized table"):
        call(spark, f"refresh('{orders.name}')")
    with pytest.raises(Exception, match=r"(?i)no_such_column"):
        call(spark, f"materialize('calls.refused', 'SELECT no_such_column FROM {orders.name}')")
    with pytest.raises(Exception, match="mode is 'half'"):
        call(spark, f"materialize('calls.refused', 'SELECT id FROM {orders.name}', mode => 'half')")
    assert "calls.refused" not in wh.tables()


@pytest.mark.classic
@pytest.mark.parametrize("how", ["group", "tag"])
def test_a_cancelled_statement_ends_its_process_and_writes_nothing(spark, wh, how):
    table = wh.create_table(f"calls.cancelled_{how}", COLUMNS, buckets=3, properties={"bucket.key": "id"})
    append_many(table)
    view = f"calls.of_cancelled_{how}"
    text = f"materialize('{view}', 'SELECT name, count(*) AS n, sum(id) AS s FROM {table.name} GROUP BY name')"
    with jobs_in(spark, f"view {how}"), held(table) as segment:
        called = Called(spark, text, f"view {how}")
        wait_for(segment.is_waited_for, "a read of a segment")
        if how == "group":
            spark.sparkContext.cancelJobGroup(f"view {how}")
        else:
            spark.interruptAll()
        called.thread.join(120)
        assert not called.thread.is_alive()
        assert "SPARK_JOB_CANCELLED" in str(called.error)
        assert "Traceback" not in str(called.error)
    assert last_refresh(wh.table(view).state)[1] is None, "the table is made, and no refresh has committed"
    assert call(spark, text)["rows_written"] == 40_000
