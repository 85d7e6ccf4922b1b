"""Batch appends: all or nothing, once, and checked before anything is written."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark.session import COLUMNS, append, ids, load, rows
from streamhouse_spark.datasource.write.staging_writer import TASK_INLINE_BYTES_MAX

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def target(wh):
    return wh.create_table("append.target", "id BIGINT NOT NULL, name STRING, amount DECIMAL(12,2)")


@pytest.mark.spark41
def test_columns_match_by_name(spark, wh, target):
    before = target.refresh().version
    append(spark.range(4).selectExpr("cast(id as decimal(10,1)) AMOUNT", "id"), wh, "append.target")
    assert target.refresh().version == before + 1  # one record for all tasks
    found = target.to_arrow().to_pylist()
    assert [(r["id"], r["name"], str(r["amount"])) for r in sorted(found, key=lambda r: r["id"])][1] == (
        1,
        None,
        "1.00",
    )


@pytest.mark.parametrize(
    ("expressions", "text"),
    [
        (["id", "id idd"], "column 'idd' of the rows is not in append.target"),
        (["'x' name"], "column 'id' of append.target is NOT NULL and missing"),
        (["id", "1 name"], "column 'name' of append.target has type"),
        (["id", "id ID2", "'a' name"], "'ID2'"),
    ],
)
def test_columns_are_checked_before_tasks_run(spark, wh, target, expressions, text):
    before = target.refresh().version
    with pytest.raises(PySparkException, match="SCHEMA_MISMATCH: ") as failure:
        append(spark.range(3).selectExpr(*expressions), wh, "append.target")
    assert "Failed to initialize Python data source writer" in str(failure.value)
    assert text in str(failure.value)
    assert target.refresh().version == before


def test_values_that_do_not_fit_fail_the_write(spark, wh, target):
    before = target.refresh().version
    for expressions in (["if(id = 2, null, id) id"], ["id", "1234567890123.5BD amount"]):
        with pytest.raises(PySparkException, match="SCHEMA_MISMATCH: column"):
            append(spark.range(3).selectExpr(*expressions), wh, "append.target")
    assert target.refresh().version == before


@pytest.mark.spark41
def test_missing_table_names_the_create_table(spark, wh, target):
    with pytest.raises(PySparkException) as failure:
        append(spark.range(3).selectExpr("id", "array(id) list"), wh, "append.targett")
    line = next(line for line in str(failure.value).splitlines() if "TABLE_NOT_FOUND: " in line)
    assert "CREATE TABLE streamhouse.append.targett (id BIGINT, list array<bigint>)" in line
    assert "append.target" in line


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("append.target$lake", {}, "INVALID_NAME: .*read-only"),
        (
            "append.target",
            {"startingOffsets": "latest"},
            "INVALID_OPTION: .*startingOffsets is not supported in write",
        ),
        ("append.target", {"txnAppId": "a"}, "INVALID_OPTION: found option txnAppId without txnVersion"),
        ("append.target", {"overwriteSchema": "true"}, "INVALID_OPTION: .*ALTER TABLE before the write"),
    ],
)
def test_a_bad_append_is_refused_before_it_writes(spark, wh, target, name, options, text):
    with pytest.raises(PySparkException, match=text):
        append(spark.range(3), wh, name, **options)


@pytest.mark.always
def test_missing_columns_are_added_before_the_rows(spark, wh):
    table = wh.create_table("append.merged", "id BIGINT")
    frame = spark.range(4).selectExpr("id", "CAST(id AS STRING) AS name", "named_struct('n', id) AS nested")
    for _ in range(2):
        append(frame, wh, "append.merged", mergeSchema="true")
    assert table.refresh().schema.ddl() == "id BIGINT, name STRING, nested struct<n:bigint>"
    found = load(spark, wh, "append.merged").where("nested.n = 3").collect()
    assert [tuple(row) for row in found] == [(3, "3", (3,))] * 2


def test_an_append_without_a_table_name_is_refused(spark, wh):
    with pytest.raises(PySparkException, match=r"INVALID_OPTION: found no table name; use \.save"):
        spark.range(3).write.format("streamhouse").option("warehouse", wh.url).mode("append").save()


@pytest.mark.always
def test_transaction_is_stored_once(spark, wh):
    table = wh.create_table("append.once", COLUMNS)
    for _ in range(2):
        append(spark.range(10), wh, "append.once", txnAppId="nightly", txnVersion="7")
    assert ids(table) == list(range(10))
    append(spark.range(10, 12), wh, "append.once", txnAppId="nightly", txnVersion="8")
    append(spark.range(99, 100), wh, "append.once", txnAppId="nightly", txnVersion="3")  # older than what is stored
    append(spark.range(0), wh, "append.once", txnAppId="nightly", txnVersion="9")
    assert ids(table) == list(range(12))
    assert table.refresh().transactions["nightly"].version == 9  # remembered though it had no rows


@pytest.mark.always
def test_failing_task_leaves_nothing(spark, wh):
    table = wh.create_table("append.failing", COLUMNS)
    before = table.state.version
    frame = spark.range(0, 100, 1, 4).selectExpr("if(id = 77, raise_error('no luck'), id) id")
    with pytest.raises(PySparkException, match="no luck"):
        append(frame, wh, "append.failing")
    assert table.refresh().version == before
    append(spark.range(100), wh, "append.failing")
    assert ids(table) == list(range(100))


def test_many_tasks_make_one_small_record(spark, wh):
    """However many tasks stage inline rows, a bucket gets one segment, and records do not grow with the tasks."""
    few = wh.create_table("append.few", "id BIGINT, text STRING", buckets=2, properties={"bucket.key": "id"})
    append(spark.range(0, 60, 1, 6).selectExpr("id"), wh, "append.few")
    assert [s["file"] for s in few.inspect.segments().to_pylist()] == [None, None]
    assert ids(few) == list(range(60))
    wide = wh.create_table("append.wide", "id BIGINT, text STRING")
    per_task = TASK_INLINE_BYTES_MAX // 2
    append(spark.range(0, 16, 1, 16).selectExpr("id", f"repeat('x', {per_task}) text"), wh, "append.wide")
    segments = wide.inspect.segments().to_pylist()
    assert len(segments) == 1
    assert segments[0]["file"] is not None
    assert wide.to_arrow()["text"].to_pylist() == ["x" * per_task] * 16


def test_large_tasks_write_objects_per_bucket(spark, wh):
    table = wh.create_table("append.large", COLUMNS, buckets=4, properties={"bucket.key": "id"})
    append(spark.range(0, 200_000, 1, 2).selectExpr("id", "concat('n', id) name"), wh, "append.large")
    assert table.to_arrow().num_rows == 200_000
    assert load(spark, wh, "append.large").selectExpr("count(distinct id)").first() == (200_000,)
    assert all(s["file"] for s in table.inspect.segments().to_pylist())


def test_read_and_write_the_same_table(spark, wh):
    table = wh.create_table("append.itself", COLUMNS)
    table.append(rows(10))
    append(load(spark, wh, "append.itself").selectExpr("id + 10 id", "name", "amount"), wh, "append.itself")
    assert ids(table) == list(range(20))
