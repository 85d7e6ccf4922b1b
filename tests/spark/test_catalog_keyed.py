"""Tables with a primary key through the catalog."""

from __future__ import annotations

import re

import pytest
from pyspark.errors import PySparkException

from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark


@pytest.fixture
def name(spark, wh, request):
    wh.create_database("keyed_sql")
    name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")[:60]
    spark.sql(
        f"CREATE TABLE streamhouse.keyed_sql.{name} (id BIGINT, name STRING, n INT, PRIMARY KEY (id)) "
        "TBLPROPERTIES ('bucket.num' = '3')"
    )
    return f"streamhouse.keyed_sql.{name}"


def found(spark, query):
    return [tuple(row) for row in spark.sql(query).collect()]


@pytest.mark.spark41
def test_an_insert_replaces_rows_of_its_keys(spark, name):
    spark.sql(f"INSERT INTO {name} SELECT id, concat('n', id), id FROM range(20)")
    spark.sql(f"INSERT INTO {name} VALUES (3, 'three', NULL), (50, 'fifty', 50)")
    assert found(spark, f"SELECT * FROM {name} WHERE id IN (2, 3, 50) ORDER BY id") == [
        (2, "n2", 2),
        (3, "three", None),
        (50, "fifty", 50),
    ]
    assert found(spark, f"SELECT count(*), count(n), max(n), min(name) FROM {name}") == [(21, 20, 50, "fifty")]
    assert found(spark, f"SELECT n FROM {name} WHERE n = 3") == []  # the older row of the key is none
    assert found(spark, f"SELECT count(*) FROM {name} a JOIN {name} b USING (id) WHERE a.n < 5") == [(4,)]


def test_the_key_is_described_and_survives_show_create_table(spark, name):
    text = spark.sql(f"SHOW CREATE TABLE {name}").collect()[0][0]
    assert "id BIGINT NOT NULL" in text
    assert "'primary.key' = 'id'" in text
    spark.sql(text.replace(name, f"{name}_copy"))
    assert spark.table(f"{name}_copy").schema == spark.table(name).schema


def test_keyed_tables_have_versions_and_a_changelog(spark, name):
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a', 1)")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'b', 1)")
    assert found(spark, f"SELECT name FROM {name} VERSION AS OF 2") == [("a",)]
    table, database = name.split(".")[2], "streamhouse.keyed_sql"
    changes = found(spark, f"SELECT _change_type, name FROM {database}.`{table}$changelog` ORDER BY _log_offset")
    assert changes == [("insert", "a"), ("update_before", "a"), ("update_after", "b")]
    assert found(spark, f"SELECT before.name, after.name FROM {database}.`{table}$binlog` WHERE before.id = 1") == [
        ("a", "b")
    ]


@pytest.mark.spark41
@pytest.mark.long
def test_streams_into_a_table(spark, name, checkpoint):
    source = f"{name}_source"
    spark.sql(f"CREATE TABLE {source} (id BIGINT, name STRING, n INT)")
    for part in ("(1, 'a', 1), (2, 'b', 2)", "(1, 'c', 3)"):
        spark.sql(f"INSERT INTO {source} VALUES {part}")
        query = spark.readStream.table(source).writeStream.option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).toTable(name).awaitTermination()
    assert found(spark, f"SELECT * FROM {name} ORDER BY id") == [(1, "c", 3), (2, "b", 2)]


def test_a_keyed_table_is_overwritten_and_truncated(spark, name):
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a', 1), (2, 'b', 2)")
    spark.sql(f"INSERT OVERWRITE {name} VALUES (2, 'c', 2)")
    assert found(spark, f"SELECT * FROM {name}") == [(2, "c", 2)]
    spark.sql(f"TRUNCATE TABLE {name}")
    assert found(spark, f"SELECT * FROM {name}") == []


def test_partitions_are_those_that_have_rows(spark, wh):
    wh.create_database("keyed_sql")
    name = "streamhouse.keyed_sql.parts"
    spark.sql(f"CREATE TABLE {name} (dt STRING, id INT, PRIMARY KEY (dt, id)) PARTITIONED BY (dt)")
    spark.sql(f"INSERT INTO {name} VALUES ('a', 1), ('b', 1), ('b', 2)")
    wh.table("keyed_sql.parts").delete([{"dt": "a", "id": 1}])
    assert found(spark, f"SHOW PARTITIONS {name}") == [("dt=b",)]


def test_changelog_and_binlog_are_streams(spark, name, checkpoint, tmp_path):
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a', 1), (2, 'b', 2)")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'c', 1)")
    for suffix, kinds in (("changelog", 4), ("binlog", 3)):
        table = ".".join([*name.split(".")[:2], f"`{name.split('.')[2]}${suffix}`"])
        writer = spark.readStream.table(table).writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{checkpoint}-{suffix}").start(str(tmp_path / suffix))
        query.awaitTermination()
        assert spark.read.parquet(str(tmp_path / suffix)).count() == kinds
    with pytest.raises(PySparkException, match=r"so its streams read changes; stream .*changelog"):
        spark.readStream.table(name).writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


@pytest.mark.spark41
def test_both_tiers_as_one(spark, wh, name):
    """Lake files of buckets without newer changes go through Spark's own reader, the others through Python."""
    spark.sql(f"INSERT INTO {name} SELECT id, concat('n', id), id FROM range(300)")
    path = ".".join(name.split(".")[1:])
    tier(spark, wh.url, [path])
    lake = f"streamhouse.keyed_sql.`{name.split('.')[2]}$lake`"
    assert found(spark, f"SELECT count(*), sum(n) FROM {name}") == [(300, 299 * 150)]
    spark.sql(f"INSERT INTO {name} VALUES (7, 'seven', 1000)")
    wh.table(path).delete([8])
    assert found(spark, f"SELECT count(*), sum(n), max(n) FROM {name}") == [(299, 299 * 150 - 15 + 1000, 1000)]
    assert found(spark, f"SELECT id FROM {name} WHERE n = 7 OR n = 1000 OR name = 'n8' ORDER BY id") == [(7,)]
    assert found(spark, f"SELECT name FROM {name} WHERE id = 7") == [("seven",)]
    assert found(spark, f"SELECT count(*) FROM {name} a JOIN {name} b USING (id) WHERE a.n > 290") == [(10,)]
    assert found(spark, f"SELECT count(*), max(n) FROM {lake}") == [(300, 299)]
    tier(spark, wh.url, [path])
    assert found(spark, f"SELECT count(*), max(n) FROM {lake}") == [(299, 1000)]
    assert found(spark, f"SELECT count(*), sum(n), max(n) FROM {name}") == [(299, 299 * 150 - 15 + 1000, 1000)]


def test_rows_of_the_lake_are_updated_deleted_and_merged(spark, wh, name):
    spark.sql(f"INSERT INTO {name} SELECT id, concat('n', id), id FROM range(100)")
    path = ".".join(name.split(".")[1:])
    tier(spark, wh.url, [path])
    spark.sql(f"UPDATE {name} SET n = n + 1000 WHERE id < 5")
    spark.sql(f"DELETE FROM {name} WHERE name IN ('n6', 'n7')")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT 8L AS id, 'eight' AS name UNION ALL SELECT 500L, 'new') s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)"
    )
    expected = [(i, f"n{i}", i + 1000 * (i < 5)) for i in range(100) if i not in (6, 7, 8)]
    expected = sorted([*expected, (8, "eight", 8), (500, "new", None)])
    assert found(spark, f"SELECT * FROM {name} ORDER BY id") == expected
    tier(spark, wh.url, [path])
    lake = f"streamhouse.keyed_sql.`{name.split('.')[2]}$lake`"
    assert found(spark, f"SELECT * FROM {lake} ORDER BY id") == expected
    spark.sql(f"UPDATE {name} SET n = 0 WHERE id = 500")
    assert found(spark, f"SELECT sum(n) FROM {name} WHERE id IN (500, 99)") == [(99,)]
