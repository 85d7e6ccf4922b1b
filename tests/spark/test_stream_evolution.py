"""Streams with ``schemaEvolutionMode=addNewColumns``: they end where new columns begin, and go on there with them.

Their sink gets the columns by ``mergeSchema``.
"""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark.session import COLUMNS, drain, ids, load_stream, rows

pytestmark = pytest.mark.spark


def plain(spark, wh, name):
    return load_stream(spark, wh, name, schemaEvolutionMode="addNewColumns")


def catalog(spark, _wh, name):
    database, _, table = name.partition(".")
    return spark.readStream.option("schemaEvolutionMode", "addNewColumns").table(f"streamhouse.{database}.`{table}`")


@pytest.mark.spark41
@pytest.mark.parametrize("stream", [plain, catalog])
def test_a_query_ends_where_a_new_column_begins_and_a_restart_goes_on_with_it(spark, wh, checkpoint, stream):
    name = f"evolved.{stream.__name__}"
    source = wh.create_table(f"{name}_from", COLUMNS, buckets=2, properties={"bucket.key": "id"})
    target = wh.create_table(f"{name}_to", COLUMNS)
    running = stream(spark, wh, source.name).writeStream.format("streamhouse").option("warehouse", wh.url)
    running = running.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds")
    query = running.start(target.name)
    try:
        source.append(rows(50))
        query.processAllAvailable()
        source.add_columns("note string")
        source.append([{**row, "note": "x"} for row in rows(50, 50)])
        with pytest.raises(PySparkException, match=r"COLUMNS_ADDED: .*: columns note were added.*restart the query"):
            query.awaitTermination()
    finally:
        query.stop()
    assert ids(target) == list(range(50))
    source.append([{**row, "note": "y"} for row in rows(50, 100)])
    if stream is plain:  # Spark Connect resolves the names of a catalog anew
        with pytest.raises(PySparkException, match=r"COLUMNS_ADDED: .*does not read note.*create the DataFrame again"):
            running.start(target.name).awaitTermination()
    for _ in range(2):  # what it knows ends it no more
        drain(stream(spark, wh, source.name), wh, target.name, checkpoint, mergeSchema="true")
        found = target.to_arrow(columns=["id", "note"]).sort_by("id").to_pydict()
        assert found == {"id": list(range(150)), "note": [None] * 50 + ["x"] * 50 + ["y"] * 50}


@pytest.mark.long
def test_tasks_of_a_binlog_stream_read_on_after_an_addition(spark, wh, tmp_path):
    """Spark makes their reader with the first batch, by the columns that the DataFrame has."""
    source = wh.create_table("evolved.binlog", COLUMNS, primary_key=["id"])
    stream = load_stream(spark, wh, f"{source.name}$binlog").select("after.*")
    source.add_columns("note string")
    source.upsert([{**row, "note": "x"} for row in rows(10)])
    target = wh.create_table("evolved.binlog_to", COLUMNS)
    drain(stream, wh, target.name, str(tmp_path / "checkpoint"))
    assert ids(target) == list(range(10))
