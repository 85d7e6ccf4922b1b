"""Writes of Spark to a materialized table are refused before a job begins, and leave it as it is."""

from __future__ import annotations

import pytest

import streamhouse_spark as sh
from spark.view_histories import kept, order, require_right

pytestmark = pytest.mark.spark

STATEMENTS = {
    "insert": "INSERT INTO {view} VALUES ('x', 7, 7)",
    "overwrite": "INSERT OVERWRITE {view} VALUES ('x', 7, 7)",
    "update": "UPDATE {view} SET n = 7 WHERE cust = 1",
    "delete": "DELETE FROM {view} WHERE cust = 1",
    "merge": "MERGE INTO {view} v USING (SELECT 1 AS cust, 7L AS n) s ON v.cust = s.cust"
    " WHEN MATCHED THEN UPDATE SET n = s.n",
}


@pytest.fixture
def view(spark, wh):
    orders = wh.create_table("writes.o_1", "id BIGINT NOT NULL, cust INT, amount DECIMAL(12,2), qty INT, at TIMESTAMP")
    orders.append([order(1), order(2, 2), order(3, 2)])
    return kept(spark, orders, "SELECT cust, count(*) AS n FROM SOURCE GROUP BY cust")


def test_writes_to_a_materialized_table_are_refused(spark, wh, view, tmp_path):
    table, query = view
    name = f"streamhouse.{table.name}"
    before = table.table.refresh().version
    for statement in STATEMENTS.values():
        with pytest.raises(Exception, match="is a materialized table"):
            spark.sql(statement.format(view=name))
    frame = spark.table(name)
    with pytest.raises(Exception, match="is a materialized table"):
        frame.writeTo(name).append()
    source = wh.create_table("writes.stream", table.table.schema)
    source.append(table.table.to_arrow())
    stream = spark.readStream.table("streamhouse.writes.stream").writeStream.option("checkpointLocation", str(tmp_path))
    query_of_stream = stream.toTable(name)
    with pytest.raises(Exception, match="is a materialized table"):
        query_of_stream.processAllAvailable()
    query_of_stream.stop()
    events = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value", "value AS offset")
    with pytest.raises(sh.InvalidOptionError, match="is a materialized table"):
        sh.cdc(events, table.name, format="debezium-json", checkpoint=str(tmp_path / "cdc"))
    assert table.table.refresh().version == before
    require_right(spark, table, query)
