"""INSERT OVERWRITE of partitions, REPLACE WHERE, `overwrite`, `overwritePartitions`, TRUNCATE … PARTITION."""

from __future__ import annotations

import duckdb
import pytest
from duckdb_extensions import import_extension
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn

from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

COLUMNS = "id BIGINT, day INT, name STRING"


@pytest.fixture(params=["log", "keyed", "paimon_keyed", pytest.param("paimon_log", marks=pytest.mark.long)])
def table(request, wh):
    """A table with ids 0 to 8 in days 0 to 2, a part of which is tiered."""
    key = {} if request.param.endswith("log") else {"primary_key": ["id", "day"]}
    properties = {"table.datalake.format": "paimon"} if request.param.startswith("paimon") else {}
    name = f"replaces.{request.node.name.partition('[')[0]}_{request.param}"
    made = wh.create_table(name, COLUMNS, partition_by=["day"], buckets=2, properties=properties, **key)
    write = made.upsert if key else made.append
    write([{"id": n, "day": n % 3, "name": "old"} for n in range(9)])
    return made


@pytest.fixture
def dynamic(spark):
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    yield
    spark.conf.unset("spark.sql.sources.partitionOverwriteMode")


def name_of(table):
    return f"streamhouse.{table.name}"


def there(spark, table):
    rows = spark.table(name_of(table)).select("id", "day").collect()
    return sorted(((row.id, row.day) for row in rows), key=repr)


def old(*days):
    return [(n, n % 3) for n in range(9) if n % 3 in days]


def test_insert_overwrite_replaces_one_named_partition(spark, wh, table):
    version = table.refresh().version
    spark.sql(f"INSERT OVERWRITE {name_of(table)} PARTITION (day = 1) VALUES (11L, 'new'), (1L, 'new')")
    assert there(spark, table) == sorted([*old(0, 2), (1, 1), (11, 1)], key=repr)
    assert table.refresh().version == version + 1
    tier(spark, wh.url, [table.name])
    spark.sql(
        f"INSERT OVERWRITE {name_of(table)} PARTITION (day = 2) "
        "SELECT id, name FROM range(20, 40, 1, 4), (SELECT 'n' name)"
    )
    assert there(spark, table) == sorted([*old(0), (1, 1), (11, 1), *((n, 2) for n in range(20, 40))], key=repr)
    lake = table.lake.to_arrow()
    tier(spark, wh.url, [table.name])
    assert sorted(table.lake.to_arrow()["id"].to_pylist()) == sorted(n for n, _ in there(spark, table))
    assert lake.num_rows == 8
    spark.sql(f"INSERT OVERWRITE {name_of(table)} PARTITION (day = 2) SELECT 1L, 'x' WHERE false")
    assert there(spark, table) == sorted([*old(0), (1, 1), (11, 1)], key=repr)


def test_the_partitions_of_new_rows_are_overwritten(spark, table, dynamic):
    spark.sql(f"INSERT OVERWRITE {name_of(table)} VALUES (100L, 1, 'new'), (101L, 5, 'new')")
    assert there(spark, table) == sorted([*old(0, 2), (100, 1), (101, 5)], key=repr)
    frame = spark.range(200, 300, 1, 4).selectExpr("id", "2 AS day", "'new' AS name")
    frame.writeTo(name_of(table)).overwritePartitions()
    assert there(spark, table) == sorted([*old(0), (100, 1), (101, 5), *((n, 2) for n in range(200, 300))], key=repr)
    spark.sql(
        f"INSERT OVERWRITE {name_of(table)} PARTITION (day) SELECT id, day, name FROM {name_of(table)} WHERE day = 1"
    )
    assert (100, 1) in there(spark, table)
    frame.where("false").writeTo(name_of(table)).overwritePartitions()
    assert len(there(spark, table)) == 105


def test_rows_that_match_a_condition_are_replaced(spark, table):
    frame = spark.sql("SELECT 50L AS id, 1 AS day, 'new' AS name")
    frame.writeTo(name_of(table)).overwrite(fn.col("day") == 1)
    assert there(spark, table) == sorted([*old(0, 2), (50, 1)], key=repr)
    spark.sql(f"INSERT INTO {name_of(table)} REPLACE WHERE day IN (0, 2) SELECT 60L, 2, 'new'")
    assert there(spark, table) == [(50, 1), (60, 2)]
    with pytest.raises(PySparkException, match=r"1 of 1 new rows do not match the condition .*day = 1"):
        spark.sql(f"INSERT INTO {name_of(table)} REPLACE WHERE day = 2 SELECT 60L, 1, 'new'")
    with pytest.raises(PySparkException, match="to replace is not supported"):
        spark.sql(f"INSERT INTO {name_of(table)} REPLACE WHERE day % 2 = 1 SELECT 60L, 1, 'new'")
    assert there(spark, table) == [(50, 1), (60, 2)]


def test_replace_where_of_the_plain_writer(spark, wh, table):
    frame = spark.sql("SELECT 50L AS id, 1 AS day, 'new' AS name")
    writer = frame.write.format("streamhouse").option("warehouse", wh.url).option("replaceWhere", "day = 1")
    writer.mode("overwrite").save(table.name)
    assert there(spark, table) == sorted([*old(0, 2), (50, 1)], key=repr)
    with pytest.raises(PySparkException, match=r"requires mode\('overwrite'\)"):
        writer.mode("append").save(table.name)
    wrong = frame.write.format("streamhouse").option("warehouse", wh.url).option("replaceWhere", "day = = 1")
    with pytest.raises(PySparkException, match="day = = 1"):
        wrong.mode("overwrite").save(table.name)


def test_truncate_empties_the_named_partition_alone(spark, table):
    spark.sql(f"TRUNCATE TABLE {name_of(table)} PARTITION (day = 1)")
    assert there(spark, table) == sorted(old(0, 2), key=repr)
    spark.sql(f"TRUNCATE TABLE {name_of(table)} PARTITION (day = 77)")
    assert there(spark, table) == sorted(old(0, 2), key=repr)


def test_a_failed_overwrite_changes_nothing_and_is_repeatable(spark, table):
    failing = spark.range(0, 100, 1, 4).selectExpr(
        "if(id = 77, raise_error('no luck'), id) id", "1 AS day", "'new' AS name"
    )
    with pytest.raises(PySparkException, match="no luck"):
        failing.writeTo(name_of(table)).overwritePartitions()
    assert there(spark, table) == sorted(old(0, 1, 2), key=repr)
    frame = spark.sql("SELECT 50L AS id, 1 AS day, 'new' AS name")
    for _ in range(2):
        write = frame.writeTo(name_of(table)).option("txnAppId", "job").option("txnVersion", "1")
        write.overwrite(fn.col("day") == 1)
        spark.sql(f"INSERT INTO {name_of(table)} VALUES (51L, 1, 'later')")
    ids = [n for n, day in there(spark, table) if day == 1]
    assert set(ids) == {50, 51}, "a version counts once: the row that came later stays"
    assert ids.count(50) == 1


def test_rows_made_of_the_tables_own(spark, wh, table):
    """They are right only while what they were made of is there: else it is a conflict, and nothing is replaced."""
    frame = spark.table(name_of(table)).where("day = 1").selectExpr("id + 300 AS id", "day", "name")
    frame.writeTo(name_of(table)).overwritePartitions()
    assert there(spark, table) == sorted([*old(0, 2), (301, 1), (304, 1), (307, 1)], key=repr)


def test_a_table_without_partitions_is_overwritten_as_a_whole(spark, wh, dynamic):
    plain = wh.create_table("replaces.plain", "id BIGINT, n INT")
    plain.append([{"id": n, "n": n} for n in range(5)])
    spark.sql(f"INSERT INTO {name_of(plain)} REPLACE WHERE n > 2 AND id < 10 SELECT 4L, 7")
    assert sorted(plain.to_arrow()["n"].to_pylist()) == [0, 1, 2, 7]
    spark.sql(f"INSERT OVERWRITE {name_of(plain)} VALUES (9L, 9)")
    assert plain.to_arrow()["n"].to_pylist() == [9], "without partitions the table is its only one"


def test_partitions_of_null_and_dates_are_overwritten(spark, wh, dynamic):
    made = wh.create_table("replaces.dates", "id BIGINT, d DATE, s STRING", partition_by=["d", "s"])
    spark.sql(
        f"INSERT INTO {name_of(made)} VALUES (1, DATE'2026-01-01', 'a'), (2, NULL, 'b'), (3, DATE'2026-01-01', NULL)"
    )
    spark.sql(f"INSERT OVERWRITE {name_of(made)} VALUES (5, DATE'2026-01-01', NULL), (6, NULL, 'b')")
    assert sorted(made.to_arrow()["id"].to_pylist()) == [1, 5, 6]
    tier(spark, wh.url, [made.name])
    spark.sql(f"INSERT OVERWRITE {name_of(made)} PARTITION (d = DATE'2026-01-01', s) VALUES (7, 'a')")
    assert sorted(made.to_arrow()["id"].to_pylist()) == [5, 6, 7]


def test_other_engines_read_the_lake(spark, wh):
    made = wh.create_table("replaces.lake", COLUMNS, partition_by=["day"])
    spark.sql(f"INSERT INTO {name_of(made)} SELECT id, id % 3, 'old' FROM range(30)")
    tier(spark, wh.url, [made.name])
    spark.sql(f"INSERT OVERWRITE {name_of(made)} PARTITION (day = 1) VALUES (100L, 'new')")
    tier(spark, wh.url, [made.name])
    kept = sorted([n for n in range(30) if n % 3 != 1] + [100])
    import_extension("avro")
    import_extension("iceberg")
    duck = duckdb.connect()
    duck.load_extension("avro")
    duck.load_extension("iceberg")
    location = f"{wh.url}/{made.state.lake_location}"
    assert duck.execute(f"SELECT id FROM iceberg_scan('{location}') ORDER BY id").fetchall() == [(n,) for n in kept]


def test_a_paimon_log_table_is_overwritten_by_partition(spark, wh):
    made = wh.create_table(
        "replaces.paimon", COLUMNS, partition_by=["day"], properties={"table.datalake.format": "paimon"}
    )
    spark.sql(f"INSERT INTO {name_of(made)} VALUES (1, 1, 'a'), (2, 2, 'a')")
    tier(spark, wh.url, [made.name])
    version = made.refresh().version
    spark.sql(f"INSERT OVERWRITE {name_of(made)} PARTITION (day = 1) VALUES (100L, 'new')")
    spark.sql(f"TRUNCATE TABLE {name_of(made)} PARTITION (day = 2)")
    assert made.refresh().version == version + 2, "one record each"
    assert there(spark, made) == [(100, 1)]
    tier(spark, wh.url, [made.name])
    assert spark.table("streamhouse.replaces.`paimon$lake`").select("id", "day").collect() == [(100, 1)]


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
@pytest.mark.parametrize("is_tiered", [False, True], ids=["log", "lake"])
def test_partitions_of_floats_are_overwritten(spark, wh, kind, is_tiered):
    wh.create_database("dml", if_not_exists=True)
    name = f"streamhouse.dml.of_{kind}_{is_tiered}"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, p {kind}) PARTITIONED BY (p)")
    values = "(1, '0.5'), (2, 'NaN'), (3, NULL), (4, '-0.0'), (5, '0.1')"
    spark.sql(f"INSERT INTO {name} SELECT id, CAST(p AS {kind}) FROM VALUES {values} v(id, p)")
    if is_tiered:
        spark.sql(f"CALL streamhouse.system.tier('{name.removeprefix('streamhouse.')}')")
    rows = {1: "0.5", 2: "nan", 3: "None", 4: "0.0", 5: "0.1"}
    for at, literal in enumerate(("0.5", "'NaN'", "NULL", "0.0", "0.1"), start=1):
        spark.sql(f"INSERT OVERWRITE {name} PARTITION (p = {literal}) SELECT {at + 10}L")
        rows[at + 10] = rows.pop(at)
        found = spark.sql(f"SELECT id, abs(CAST(CAST(p AS STRING) AS DOUBLE)) AS p FROM {name}").collect()
        assert {row.id: str(row.p) for row in found} == rows
