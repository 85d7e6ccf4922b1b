"""``mode("overwrite")`` and truncated tables: one atomic step, streams that say so, a lake that other engines read."""

from __future__ import annotations

import re

import duckdb
import pytest
from duckdb_extensions import import_extension
from pyiceberg.table import StaticTable
from pyspark.errors import PySparkException

from spark.session import COLUMNS, append, drain, ids, load, load_stream, rows, sink
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark


@pytest.fixture
def table(wh, request):
    name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")
    return wh.create_table(f"overwrite.{name}", COLUMNS, buckets=3, properties={"bucket.key": "id"})


@pytest.fixture
def copied(wh, table):
    return wh.create_table(f"{table.name}_copied", COLUMNS)


def overwrite(frame, wh, name, **options):
    frame.write.format("streamhouse").option("warehouse", wh.url).options(**options).mode("overwrite").save(name)


def actions(table):
    return table.inspect.commits()["actions"].to_pylist()


@pytest.mark.always
@pytest.mark.spark41
def test_all_rows_are_replaced_in_one_record(spark, wh, table):
    table.append(rows(50))
    overwrite(spark.range(100, 200, 1, 4), wh, table.name)
    assert ids(table) == list(range(100, 200))
    assert load(spark, wh, table.name).count() == 100
    assert actions(table)[1:] == ["append", "truncate, append"]
    overwrite(spark.range(0), wh, table.name)
    assert load(spark, wh, table.name).count() == 0
    append(spark.range(3), wh, table.name)
    assert ids(table) == [0, 1, 2]


def test_a_table_is_overwritten_by_its_own_rows(spark, wh, table):
    table.append(rows(100))
    overwrite(load(spark, wh, table.name).where("id % 2 = 0"), wh, table.name)
    assert ids(table) == list(range(0, 100, 2))


def test_a_failing_task_changes_nothing(spark, wh, table):
    table.append(rows(3))
    frame = spark.range(0, 100, 1, 4).selectExpr("if(id = 77, raise_error('no luck'), id) id")
    with pytest.raises(PySparkException, match="no luck"):
        overwrite(frame, wh, table.name)
    with pytest.raises(PySparkException, match="SCHEMA_MISMATCH"):
        overwrite(spark.range(3).selectExpr("id", "1 unknown"), wh, table.name)
    assert ids(table) == [0, 1, 2]


def test_a_transaction_is_stored_once(spark, wh, table):
    overwrite(spark.range(5), wh, table.name, txnAppId="nightly", txnVersion="1")
    append(spark.range(5, 7), wh, table.name)
    overwrite(spark.range(5), wh, table.name, txnAppId="nightly", txnVersion="1")
    assert ids(table) == list(range(7))
    overwrite(spark.range(0), wh, table.name, txnAppId="nightly", txnVersion="2")
    assert ids(table) == []


@pytest.mark.parametrize("had_read_all", [True, False], ids=["that had read all", "that lagged"])
@pytest.mark.long
def test_a_stream_fails_with_the_message(spark, wh, table, copied, checkpoint, had_read_all):
    table.append(rows(10))
    drain(load_stream(spark, wh, table.name), wh, copied.name, checkpoint)
    if not had_read_all:
        table.append(rows(10, 10))
    table.truncate()
    table.append(rows(5, 100))
    text = rf"OFFSETS_TRIMMED: {table.name} was truncated or overwritten by commit \d+.*failOnDataLoss=false"
    with pytest.raises(PySparkException, match=text):
        sink(load_stream(spark, wh, table.name), wh, copied.name, checkpoint).awaitTermination()
    assert ids(copied) == list(range(10))
    drain(load_stream(spark, wh, table.name, failOnDataLoss="false"), wh, copied.name, checkpoint)
    assert ids(copied) == [*range(10), *range(100, 105)]
    table.append(rows(5, 200))
    drain(load_stream(spark, wh, table.name), wh, copied.name, checkpoint)
    assert ids(copied) == [*range(10), *range(100, 105), *range(200, 205)]


@pytest.mark.long
def test_a_stream_that_runs_fails_at_once(spark, wh, table, copied, checkpoint):
    table.append(rows(10))
    stream = load_stream(spark, wh, table.name).writeStream.format("streamhouse").option("warehouse", wh.url)
    query = (
        stream.option("checkpointLocation", checkpoint).trigger(processingTime="100 milliseconds").start(copied.name)
    )
    try:
        query.processAllAvailable()
        table.truncate()
        with pytest.raises(PySparkException, match="was truncated or overwritten"):
            query.awaitTermination()
    finally:
        query.stop()


@pytest.mark.long
def test_a_new_stream_begins_with_the_new_rows(spark, wh, table, copied, checkpoint):
    table.append(rows(10))
    tier(spark, wh.url, [table.name])
    table.overwrite(rows(10, 100))
    drain(load_stream(spark, wh, table.name, startingOffsets="full"), wh, copied.name, checkpoint)
    assert ids(copied) == list(range(100, 110))
    assert load(spark, wh, table.name, startingOffsets='{"0": -2, "1": -2, "2": -2}').count() == 10
    lost = {"startingOffsets": '{"0": 0}'}
    with pytest.raises(PySparkException, match=r"OFFSETS_TRIMMED: bucket 0 .* was truncated or overwritten by commit"):
        load(spark, wh, table.name, **lost).count()
    assert load(spark, wh, table.name, **lost, failOnDataLoss="false").count() == 10
    moment = str(table.state.created_ms)
    assert load(spark, wh, table.name, startingTimestamp=moment).count() == 10


@pytest.mark.long
def test_trimmed_rows_behind_the_truncation_are_streamed_from_the_lake(spark, wh, table, copied, checkpoint):
    table.alter_properties({"table.log.ttl": "1ms"})
    table.append(rows(10))
    tier(spark, wh.url, [table.name])
    table.overwrite(rows(30, 100))
    tier(spark, wh.url, [table.name])
    table.maintain()
    assert all(log.start > table.state.first_offset(b) for b, log in table.refresh().buckets.items())
    drain(load_stream(spark, wh, table.name), wh, copied.name, checkpoint)
    assert ids(copied) == list(range(100, 130))
    assert load(spark, wh, f"{table.name}$changelog").count() == 30


def test_complete_output_stays_refused(spark, wh, table, copied, checkpoint):
    counted = load_stream(spark, wh, table.name).groupBy("id").count().selectExpr("id", "cast(count AS STRING) name")
    writer = counted.writeStream.format("streamhouse").option("warehouse", wh.url).outputMode("complete")
    with pytest.raises(PySparkException, match="output mode complete would append all results again"):
        writer.option("checkpointLocation", checkpoint).start(copied.name).awaitTermination()


def test_the_lake_follows_and_everybody_reads_it(spark, wh, table):
    import_extension("avro")
    import_extension("iceberg")
    duck = duckdb.connect()
    duck.load_extension("avro")
    duck.load_extension("iceberg")
    location = f"{wh.url}/{table.state.lake_location}"

    def seen():
        return {
            "spark": sorted(r.id for r in load(spark, wh, f"{table.name}$lake").collect()),
            "duckdb": [r[0] for r in duck.execute(f"SELECT id FROM iceberg_scan('{location}') ORDER BY id").fetchall()],
            "pyiceberg": sorted(StaticTable.from_metadata(location).scan().to_arrow()["id"].to_pylist()),
        }

    table.append(rows(20))
    tier(spark, wh.url, [table.name])
    old = table.lake.newest().id
    table.truncate()
    report = tier(spark, wh.url, [table.name])[table.name]
    assert (report.rows, len(report.snapshots)) == (0, 1)
    assert seen() == {"spark": [], "duckdb": [], "pyiceberg": []}
    overwrite(spark.range(100, 130), wh, table.name)
    tier(spark, wh.url, [table.name])
    expected = list(range(100, 130))
    assert seen() == {"spark": expected, "duckdb": expected, "pyiceberg": expected}
    assert ids(table) == expected
    for name in (table.name, f"{table.name}$lake"):
        before = load(spark, wh, name, asOfLakeSnapshot=str(old))
        assert sorted(r.id for r in before.collect()) == list(range(20)), "older snapshots stay"
    snapshots = duck.execute(f"SELECT count(*) FROM iceberg_scan('{location}', snapshot_from_id={old})").fetchone()
    assert snapshots == (20,)
