"""Columns that are renamed, dropped, widened and come back, for SQL, for DataFrames and for streams under way."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.errors import PySparkException

from spark.session import append, drain, load, load_stream
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark

BIG = 2**40


def rows_of(frame):
    return sorted(tuple(row) for row in frame.collect())


def stamp(time_ms):
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")


@pytest.mark.spark41
@pytest.mark.parametrize(
    ("key", "lake"),
    [(False, "iceberg"), (True, "iceberg"), (True, "paimon")],
    ids=["log", "keyed", "keyed, Paimon"],
)
@pytest.mark.long
def test_sql_reads_files_of_every_schema_as_the_newest(spark, wh, make, key, lake):
    columns = "id INT NOT NULL, a STRING, b STRING, n INT, f FLOAT, gone STRING"
    columns += ", PRIMARY KEY (id)" if key else ""
    name = make(columns=columns, bucket_key="id", table_statistics_columns="n,a", table_datalake_format=lake)
    table = wh.table(name.removeprefix("streamhouse."))
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a1', 'b1', 1, 0.5, 'x'), (2, 'a2', 'b2', 2, 1.5, 'x')")
    tier(spark, wh.url, [table.name])
    before = table.refresh()
    snapshot = before.lake.snapshot_id
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN a TO c")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN b TO a")
    spark.sql(f"ALTER TABLE {name} DROP COLUMNS (gone)")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN n TYPE BIGINT")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN f TYPE DOUBLE")
    if not key and lake == "iceberg":  # the bucket key: Iceberg gives both types the same buckets
        spark.sql(f"ALTER TABLE {name} ALTER COLUMN id TYPE BIGINT")
    spark.sql(f"ALTER TABLE {name} ADD COLUMN gone INT")
    expected = [(1, "a1", "b1", 1, 0.5, None), (2, "a2", "b2", 2, 1.5, None)]
    for tiered in (False, True):  # the lake has the older columns first, then the newest
        if tiered:
            tier(spark, wh.url, [table.name])
        assert rows_of(spark.table(name)) == rows_of(load(spark, wh, table.name)) == expected
        assert rows_of(load(spark, wh, f"{table.name}$lake")) == expected
    spark.sql(f"INSERT INTO {name} VALUES (3, 'c3', 'a3', {BIG}, 0.1, 9)")
    expected.append((3, "c3", "a3", BIG, 0.1, 9))
    for tiered in (False, True):
        if tiered:
            tier(spark, wh.url, [table.name])
        assert rows_of(spark.table(name)) == expected
        where = {
            "id = 2": [2],
            "n = 2": [2],
            f"n >= {BIG}": [3],
            "n < 3": [1, 2],
            "c = 'a1'": [1],
            "a = 'a1'": [],
            "a = 'b1'": [1],
            "gone IS NULL": [1, 2],
            "gone = 9": [3],
            "f > 1": [2],
        }
        each = [f'SELECT "{condition}" asked, id FROM {name} WHERE {condition}' for condition in where]
        found = rows_of(spark.sql(" UNION ALL ".join(each)))  # in one job, each with its own filters pushed down
        assert found == sorted((condition, i) for condition, ids in where.items() for i in ids)
        bounds = spark.sql(f"SELECT min(n), max(n), count(gone), min(c), max(a) FROM {name}").collect()[0]
        assert tuple(bounds) == (1, BIG, 1, "a1", "b2")
    database, _, short = name.rpartition(".")
    if key:
        changes = spark.sql(f"SELECT id, c, a, n, gone FROM {database}.`{short}$changelog`")
        assert rows_of(changes) == [(i, c, a, n, gone) for i, c, a, n, _, gone in expected]
        after = spark.sql(f"SELECT after.id, after.c, after.n FROM {database}.`{short}$binlog`")
        assert rows_of(after) == [(i, c, n) for i, c, _, n, _, _ in expected]
    old = spark.sql(f"SELECT * FROM {name} VERSION AS OF {before.version} ORDER BY id").collect()
    assert [tuple(row) for row in old] == [(1, "a1", "b1", 1, 0.5, "x"), (2, "a2", "b2", 2, 1.5, "x")]
    moment = before.time_ms
    for at_time in (
        spark.sql(f"SELECT * FROM {name} TIMESTAMP AS OF timestamp_millis({moment}) ORDER BY id"),
        load(spark, wh, table.name, asOfTimestamp=stamp(moment)).orderBy("id"),
    ):
        assert at_time.columns == ["id", "a", "b", "n", "f", "gone"], "a time has the columns of then, as a version has"
        assert [tuple(row) for row in at_time.collect()] == [tuple(row) for row in old]
    with pytest.raises(PySparkException, match="was loaded with the current columns"):
        spark.read.option("asOfTimestamp", stamp(moment)).table(name).collect()
    at = load(spark, wh, f"{table.name}$lake", asOfLakeSnapshot=str(snapshot))
    assert rows_of(at) == expected[:2], "a lake snapshot is read by the newest columns"


def running(stream, wh, name, checkpoint):
    writer = stream.writeStream.format("streamhouse").option("warehouse", wh.url)
    return writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start(name)


def test_a_stream_that_reads_a_renamed_column_ends_and_goes_on_when_started_again(spark, wh, checkpoint):
    source = wh.create_table("changed.read_from", "id BIGINT, name STRING")
    target = wh.create_table("changed.read_to", "id BIGINT, text STRING")
    source.append([{"id": 1, "name": "a"}])
    query = running(load_stream(spark, wh, source.name).selectExpr("id", "name text"), wh, target.name, checkpoint)
    try:
        query.processAllAvailable()
        source.rename_column("name", "title")
        with pytest.raises(PySparkException, match="column 'name' was renamed to 'title' since the read began"):
            query.awaitTermination()
    finally:
        query.stop()
    source.append([{"id": 2, "title": "b"}])
    drain(load_stream(spark, wh, source.name).selectExpr("id", "title text"), wh, target.name, checkpoint)
    assert target.to_arrow().to_pylist() == [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]


@pytest.mark.classic
@pytest.mark.parametrize("way", ["catalog", "source"])
def test_a_stream_runs_on_where_columns_that_it_does_not_read_change(spark, wh, tmp_path, way):
    name = f"changed.unread_{way}"
    source = wh.create_table(name, "a INT, b STRING, c INT, d INT, e INT")
    target = wh.create_table(f"{name}_to", "a INT, b STRING")
    stream = spark.readStream.table(f"streamhouse.{name}") if way == "catalog" else load_stream(spark, wh, name)
    source.append([{"a": 0, "b": "x", "c": 1}])
    query = running(stream.where("a >= 0").select("a", "b"), wh, target.name, str(tmp_path / "checkpoint"))
    try:
        query.processAllAvailable()
        changes = ({"rename_columns": {"c": "z"}}, {"drop_columns": ["d"]}, {"widen_columns": {"e": "bigint"}})
        for number, change in enumerate(changes, 1):
            source.alter(**change)
            source.append([{"a": number, "b": "x"}])
            query.processAllAvailable()
        source.rename_column("b", "y")
        with pytest.raises(PySparkException, match="column 'b' was renamed to 'y' since the read began"):
            query.awaitTermination()
    finally:
        query.stop()
    assert sorted(target.to_arrow()["a"].to_pylist()) == [0, 1, 2, 3]


@pytest.mark.long
def test_a_write_by_the_old_name_is_told_the_new_one(spark, wh, checkpoint):
    source = wh.create_table("changed.by_old_name_from", "id BIGINT, name STRING")
    target = wh.create_table("changed.by_old_name", "id BIGINT, name STRING")
    source.append([{"id": 1, "name": "a"}])
    says = r"column 'name' of the rows is not in .*: it was renamed to 'title'"
    query = running(load_stream(spark, wh, source.name), wh, target.name, checkpoint)
    try:
        query.processAllAvailable()
        target.rename_column("name", "title")
        source.append([{"id": 2, "name": "b"}])
        with pytest.raises(PySparkException, match=says):
            query.awaitTermination()
    finally:
        query.stop()
    with pytest.raises(PySparkException, match=says):
        append(load(spark, wh, source.name), wh, target.name)
    drain(load_stream(spark, wh, source.name).withColumnRenamed("name", "title"), wh, target.name, checkpoint)
    assert target.to_arrow().to_pylist() == [{"id": 1, "title": "a"}, {"id": 2, "title": "b"}]


@pytest.mark.parametrize(
    ("key", "lake"),
    [(False, "iceberg"), (True, "iceberg"), (False, "paimon"), (True, "paimon")],
    ids=["log", "keyed", "log, Paimon", "keyed, Paimon"],
)
def test_columns_move_are_replaced_and_accept_null(spark, wh, make, checkpoint, key, lake):
    columns = "id BIGINT NOT NULL, n INT NOT NULL, a STRING" + (", PRIMARY KEY (id)" if key else "")
    name = make(columns=columns, bucket_key="id", table_datalake_format=lake)
    table = wh.table(name.removeprefix("streamhouse."))
    spark.sql(f"INSERT INTO {name} VALUES (1, 10, 'a1'), (2, 20, 'a2')")
    tier(spark, wh.url, [table.name])
    before = table.refresh().version
    target = wh.create_table(f"{table.name}_target", "id BIGINT, a STRING")

    def follow():
        options = {"startingOffsets": "earliest", **({"readChangeFeed": "true"} if key else {})}
        stream = load_stream(spark, wh, table.name, **options).select("id", "a")
        drain(stream, wh, target.name, checkpoint)

    follow()
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN a FIRST")
    spark.sql(f"ALTER TABLE {name} ADD COLUMN note STRING AFTER a")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN n DROP NOT NULL")
    assert spark.table(name).columns == ["a", "note", "id", "n"]
    spark.sql(f"INSERT INTO {name} VALUES ('a3', 'x', 3, NULL)")
    rows = [("a1", None, 1, 10), ("a2", None, 2, 20), ("a3", "x", 3, None)]
    for tiered in (False, True):
        if tiered:
            tier(spark, wh.url, [table.name])
            assert rows_of(load(spark, wh, f"{table.name}$lake")) == rows
        assert rows_of(spark.table(name)) == rows_of(load(spark, wh, table.name)) == rows
        assert rows_of(spark.sql(f"SELECT id FROM {name} WHERE n IS NULL")) == [(3,)]
    replaced = "id BIGINT, n BIGINT COMMENT 'wide', extra INT, note STRING, a STRING"
    spark.sql(f"ALTER TABLE {name} REPLACE COLUMNS ({replaced})")
    assert spark.table(name).columns == ["id", "n", "extra", "note", "a"]
    spark.sql(f"INSERT INTO {name} VALUES (4, {BIG}, 5, 'y', 'a4')")
    expected = [(i, n, None, note, a) for a, note, i, n in rows] + [(4, BIG, 5, "y", "a4")]
    assert rows_of(spark.table(name)) == expected
    with pytest.raises(PySparkException, match="REPLACE COLUMNS would lose the data of extra"):
        spark.sql(f"ALTER TABLE {name} REPLACE COLUMNS (id BIGINT, n BIGINT, note STRING, a STRING)")
    then = spark.sql(f"SELECT * FROM {name} VERSION AS OF {before}")
    assert (then.columns, rows_of(then)) == (["id", "n", "a"], [(1, 10, "a1"), (2, 20, "a2")])
    follow()
    assert rows_of(load(spark, wh, target.name)) == [(i, f"a{i}") for i in range(1, 5)]
