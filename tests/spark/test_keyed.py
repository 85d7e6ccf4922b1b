"""Tables with a primary key on Spark: upserts, row kinds, partial updates, streams and changes, without the catalog."""

from __future__ import annotations

import random
import re

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from streamhouse_spark.kv import kv_snapshots
from streamhouse_spark.spark import tier
from streamhouse_spark.table.system_views import open_view

pytestmark = pytest.mark.spark


@pytest.fixture
def table(wh, request):
    name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")[:60]
    return wh.create_table(f"keyed.{name}", "id BIGINT, name STRING, n INT", primary_key=["id"], buckets=3)


@pytest.fixture
def write(warehouse_url, table):
    def save(frame, **options):
        writer = frame.write.format("streamhouse").option("warehouse", warehouse_url).mode("append")
        writer.options(**options).save(table.name)

    return save


@pytest.fixture
def read(spark, warehouse_url):
    def load(name, **options):
        return spark.read.format("streamhouse").option("warehouse", warehouse_url).options(**options).load(name)

    return load


def found(table):
    return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())


def numbered(spark, count, text="n"):
    return spark.range(count).select(
        "id", f.concat(f.lit(text), "id").alias("name"), f.col("id").cast("int").alias("n")
    )


@pytest.mark.spark41
def test_upserts_replace_rows_of_their_keys(spark, table, write, read):
    write(numbered(spark, 100))
    write(numbered(spark, 50, "m").where("id >= 10"))
    expected = [(i, f"m{i}" if 10 <= i < 50 else f"n{i}", i) for i in range(100)]
    assert found(table) == expected
    assert sorted(tuple(r) for r in read(table.name).collect()) == expected
    assert read(table.name).where("id < 20").count() == 20
    assert table.lookup([7, 11])["name"].to_pylist() == ["n7", "m11"]
    assert [p for p in table.storage.list_names(f"tables/{table.uuid}/segments/") if p.endswith(".arrow")] == []


@pytest.mark.spark41
def test_row_kinds_choose_upserts_deletions_and_partial_updates(spark, table, write):
    write(numbered(spark, 6))
    changes = spark.createDataFrame(
        [(0, None, "-D"), (1, "b", "-U"), (1, "B", "+U"), (2, "c", "U"), (9, None, "delete"), (10, "k", "insert")],
        "id long, name string, kind string",
    ).coalesce(1)
    write(changes.replace("U", "u"), rowKindColumn="KIND", partialUpdate="true")
    rows = found(table)
    # A partial deletion takes the columns that it names; the row goes when no other has a value.
    assert rows == [(0, None, 0), (1, "B", 1), (2, "c", 2), (3, "n3", 3), (4, "n4", 4), (5, "n5", 5), (10, "k", None)]
    write(spark.createDataFrame([(0, "d")], "id long, op string"), rowKindColumn="op")
    assert found(table) == rows[1:]


def test_a_bad_upsert_changes_nothing(spark, wh, table, write):
    version = table.refresh().version
    with pytest.raises(PySparkException, match="'kind', which is missing"):
        write(numbered(spark, 1), rowKindColumn="kind")
    with pytest.raises(PySparkException, match=r"is 'moved' in a row, expected insert, update_after"):
        write(numbered(spark, 1).withColumn("k", f.lit("moved")), rowKindColumn="k")
    with pytest.raises(PySparkException, match="names only primary key columns"):
        write(numbered(spark, 1).select("id"), partialUpdate="true")
    with pytest.raises(PySparkException, match=r"'id' of .* is NOT NULL and missing"):
        write(numbered(spark, 1).select("n"))
    assert table.refresh().version == version
    plain = wh.create_table("keyed.plain", "id BIGINT")
    writer = spark.range(1).write.format("streamhouse").option("warehouse", wh.url).option("partialUpdate", "true")
    with pytest.raises(PySparkException, match="has no primary key, which partialUpdate requires"):
        writer.mode("append").save(plain.name)


@pytest.mark.long
def test_a_job_that_repeats_a_version_sums_once(spark, wh, read):
    properties = {"table.merge-engine": "aggregation", "fields.total.agg": "sum"}
    table = wh.create_table("keyed.sums", "id INT, total BIGINT", primary_key=["id"], properties=properties)
    frame = spark.createDataFrame([(1, 5), (1, 6), (2, 7)], "id int, total long")
    for version in (0, 0, 1):
        writer = frame.write.format("streamhouse").option("warehouse", wh.url).mode("append")
        writer.option("txnAppId", "job").option("txnVersion", version).save(table.name)
    assert found(table) == [(1, 22), (2, 14)]


@pytest.mark.spark41
@pytest.mark.long
def test_streams_of_changes_into_sums(spark, wh, table, write, checkpoint, warehouse_url):
    """Counts of rows by parity, kept right by a stream of changes that adds and takes away, restarted in between."""
    properties = {"table.merge-engine": "aggregation", "fields.rows.agg": "sum"}
    counts = wh.create_table("keyed.counts", "odd INT, rows BIGINT", primary_key=["odd"], properties=properties)

    def run():
        changes = (
            spark.readStream.format("streamhouse")
            .option("warehouse", warehouse_url)
            .option("readChangeFeed", "true")
            .load(table.name)
        )
        signed = f.when(f.col("_change_type").isin("insert", "update_after"), 1).otherwise(-1)
        rows = changes.select((f.col("id") % 2).cast("int").alias("odd"), signed.cast("long").alias("rows"))
        query = (
            rows.writeStream.format("streamhouse")
            .option("warehouse", warehouse_url)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(counts.name)
        )
        query.awaitTermination()

    write(numbered(spark, 9))
    run()
    assert found(counts) == [(0, 5), (1, 4)]
    write(numbered(spark, 12, "m"))
    table.delete([1, 3])
    run()
    assert found(counts) == [(0, 6), (1, 4)]
    run()
    assert found(counts) == [(0, 6), (1, 4)]


@pytest.mark.spark41
def test_changes_in_batch_and_stream(spark, table, write, read, warehouse_url):
    write(numbered(spark, 3))
    table.upsert([{"id": 1, "name": "x", "n": 1}])
    table.delete([2])
    expected = [
        ("delete", 2, "n2"),
        ("insert", 0, "n0"),
        ("insert", 1, "n1"),
        ("insert", 2, "n2"),
        ("update_after", 1, "x"),
        ("update_before", 1, "n1"),
    ]
    columns = ("_change_type", "id", "name")
    assert sorted(tuple(r) for r in read(f"{table.name}$changelog").select(*columns).collect()) == expected
    assert sorted(tuple(r) for r in read(table.name, readChangeFeed="true").select(*columns).collect()) == expected
    binlog = read(f"{table.name}$binlog").select("_change_type", "before.name", f.col("after.name").alias("after"))
    assert sorted((tuple(r) for r in binlog.collect()), key=str) == [
        ("delete", "n2", None),
        ("insert", None, "n0"),
        ("insert", None, "n1"),
        ("insert", None, "n2"),
        ("update", "n1", "x"),
    ]


def test_a_stream_or_range_without_change_feed_names_the_options(spark, table, read, warehouse_url):
    stream = spark.readStream.format("streamhouse").option("warehouse", warehouse_url).load(table.name)
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match=r"readChangeFeed=true, or read .*\$changelog"):
        query.awaitTermination()
    with pytest.raises(PySparkException, match="readChangeFeed=true"):
        read(table.name, startingOffsets="earliest").collect()


def test_overwriting_replaces_all_rows(spark, table, write, warehouse_url):
    write(numbered(spark, 5))
    frame = numbered(spark, 2, "new")
    frame.write.format("streamhouse").option("warehouse", warehouse_url).mode("overwrite").save(table.name)
    assert found(table) == [(0, "new0", 0), (1, "new1", 1)]
    assert table.lookup([0, 4])["name"].to_pylist() == ["new0", None]


@pytest.mark.long
def test_a_binlog_as_a_stream_keeps_updates_together(spark, table, warehouse_url, checkpoint, tmp_path):
    """Limits cut the log between the two rows of an update; each update is one row all the same, with both."""
    rng = random.Random(5)
    for number in range(12):
        table.upsert([{"id": rng.randrange(6), "name": f"{number}-{i}", "n": i} for i in range(4)])
        table.delete([rng.randrange(6)])
    expected = open_view(table, "binlog").to_arrow().to_pylist()
    stream = (
        spark.readStream.format("streamhouse")
        .option("warehouse", warehouse_url)
        .option("maxOffsetsPerTrigger", 3)
        .load(f"{table.name}$binlog")
    )
    path = str(tmp_path / "rows")
    writer = stream.writeStream.format("parquet").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start(path).awaitTermination()
    found = [row.asDict(recursive=True) for row in spark.read.parquet(path).collect()]
    for row in (*found, *expected):
        del row["_commit_timestamp"]
    order = str
    assert sorted(found, key=order) == sorted(expected, key=order)
    assert {row["_change_type"] for row in found} == {"insert", "update", "delete"}


@pytest.mark.spark41
@pytest.mark.long
def test_both_tiers_as_one(spark, wh, table, write, read):
    write(numbered(spark, 200))
    assert tier(spark, wh.url, [table.name])[table.name].rows == 200
    write(numbered(spark, 60, "m").where("id >= 50"))
    table.delete([0, 199])
    table.upsert([{"id": 500, "name": "new"}])
    expected = sorted([*((i, f"m{i}" if 50 <= i < 60 else f"n{i}", i) for i in range(1, 199)), (500, "new", None)])
    order = [row[0] for row in expected]
    assert [tuple(r) for r in read(table.name).orderBy("id").collect()] == expected
    assert [r.id for r in read(table.name).select("id").orderBy("id").collect()] == order
    assert read(f"{table.name}$lake").count() == 200
    report = tier(spark, wh.url, [table.name])[table.name]
    assert report.rows == 11
    assert sorted(tuple(r) for r in read(f"{table.name}$lake").collect()) == sorted(expected)
    assert [tuple(r) for r in read(table.name).orderBy("id").collect()] == expected
    assert table.lookup([55, 199, 500])["name"].to_pylist() == ["m55", None, "new"]


@pytest.mark.long
def test_without_a_lake_a_snapshot_by_key_is_read(spark, wh, read, monkeypatch):
    monkeypatch.setattr(kv_snapshots, "CHANGES_MIN", 1)
    properties = {"table.datalake.enabled": "false"}
    table = wh.create_table("keyed.no_lake", "id INT, n INT", primary_key=["id"], buckets=2, properties=properties)
    table.upsert([{"id": i, "n": i} for i in range(50)])
    assert table.maintain().snapshots == 2
    table.upsert([{"id": 3, "n": 33}])
    table.delete([4])
    assert sorted(tuple(r) for r in read(table.name).collect()) == sorted(
        (i, 33 if i == 3 else i) for i in range(50) if i != 4
    )
    assert spark.sql(f"SELECT sum(n) FROM streamhouse.{table.name} WHERE id < 6").first()[0] == 1 + 2 + 33 + 5
