"""Streams that run while their table gets columns or another name."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark.session import COLUMNS, drain, ids, load, load_stream, rows
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark


@pytest.fixture
def tables(wh, request):
    name = request.node.name.removeprefix("test_").split("[")[0]
    properties = {"bucket.key": "id", "table.log.ttl": "1ms"}
    source = wh.create_table(f"alter.{name}_from", COLUMNS, buckets=2, properties=properties)
    return source, wh.create_table(f"alter.{name}_to", COLUMNS)


def running(stream, wh, name, checkpoint):
    writer = stream.writeStream.format("streamhouse").option("warehouse", wh.url)
    return writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start(name)


@pytest.mark.spark41
def test_a_running_query_keeps_its_columns_and_a_restarted_one_has_the_new_ones(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(50))
    query = running(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    try:
        query.processAllAvailable()
        source.add_columns("note string")
        source.append([{**row, "note": "x"} for row in rows(50, 50)])
        tier(spark, wh.url, [source.name])
        source.maintain()
        source.append([{**row, "note": "y"} for row in rows(50, 100)])
        query.processAllAvailable()
    finally:
        query.stop()
    assert ids(target) == list(range(150))
    assert target.schema.names == ["id", "name", "amount"]

    source.append([{**row, "note": "z"} for row in rows(50, 150)])
    with pytest.raises(PySparkException, match="column 'note' of the rows is not in"):
        drain(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    target.add_columns("note string")
    drain(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    found = target.to_arrow(columns=["id", "note"]).sort_by("id").to_pydict()
    assert found == {"id": list(range(200)), "note": [None] * 150 + ["z"] * 50}


def test_a_running_query_writes_on_into_a_table_that_got_a_column(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(20))
    query = running(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    try:
        query.processAllAvailable()
        target.add_columns("note string, at timestamp")
        target.append([{"id": 1000, "note": "x"}])
        source.append(rows(20, 20))
        query.processAllAvailable()
    finally:
        query.stop()
    assert ids(target) == [*range(40), 1000]
    tier(spark, wh.url, [target.name])
    assert load(spark, wh, f"{target.name}$lake").where("note IS NOT NULL").count() == 1


@pytest.mark.long
def test_a_full_stream_reads_rows_from_before_and_after_out_of_the_lake(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(20))
    tier(spark, wh.url, [source.name])
    source.add_columns("note string")
    target.add_columns("note string")
    source.append([{**row, "note": "x"} for row in rows(20, 20)])
    tier(spark, wh.url, [source.name])
    source.maintain()
    assert all(log.start == log.end > 0 for log in source.refresh().buckets.values())
    drain(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    assert target.to_arrow(columns=["note"])["note"].to_pylist().count("x") == 20
    assert ids(target) == list(range(40))


@pytest.mark.long
def test_a_query_whose_source_is_renamed_ends_with_the_new_name_and_goes_on_under_it(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(20))
    query = running(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    old, new = source.name, f"{source.name}_renamed"
    try:
        query.processAllAvailable()
        wh.rename_table(old, new)
        with pytest.raises(PySparkException, match=f"was renamed to {new}"):
            query.awaitTermination()
    finally:
        query.stop()
    source.append(rows(20, 20))
    drain(load_stream(spark, wh, new), wh, target.name, checkpoint)
    assert ids(target) == list(range(40))


@pytest.mark.long
def test_a_query_whose_sink_is_renamed_ends_with_the_new_name_and_goes_on_under_it(spark, wh, tables, checkpoint):
    source, target = tables
    source.append(rows(20))
    query = running(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    new = f"{target.name}_renamed"
    try:
        query.processAllAvailable()
        wh.rename_table(target.name, new)
        source.append(rows(20, 20))
        with pytest.raises(PySparkException, match=f"was renamed to {new}"):
            query.awaitTermination()
    finally:
        query.stop()
    drain(load_stream(spark, wh, source.name), wh, new, checkpoint)
    assert ids(target) == list(range(40))
