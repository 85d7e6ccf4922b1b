"""A table with a Paimon lake in Spark: SQL, tiering by its executors, time travel, joins, streams."""

from __future__ import annotations

import pytest
from pypaimon import CatalogFactory

from spark.session import COLUMNS, rows
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark
NAME = "paimon_lake.orders"
SQL = f"streamhouse.{NAME}"
LAKE = "streamhouse.paimon_lake.`orders$lake`"
NUM_ROWS = 400
FILTERS = [
    "id = 7",
    "id in (1, 250, 399, 1000)",
    "id is null",
    "id > 310 and region = 'r1'",
    "region is null",
    "region <=> null or id < 3",
    "name like 'n1%'",
    "day >= date'2026-01-03'",
    "amount > 10",
    "at < timestamp'2026-01-01 00:01:00Z'",
]


@pytest.fixture(scope="module")
def orders(spark, wh):
    """Ids 0 to 299 in the lake, in two rounds, the others in the log; and one row without an id."""
    wh.create_database("paimon_lake")
    spark.sql(
        f"CREATE TABLE {SQL} (id bigint, name string, region string, day date, amount decimal(12,2), at timestamp) "
        "PARTITIONED BY (region, bucket(4, id)) TBLPROPERTIES ('table.datalake.format' = 'paimon', "
        "'table.statistics.columns' = '*')"
    )
    made = (
        "SELECT id, concat('n', id), if(id % 5 = 0, null, concat('r', id % 5)), "
        "date_add(date'2026-01-01', int(id % 4)), cast(id % 20 as decimal(12,2)), timestamp_seconds(1767225600 + id)"
    )
    for first, last in ((0, 200), (200, 300)):
        spark.sql(f"INSERT INTO {SQL} {made} FROM range({first}, {last})")
        assert tier(spark, wh.url, [NAME])[NAME].rows == last - first
    spark.sql(f"INSERT INTO {SQL} {made} FROM range(300, {NUM_ROWS})")
    spark.sql(f"INSERT INTO {SQL} VALUES (null, 'none', 'r1', null, null, null)")
    spark.createDataFrame(spark.sql(f"{made} FROM range({NUM_ROWS})").collect(), spark.table(SQL).schema).unionByName(
        spark.sql(f"SELECT * FROM {SQL} WHERE name = 'none'")
    ).createOrReplaceTempView("paimon_orders")
    return wh.table(NAME)


def _ids(frame):
    return sorted((row["id"] for row in frame.select("id").collect()), key=repr)


@pytest.mark.parametrize("where", ["true", *FILTERS])
def test_the_catalog_reads_log_and_lake_as_one(spark, orders, where):
    assert _ids(spark.sql(f"SELECT id FROM {SQL} WHERE {where}")) == _ids(
        spark.sql(f"SELECT id FROM paimon_orders WHERE {where}")
    )


@pytest.mark.long
def test_spark_reads_every_paimon_row_once(spark, orders, wh):
    for found in (spark.table(SQL), spark.read.format("streamhouse").option("warehouse", wh.url).load(NAME)):
        assert found.exceptAll(spark.table("paimon_orders")).count() == 0
        assert found.count() == NUM_ROWS + 1


@pytest.mark.long
def test_the_paimon_lake_alone_is_read_at_each_snapshot(spark, orders, wh):
    assert _ids(spark.table(LAKE)) == sorted(range(300), key=repr)
    assert spark.sql(f"SELECT * FROM {LAKE} VERSION AS OF 1").count() == 200
    snapshots = spark.table("streamhouse.paimon_lake.`orders$lake$snapshots`")
    assert [row["snapshot_id"] for row in snapshots.orderBy("snapshot_id").collect()] == [1, 2]
    files = spark.table("streamhouse.paimon_lake.`orders$lake$files`")
    assert files.selectExpr("sum(record_count)").first()[0] == 300
    stock = CatalogFactory.create({"warehouse": f"{wh.url}/lake"}).get_table(NAME).new_read_builder()
    assert stock.new_read().to_arrow(stock.new_scan().plan().splits()).num_rows == 300


@pytest.mark.long
def test_buckets_of_two_formats_are_not_joined_without_a_shuffle(spark, orders, wh):
    """Buckets of Iceberg are no buckets of Paimon: Spark may not take one for the other."""
    other = wh.create_table("paimon_lake.names", COLUMNS, buckets=4, properties={"bucket.key": "id"})
    other.append(rows(NUM_ROWS))
    tier(spark, wh.url, ["paimon_lake.names"])
    joined = spark.sql(f"SELECT o.id FROM {SQL} o JOIN streamhouse.paimon_lake.names n ON o.id = n.id")
    assert joined.count() == NUM_ROWS
    both = f"SELECT /*+ MERGE(b) */ a.id FROM {SQL} a JOIN {SQL} b ON a.id = b.id"
    assert "Exchange" in spark.sql(f"EXPLAIN {both}").first()[0]
    assert spark.sql(f"SELECT id, count(*) c FROM {SQL} GROUP BY id HAVING c > 1").count() == 0


@pytest.mark.long
def test_a_trimmed_range_is_read_from_the_lake_with_its_offsets(spark, orders):
    lake = orders.open_lake()
    assert sum(len(range(log.end)) for log in orders.refresh().buckets.values()) == NUM_ROWS + 1
    ids = []
    for bucket, end in lake.newest().offsets.items():
        ids += [i for _, batch in lake.read_offsets(bucket, OffsetRange(0, end)) for i in batch["id"].to_pylist()]
    assert sorted(ids) == list(range(300))


@pytest.mark.long
def test_a_paimon_table_is_overwritten_widened_and_emptied(spark, wh):
    name = "streamhouse.paimon_lake.changing"
    spark.sql(f"CREATE TABLE {name} (id bigint) TBLPROPERTIES ('table.datalake.format' = 'paimon', 'bucket.num' = '2')")
    for first in (0, 10):
        spark.sql(f"INSERT INTO {name} SELECT id FROM range({first}, {first + 10})")
    tier(spark, wh.url, ["paimon_lake.changing"])
    spark.sql(f"INSERT OVERWRITE {name} SELECT id FROM range(5)")
    spark.sql(f"ALTER TABLE {name} ADD COLUMN note string")
    spark.sql(f"INSERT INTO {name} VALUES (5, 'new')")
    tier(spark, wh.url, ["paimon_lake.changing"])
    lake = spark.table("streamhouse.paimon_lake.`changing$lake`")
    for found in (lake, spark.table(name)):
        assert sorted(map(tuple, found.collect())) == [*((i, None) for i in range(5)), (5, "new")]
    spark.sql(f"TRUNCATE TABLE {name}")
    assert spark.table(name).count() == 0
    tier(spark, wh.url, ["paimon_lake.changing"])
    assert spark.table("streamhouse.paimon_lake.`changing$lake`").count() == 0
    spark.sql(f"DROP TABLE {name}")


@pytest.mark.long
def test_spark_reads_the_current_rows_of_a_keyed_paimon_table(spark, wh):
    """Merged from files with common keys in Python, read as they are by Spark, and beside newer changes of the log."""
    wh.create_database("paimon_lake")
    name, lake = "streamhouse.paimon_lake.prices", "streamhouse.paimon_lake.`prices$lake`"
    spark.sql(
        f"CREATE TABLE {name} (region string not null, id bigint not null, price int, note string) "
        "PARTITIONED BY (region, bucket(3, id)) TBLPROPERTIES ('primary.key' = 'region,id', "
        "'table.datalake.format' = 'paimon')"
    )
    made = f"SELECT concat('r', id % 2), id, 1, 'first' FROM range(0, {NUM_ROWS})"
    spark.sql(f"INSERT INTO {name} {made}")
    assert tier(spark, wh.url, ["paimon_lake.prices"])["paimon_lake.prices"].rows == NUM_ROWS
    spark.sql(f"UPDATE {name} SET price = 2 WHERE id < 20")
    spark.sql(f"DELETE FROM {name} WHERE id >= 390")
    tier(spark, wh.url, ["paimon_lake.prices"])
    before = spark.table(lake).count()
    assert before == 390
    assert spark.sql(f"SELECT * FROM {lake} WHERE price = 1").count() == 370
    assert spark.sql(f"SELECT max(price), count(note) FROM {lake} WHERE region = 'r0'").first() == (2, 195)
    assert spark.sql(f"SELECT * FROM {lake} VERSION AS OF 1").count() == NUM_ROWS
    for number, price in ((7, 2), (300, 1)):  # read from the one bucket that can have it
        assert spark.sql(f"SELECT price FROM {lake} WHERE id = {number}").collect() == [(price,)]
        assert spark.sql(f"SELECT price FROM {name} WHERE id = {number}").collect() == [(price,)]
    spark.sql(f"DELETE FROM {name} WHERE id = 5")
    spark.sql(f"INSERT INTO {name} VALUES ('r0', 6, 3, 'newest'), ('r2', 1000, 3, 'newest')")
    expected = {(f"r{i % 2}", i): 2 if i < 20 else 1 for i in range(390) if i != 5} | {("r0", 6): 3, ("r2", 1000): 3}
    by_format = spark.read.format("streamhouse").option("warehouse", wh.url).load("paimon_lake.prices")
    for found in (spark.table(name), by_format):
        assert {(r["region"], r["id"]): r["price"] for r in found.collect()} == expected
        assert found.count() == len(expected)
        assert found.where("price = 2").count() == 18
    assert spark.table(lake).count() == before
    assert wh.table("paimon_lake.prices").open_lake().compact().files_removed
    assert {(r["region"], r["id"]): r["price"] for r in spark.table(name).collect()} == expected
    tier(spark, wh.url, ["paimon_lake.prices"])
    stock = CatalogFactory.create({"warehouse": f"{wh.url}/lake"}).get_table("paimon_lake.prices").new_read_builder()
    there = stock.new_read().to_arrow(stock.new_scan().plan().splits()).to_pylist()
    assert {(row["region"], row["id"]): row["price"] for row in there} == expected
    assert spark.table(lake).count() == len(there) == len(expected)


@pytest.mark.long
def test_a_paimon_table_is_bucketed_by_several_columns(spark, wh):
    wh.create_database("paimon_lake")
    name = "streamhouse.paimon_lake.pairs"
    spark.sql(
        f"CREATE TABLE {name} (a bigint, b string) PARTITIONED BY (bucket(4, a, b)) "
        "TBLPROPERTIES ('table.datalake.format' = 'paimon')"
    )
    assert wh.table("paimon_lake.pairs").properties.bucket_key == ("a", "b")
    spark.sql(f"INSERT INTO {name} SELECT id, concat('b', id % 3) FROM range(50)")
    tier(spark, wh.url, ["paimon_lake.pairs"])
    assert spark.sql(f"SELECT * FROM {name} WHERE a = 4 AND b = 'b1'").collect() == [(4, "b1")]
    spark.sql(f"DROP TABLE {name}")


@pytest.mark.long
def test_a_tag_is_read_by_name_when_its_snapshot_has_expired(spark, wh):
    wh.create_database("paimon_lake")
    table = wh.create_table("paimon_lake.tagged", "id bigint", properties={"table.datalake.format": "paimon"})
    for number in range(3):
        table.append([{"id": number}])
        job = TieringJob(table.log, table.open_lake(), world=table.world)
        job.run(run_tasks_locally(table.storage, table.settings, table.world))
        if number == 0:
            CatalogFactory.create({"warehouse": f"{wh.url}/lake"}).get_table("paimon_lake.tagged").create_tag("first")
    expire = "CALL streamhouse.system.expire_snapshots(table => 'paimon_lake.tagged', retain_last => 1, "
    assert spark.sql(f"{expire} older_than => current_timestamp())").first()["snapshots"] == 2
    lake = "streamhouse.paimon_lake.`tagged$lake`"
    assert _ids(spark.sql(f"SELECT * FROM {lake} VERSION AS OF 'first'")) == [0]
    assert _ids(spark.table(lake)) == _ids(spark.table("streamhouse.paimon_lake.tagged")) == [0, 1, 2]
    with pytest.raises(Exception, match="has no tag 'second'"):
        spark.sql(f"SELECT * FROM {lake} VERSION AS OF 'second'").collect()
    assert spark.sql("CALL streamhouse.system.remove_orphan_files('paimon_lake.tagged')").collect() == []


def test_what_is_not_built_is_refused(spark, wh):
    wh.create_database("paimon_lake")
    properties = "'table.datalake.format' = 'paimon', 'primary.key' = 'id'"
    with pytest.raises(Exception, match="whose equal values can be distinct keys"):
        spark.sql(f"CREATE TABLE streamhouse.paimon_lake.refused (id double not null) TBLPROPERTIES ({properties})")
