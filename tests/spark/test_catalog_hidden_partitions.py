"""``PARTITIONED BY (days(ts), …)`` in Spark SQL and in DataFrames."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f

from faults.scenarios import tier
from spark.dml import found, opened

pytestmark = [pytest.mark.spark, pytest.mark.spark41]
DAYS = "DATE'2026-01-01' + CAST(id / 4 AS INT)"


@pytest.fixture
def name(request, spark, wh):
    """The name of a table by day with the rows 0 to 15, four of them a day."""
    wh.create_database("hidden", if_not_exists=True)
    name = f"streamhouse.hidden.t{abs(hash(request.node.nodeid))}"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, ts TIMESTAMP_NTZ, word STRING) "
        "PARTITIONED BY (days(ts), truncate(2, word), bucket(2, id))"
    )
    spark.sql(
        f"INSERT INTO {name} SELECT id, CAST({DAYS} AS TIMESTAMP_NTZ) + make_dt_interval(0, id % 4), 'abc' "
        "FROM range(16)"
    )
    return name


def ids(spark, name, where="true"):
    return sorted(row[0] for row in found(spark, f"SELECT id FROM {name} WHERE {where}"))


def test_the_table_says_how_it_is_partitioned(spark, wh, name):
    described = {row[0]: row[1] for row in found(spark, f"DESCRIBE TABLE {name}")}
    assert {"days(ts)", "truncate(2, word)", "bucket(2, id)"} <= set(described.values())
    shown = found(spark, f"SHOW CREATE TABLE {name}")[0][0]
    assert "PARTITIONED BY (days(ts), truncate(2, word), bucket(2, id))" in shown
    assert opened(wh, name).state.properties["partition.fields"] == "days(ts), truncate(2, word)"


def test_rows_are_found_hot_and_in_the_lake(spark, wh, name):
    for _ in range(2):
        assert ids(spark, name, "ts >= '2026-01-02' AND ts < '2026-01-03'") == [4, 5, 6, 7]
        assert ids(spark, name, "CAST(ts AS DATE) = '2026-01-04'") == [12, 13, 14, 15]
        assert ids(spark, name, "word LIKE 'ab%'") == list(range(16))
        tier(opened(wh, name))
    assert ids(spark, f"streamhouse.hidden.`{name.rpartition('.')[2]}$lake`", "ts < '2026-01-02'") == [0, 1, 2, 3]


@pytest.mark.parametrize("is_tiered", [False, True])
def test_the_days_of_new_rows_are_replaced(spark, wh, name, is_tiered):
    if is_tiered:
        tier(opened(wh, name))
    rows = spark.sql("SELECT 100L AS id, TIMESTAMP_NTZ'2026-01-02 23:00:00' AS ts, 'abX' AS word")
    rows.writeTo(name).overwritePartitions()
    assert ids(spark, name) == [*range(4), *range(8, 16), 100]
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        spark.sql(f"INSERT OVERWRITE {name} VALUES (200, TIMESTAMP_NTZ'2026-01-01 00:00:00', 'x')")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert ids(spark, name) == [*range(4), *range(8, 16), 100, 200]  # other words are other partitions
    tier(opened(wh, name))
    assert sorted(opened(wh, name).lake.to_arrow()["id"].to_pylist()) == [*range(4), *range(8, 16), 100, 200]


def test_rows_move_between_hidden_partitions_when_they_change(spark, wh, name):
    tier(opened(wh, name))
    spark.sql(f"DELETE FROM {name} WHERE ts < '2026-01-02'")
    spark.sql(f"UPDATE {name} SET ts = ts + INTERVAL 10 DAYS WHERE id = 15")
    assert ids(spark, name, "ts > '2026-01-12'") == [15]
    tier(opened(wh, name))
    assert ids(spark, name) == list(range(4, 16))
    assert ids(spark, name, "ts > '2026-01-12'") == [15]


def test_frames_make_such_tables(spark, wh):
    wh.create_database("hidden", if_not_exists=True)
    frame = spark.range(3).select("id", f.lit("2026-01-01 10:00:00").cast("timestamp").alias("ts"))
    frame.writeTo("streamhouse.hidden.framed").partitionedBy(f.partitioning.hours("ts")).create()
    assert wh.table("hidden.framed").state.properties["partition.fields"] == "hours(ts)"
    frame.writeTo("streamhouse.hidden.framed").partitionedBy(f.partitioning.months("ts")).createOrReplace()
    assert wh.table("hidden.framed").state.properties["partition.fields"] == "months(ts)"
    assert ids(spark, "streamhouse.hidden.framed") == [0, 1, 2]


def test_the_partitioning_of_a_table_with_rows_changes(spark, wh, name):
    tier(opened(wh, name))
    spark.sql(f"INSERT INTO {name} SELECT id + 16, ts + INTERVAL 4 DAYS, 'xyz' FROM {name} WHERE id < 4")
    text = f"table => '{name.removeprefix('streamhouse.')}', partitioning => 'hours(ts), word, bucket(2, id)'"
    ((_, now, before),) = found(spark, f"CALL streamhouse.system.set_partitioning({text})")
    assert (now, before) == ("hours(ts), word", "days(ts), truncate(2, word)")
    assert "PARTITIONED BY (hours(ts), word, bucket(2, id))" in found(spark, f"SHOW CREATE TABLE {name}")[0][0]
    spark.sql(f"INSERT INTO {name} SELECT id + 20, ts + INTERVAL 8 DAYS, 'abc' FROM {name} WHERE id < 4")
    for _ in range(2):
        assert ids(spark, name) == list(range(24))
        assert ids(spark, name, "ts >= '2026-01-02' AND ts < '2026-01-03'") == [4, 5, 6, 7]
        assert ids(spark, name, "ts >= '2026-01-05'") == list(range(16, 24))
        assert ids(spark, name, "word = 'abc'") == [*range(16), *range(20, 24)]
        assert ids(spark, name, "word = 'xyz' AND hour(ts) = 1") == [17]
        assert [row[0] for row in found(spark, f"SHOW PARTITIONS {name}")] == ["word=abc", "word=xyz"]
        joined = f"SELECT count(*) FROM {name} a JOIN {name} b ON a.id = b.id"
        assert found(spark, joined) == [(24,)]
        assert found(spark, f"SELECT min(word), max(word), count(*) FROM {name}") == [("abc", "xyz", 24)]
        tier(opened(wh, name))
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        spark.sql(f"INSERT OVERWRITE {name} VALUES (100, TIMESTAMP_NTZ'2026-01-02 01:30:00', 'abc')")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    left = [*range(5), *range(6, 24), 100]
    assert ids(spark, name) == left, "the hour is replaced, and not the day"
    spark.sql(f"DELETE FROM {name} WHERE ts < '2026-01-02'")
    spark.sql(f"TRUNCATE TABLE {name} PARTITION (word = 'xyz')")
    left = [n for n in left if n >= 4 and n not in range(16, 20)]
    assert ids(spark, name) == left
    tier(opened(wh, name))
    assert sorted(opened(wh, name).lake.to_arrow()["id"].to_pylist()) == left
    spark.sql(f"ALTER TABLE {name} DROP PARTITION (word = 'abc')")
    assert ids(spark, name) == []
