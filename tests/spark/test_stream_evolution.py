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
@pytest.mark.parametrize(("path", "suffix"), [(plain, ""), (catalog, ""), (catalog, "$binlog")])
def test_a_query_ends_where_a_new_column_begins_and_a_restart_goes_on_with_it(spark, wh, checkpoint, path, suffix):
    name = f"evolved.{path.__name__}{len(suffix)}"
    key = ["id"] if suffix else []
    source = wh.create_table(f"{name}_from", COLUMNS, buckets=2, primary_key=key, properties={"bucket.key": "id"})
    target = wh.create_table(f"{name}_to", COLUMNS)
    put = source.upsert if key else source.append

    def stream():
        found = path(spark, wh, f"{source.name}{suffix}")
        return found.select("after.*") if suffix else found

    running = stream().writeStream.format("streamhouse").option("warehouse", wh.url)
    running = running.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds")
    query = running.start(target.name)
    try:
        if not suffix:  # else the tasks' reader is made when the table has the column already
            put(rows(50))
        query.processAllAvailable()
        source.add_columns("note string")
        query.processAllAvailable()
        put([{**row, "note": "x"} for row in rows(50, 50)])
        with pytest.raises(
            PySparkException, match=r"COLUMNS_ADDED: .*: note came to the columns.*start the query again"
        ):
            query.awaitTermination()
    finally:
        query.stop()
    before = [] if suffix else list(range(50))
    assert ids(target) == before
    put([{**row, "note": "y"} for row in rows(50, 100)])
    with pytest.raises(
        PySparkException, match=r"COLUMNS_ADDED: .*this query does not have note.*make the DataFrame again"
    ):
        running.start(target.name).awaitTermination()
    for _ in range(1 if suffix else 2):  # what it knows ends it no more
        drain(stream(), wh, target.name, checkpoint, mergeSchema="true")
        found = target.to_arrow(columns=["id", "note"]).sort_by("id").to_pydict()
        expected = [*before, *range(50, 150)]
        assert found == {"id": expected, "note": [None if i < 50 else "x" if i < 100 else "y" for i in expected]}
