"""Queries that Spark answers wrongly for sources that share one reader between scans, or one state between queries."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from spark.session import COLUMNS, rows
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(spark, wh, request):
    """Rows 0 to 59 in the lake, 60 to 99 in the log; statistics that leave most segments out."""
    name = f"wrong.{request.node.name.split('[')[0][5:45]}"
    properties = {"bucket.key": "id", "table.statistics.columns": "*"}
    table = wh.create_table(name, COLUMNS, buckets=2, properties=properties)
    for start in (0, 30):
        table.append(rows(30, start))
    tier(spark, wh.url, [name])
    for start in (60, 80):
        table.append(rows(20, start))
    return table


def frame_of(spark, table):
    return spark.table(f"streamhouse.{table.name}")


def ids_of(frame):
    return sorted(row[0] for row in frame.collect())


# -- scans of one query ------------------------------------------------------------------------------------------------


@pytest.mark.spark41
def test_one_frame_with_two_filters(spark, orders):
    frame = frame_of(spark, orders).select("id")
    assert ids_of(frame.where("id = 1").union(frame.where("id = 2"))) == [1, 2]
    assert ids_of(frame.where("id = 1").union(frame.where("id = 90"))) == [1, 90]
    assert ids_of(frame.where("id < 2").unionAll(frame.where("id >= 98")).unionAll(frame.where("id = 61"))) == [
        0, 1, 61, 98, 99,
    ]  # fmt: skip
    assert frame.where("id > 50").intersect(frame.where("id < 53")).count() == 2
    assert frame.exceptAll(frame.where("id >= 5")).count() == 5


@pytest.mark.spark41
@pytest.mark.long
def test_self_join_with_different_filters(spark, orders):
    name = f"streamhouse.{orders.name}"
    found = spark.sql(f"SELECT a.id, b.id FROM {name} a JOIN {name} b ON a.id + 1 = b.id WHERE a.id = 1 AND b.id = 2")
    assert [tuple(row) for row in found.collect()] == [(1, 2)]
    far = spark.sql(f"SELECT a.id, b.id FROM {name} a CROSS JOIN {name} b WHERE a.id = 3 AND b.id = 97")
    assert [tuple(row) for row in far.collect()] == [(3, 97)]
    frame = frame_of(spark, orders)
    left, right = frame.where("id < 3").alias("l"), frame.where("id % 2 = 0").alias("r")
    assert ids_of(left.join(right, "id").select("id")) == [0, 2]
    assert left.join(right, "id", "left").count() == 3


@pytest.mark.spark41
def test_count_after_a_filtered_count(spark, orders):
    frame = frame_of(spark, orders)
    assert frame.where("id = 1").count() == 1
    assert frame.count() == 100
    assert frame.where("id >= 60").count() == 40
    assert frame.limit(7).count() == 7
    assert frame.count() == 100
    assert frame.select("name").distinct().count() == 100


def test_halves_of_filters_hide_nothing(spark, wh, orders):
    """What the reader of lake files understands of a filter is not all of it."""
    name = f"streamhouse.{orders.name}"
    for condition, expected in (
        ("cast(id AS string) = '5' OR id > 97", 3),
        ("NOT (length(name) = 2 AND id < 200)", 90),
        ("id > 97 OR cast(id AS string) = '5'", 3),
        ("NOT (id >= 0 AND cast(id AS string) <> '5')", 1),
        ("(cast(id AS string) = '5' AND id < 9) OR id = 98", 2),
        ("CASE WHEN id = 7 THEN TRUE ELSE amount > 49 END", 2),
    ):
        assert spark.sql(f"SELECT id FROM {name} WHERE {condition}").toArrow().num_rows == expected, condition


@pytest.mark.spark41
def test_python_functions_see_the_rows_beside_them(spark, wh):
    """Spark 4.3 hands Arrow columns to Python as they are, and keeps those beside them for longer than their batch."""
    from pyspark.sql.functions import pandas_udf, udf

    table = wh.create_table("wrong.functions", "id BIGINT, text STRING, pair STRUCT<a: BIGINT>")
    count = 150_000
    for start in (0, count // 2):
        ids = pa.array(range(start, start + count // 2), pa.int64())
        pairs = pa.StructArray.from_arrays([ids], names=["a"])
        table.append(pa.table({"id": ids, "text": ids.cast(pa.string()), "pair": pairs}))
        if start == 0:
            tier(spark, wh.url, ["wrong.functions"])
    frame = spark.table("streamhouse.wrong.functions")
    for function in (
        udf(lambda number: number * 2, "long"),
        udf(lambda number: number * 2, "long", useArrow=True),
        pandas_udf(lambda numbers: numbers * 2, "long"),
    ):
        doubled = frame.select(function("id").alias("d"), "id", "text", "pair")
        wrong = doubled.where("d <> id * 2 OR text <> cast(id AS string) OR pair.a <> id OR text IS NULL")
        assert wrong.count() == 0
        assert doubled.selectExpr("sum(d)", "count(text)").first() == (count * (count - 1), count)


def test_nan_is_above_all_numbers_in_the_lake_too(spark, wh):
    table = wh.create_table("wrong.nan", "id BIGINT, x DOUBLE, s STRUCT<y: FLOAT>")
    nan = float("nan")
    table.append([{"id": 0, "x": 1.0, "s": {"y": 1.0}}, {"id": 1, "x": nan, "s": {"y": nan}}])
    table.append([{"id": 2, "x": -0.0, "s": {"y": -0.0}}])
    tier(spark, wh.url, ["wrong.nan"])
    for name in ("streamhouse.wrong.nan", "streamhouse.wrong.`nan$lake`"):
        for condition, expected in (
            ("x > 5", [1]),
            ("x = double('NaN')", [1]),
            ("NOT x < 5", [1]),
            ("s.y > 5", [1]),
            ("x = 0.0D", [2]),
            ("x >= 0.0D", [0, 1, 2]),
            ("s.y IN (float('NaN'), float(0))", [1, 2]),
            ("x > 5 OR id = 2", [1, 2]),
        ):
            assert ids_of(spark.sql(f"SELECT id FROM {name} WHERE {condition}")) == expected, condition
        assert str(spark.sql(f"SELECT min(x), max(x), count(x) FROM {name}").first()) == (
            "Row(min(x)=-0.0, max(x)=nan, count(x)=3)"
        )


# -- states of one query, and of queries one after another ------------------------------------------------------------


@pytest.mark.spark41
def test_temporary_view_sees_new_rows(spark, orders):
    name = f"streamhouse.{orders.name}"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW wrong_view AS SELECT id FROM {name} WHERE id >= 50")
    frame_of(spark, orders).createOrReplaceTempView("wrong_frame_view")
    assert spark.table("wrong_view").count() == 50
    assert spark.sql("SELECT id FROM wrong_frame_view").toArrow().num_rows == 100
    orders.append(rows(5, 100))
    assert spark.table("wrong_view").count() == 55
    assert len(spark.table("wrong_view").collect()) == 55
    assert spark.sql("SELECT id FROM wrong_frame_view").toArrow().num_rows == 105


@pytest.mark.spark41
def test_frame_sees_rows_that_came_after_it_was_made(spark, orders):
    frame = frame_of(spark, orders)
    small = frame.where("id > 97").select("id")
    assert frame.count() == 100
    orders.append(rows(5, 100))
    assert frame.count() == 105
    assert small.count() == 7
    assert frame.select("id").toArrow().num_rows == 105
    spark.sql(f"INSERT INTO streamhouse.{orders.name} VALUES (105L, 'x', 1.0D)")
    assert frame.agg({"id": "max"}).first()[0] == 105
    assert frame.join(frame.select("id"), "id").count() == 106


@pytest.mark.long
def test_both_sides_of_a_query_are_one_state_while_a_writer_commits(spark, orders):
    name = f"streamhouse.{orders.name}"
    stop = threading.Event()
    failures = []

    def write():
        start = 100
        try:
            while not stop.is_set():
                orders.append(rows(1, start))
                start += 1
        except Exception as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    try:
        while len(seen) < 12 or seen[-1] == seen[0]:  # the writer may come late
            first, second = spark.sql(
                f"SELECT count(*) FROM {name} WHERE id >= 0 UNION ALL SELECT count(*) FROM {name} WHERE amount >= 0"
            ).collect()
            assert first == second
            joined, left, right = spark.sql(
                f"SELECT (SELECT count(*) FROM {name} a JOIN {name} b ON a.id = b.id AND b.amount >= 0), "
                f"(SELECT count(*) FROM {name}), (SELECT count(name) FROM {name} WHERE id IS NOT NULL)"
            ).first()
            assert joined == left == right
            seen.append(joined)
    finally:
        stop.set()
        writer.join()
    assert not failures
    assert seen == sorted(seen)


def test_commit_between_analysis_and_execution(spark, orders):
    name = f"streamhouse.{orders.name}"
    query = f"SELECT count(*) AS n FROM {name} WHERE id >= 0 UNION ALL SELECT count(*) FROM {name} WHERE amount >= 0"
    frame = spark.sql(query)
    orders.append(rows(5, 100))
    first, second = (row.n for row in frame.collect())
    assert first == second
    orders.append(rows(5, 105))
    later = [row.n for row in spark.sql(query).collect()]
    assert later == [110, 110]


@pytest.mark.spark41
def test_cached_rows_stay_until_they_are_invalidated(spark, orders):
    name = f"streamhouse.{orders.name}"
    spark.sql(f"CACHE TABLE {name}")
    try:
        assert spark.table(name).count() == 100
        orders.append(rows(5, 100))
        spark.sql(f"REFRESH TABLE {name}")
        assert spark.table(name).count() == 105
        spark.sql(f"INSERT INTO {name} VALUES (105L, 'x', 1.0D)")
        assert spark.table(name).count() == 106
    finally:
        spark.sql(f"UNCACHE TABLE IF EXISTS {name}")
    orders.append(rows(5, 106))
    assert spark.table(name).count() == 111


@pytest.mark.spark41
def test_cached_rows_are_found_again(spark, orders):
    name = f"streamhouse.{orders.name}"
    query = f"EXPLAIN SELECT id FROM {name} WHERE id > 3"

    def is_cached():
        plan = spark.sql(query).first()[0]
        return "In-memory table" in plan or "InMemoryTableScan" in plan

    assert not is_cached()
    frame = spark.table(name).persist()
    try:
        assert frame.count() == 100
        assert is_cached()
    finally:
        frame.unpersist()
    spark.sql(f"CACHE TABLE {name}")
    try:
        assert is_cached()
    finally:
        spark.sql(f"UNCACHE TABLE {name}")
    assert not is_cached()


@pytest.mark.spark41
def test_persisted_frame_hides_no_rows_from_others(spark, orders):
    frame = frame_of(spark, orders).where("id >= 90").persist()
    try:
        assert frame.count() == 10
        orders.append(rows(5, 100))
        assert frame_of(spark, orders).where("id >= 90").count() == 15
        assert frame.count() == 15
    finally:
        frame.unpersist()


def test_table_that_was_made_anew_is_another_table(spark, wh, orders):
    frame = frame_of(spark, orders)
    assert frame.count() == 100
    wh.drop_table(orders.name)
    with pytest.raises(PySparkException):
        frame.where("id > 3").collect()
    wh.create_table(orders.name, COLUMNS).append(rows(3))
    with pytest.raises(PySparkException) as failure:
        frame.where("id >= 0").collect()
    assert "Traceback" not in str(failure.value).split("JVM stacktrace")[0]
    assert frame_of(spark, orders).count() == 3


@pytest.mark.long
def test_frame_after_a_column_was_added(spark, orders):
    name = f"streamhouse.{orders.name}"
    frame = frame_of(spark, orders)
    assert frame.count() == 100
    spark.sql(f"ALTER TABLE {name} ADD COLUMN extra INT")
    spark.sql(f"INSERT INTO {name} VALUES (100L, 'x', 1.0D, 7)")
    assert frame.columns == ["id", "name", "amount"]
    assert frame.where("id >= 99").select("id", "name").count() == 2
    assert frame.select("name").toArrow().num_rows == 101
    again = frame_of(spark, orders)
    assert again.columns == ["id", "name", "amount", "extra"]
    assert [tuple(row) for row in again.where("extra = 7").select("id", "extra").collect()] == [(100, 7)]
    assert again.where("extra IS NULL").count() == 100
    assert frame.join(again, "id").count() == 101


def test_truncated_table_under_an_open_frame(spark, orders):
    frame = frame_of(spark, orders)
    assert frame.where("id >= 0").count() == 100
    spark.sql(f"TRUNCATE TABLE streamhouse.{orders.name}")
    assert frame_of(spark, orders).count() == 0
    assert frame.where("id >= 0").count() == 0
    orders.append(rows(4))
    assert frame_of(spark, orders).where("id >= 0").count() == 4
