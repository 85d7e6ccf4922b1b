"""Errors reach a Spark user as one line that begins with our condition, whatever Spark wraps around it."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark.session import COLUMNS, append, drain, in_python, load, load_stream, rows
from streamhouse_spark import Warehouse
from streamhouse_spark.datasource.source import StreamhouseDataSource

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def table(wh):
    table = wh.create_table("errors.table", COLUMNS)
    table.append(rows(3))
    return table


def our_line(failure):
    """The line that our error has in Spark's text, which has one more of its own at most, and no traceback."""
    text = str(failure.value)
    told = text.partition("=== Streaming Query ===")[0]  # Spark tells after it how far the query came
    told = told.partition("JVM stacktrace:")[0].replace("\n SQLSTATE:", "")  # a Connect client's own lines
    shown = [line for line in told.splitlines() if line.strip()]
    assert len(shown) <= 2, text
    return next(line for line in shown if "streamhouse_spark.errors." in line)


@pytest.mark.spark41
@pytest.mark.parametrize(
    ("name", "options", "condition", "hint"),
    [
        ("errors.tabel", {}, "TABLE_NOT_FOUND", "did you mean errors.table?"),
        ("errors.table$lakes", {}, "INVALID_NAME", "$lake"),
        ("errors.table$binlog", {}, "INVALID_NAME", "use $changelog"),
        ("../errors", {}, "INVALID_NAME", ""),
        ("errors.table", {"asOfTimestmp": "1"}, "INVALID_OPTION", "did you mean asOfTimestamp?"),
        ("errors.table", {"versionAsOf": "1"}, "INVALID_OPTION", "use asOfLakeSnapshot"),
        ("errors.table", {"maxOffsetsPerTrigger": "1"}, "INVALID_OPTION", "only in readStream"),
        ("errors.table", {"failOnDataLoss": "maybe"}, "INVALID_OPTION", "'maybe'"),
        ("errors.table$lake", {"startingOffsets": "earliest"}, "INVALID_OPTION", "errors.table$changelog"),
        ("errors.table$buckets", {"asOfTimestamp": "5"}, "INVALID_OPTION", "errors.table$lake"),
        ("errors.table$changelog", {"asOfTimestamp": "5"}, "INVALID_OPTION", "endingTimestamp"),
        ("errors.table", {"asOfTimestamp": "5", "includeMetadata": "true"}, "INVALID_OPTION", "includeMetadata"),
    ],
)
def test_errors_of_reads_are_one_line_with_a_condition(spark, wh, name, options, condition, hint):
    with pytest.raises(PySparkException) as failure:
        load(spark, wh, name, **options).count()
    line = our_line(failure)
    assert f": {condition}: " in line
    assert hint in line


def test_a_read_without_a_table_name_is_refused(spark, wh):
    with pytest.raises(PySparkException) as failure:
        spark.read.format("streamhouse").option("warehouse", wh.url).load()
    assert "INVALID_OPTION: found no table name; use .load(" in our_line(failure)


@pytest.mark.spark41
def test_a_read_without_a_warehouse_is_refused(spark, wh, tmp_path):
    with pytest.raises(PySparkException) as failure:
        _ = load(spark, Warehouse(str(tmp_path / "nowhere")), "errors.table").schema  # Connect asks only now
    assert "WAREHOUSE_NOT_FOUND: " in our_line(failure)
    with pytest.raises(PySparkException) as failure:
        _ = spark.read.format("streamhouse").load("errors.table").schema
    assert "STREAMHOUSE_WAREHOUSE" in our_line(failure)


def _stream(spark, wh, name, checkpoint, options):
    stream = load_stream(spark, wh, name, **options)
    stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start().awaitTermination()


@pytest.fixture(scope="module")
def keyed(wh):
    return wh.create_table("errors.keyed", COLUMNS, primary_key=["id"])


@pytest.mark.parametrize(
    ("name", "options", "hint"),
    [
        ("table", {"startingOfsets": "full"}, "startingOffsets"),
        ("table", {"endingOffsets": "latest"}, "readStream"),
        ("table", {"startingOffsets": '{"0": 99}'}, "bucket 0 ends at 3"),
        ("keyed", {}, "errors.keyed$changelog"),
    ],
)
def test_errors_of_streams_are_one_line_with_a_condition(spark, wh, keyed, checkpoint, name, options, hint):
    with pytest.raises(PySparkException) as failure:
        _stream(spark, wh, f"errors.{name}", checkpoint, options)
    line = our_line(failure)
    assert "INVALID_OPTION: " in line
    assert hint in line


@pytest.mark.spark41
@pytest.mark.parametrize(
    ("query", "name", "options", "hint"),
    [
        ("SELECT 1L AS id", "tabel", {}, "TABLE_NOT_FOUND: "),
        ("SELECT 1L AS id, 1 AS other", "table", {}, "SCHEMA_MISMATCH: column 'other'"),
        ("SELECT nullif(id, 1) AS id FROM range(3)", "table", {}, "SCHEMA_MISMATCH: column 'id'"),
        ("SELECT 1L AS id, 'zz' AS name", "keyed", {"rowKindColumn": "name"}, "SCHEMA_MISMATCH: column 'name'"),
    ],
)
def test_errors_of_writes_are_one_line_with_a_remedy(spark, wh, keyed, query, name, options, hint):
    """Some are refused on the driver, some in a task, where the rows are."""
    with pytest.raises(PySparkException) as failure:
        append(spark.sql(query), wh, f"errors.{name}", **options)
    assert hint in our_line(failure)


def test_a_bad_row_of_a_stream_fails_in_one_line(spark, wh, checkpoint):
    rows = load_stream(spark, wh, "errors.table", startingOffsets="earliest").selectExpr("nullif(id, 1) AS id")
    with pytest.raises(PySparkException) as failure:
        drain(rows, wh, "errors.table", checkpoint)
    assert "SCHEMA_MISMATCH: column 'id'" in our_line(failure)


def test_the_traceback_of_a_function_of_the_user_is_kept(spark, wh):
    """Hiding ours is for one error: another error of the same session, and of a worker after ours, has its own."""
    with pytest.raises(PySparkException):
        append(spark.sql("SELECT nullif(id, 1) AS id FROM range(3)"), wh, "errors.table")
    with pytest.raises(PySparkException, match="Traceback") as failure:
        spark.range(1).mapInArrow(lambda batches: [1 / len(list(batches)[99:])], "id BIGINT").collect()
    assert "ZeroDivisionError" in str(failure.value)


def test_damaged_rows_are_never_returned(spark, wh, table):
    frozen = wh.create_table("errors.damaged", "id BIGINT, text STRING")
    frozen.append([{"id": i, "text": "x" * 100} for i in range(5000)])
    key = next(iter(frozen.inspect.segments()["file"].to_pylist()))
    path = frozen.storage.local_path(key)
    with open(path, "r+b") as file:  # noqa: PTH123
        file.seek(200_000)
        file.write(b"y")
    with pytest.raises(PySparkException, match="CORRUPT_DATA: ") as failure:
        load(spark, wh, "errors.damaged").collect()
    assert "Traceback" not in str(failure.value)
    with in_python(spark), pytest.raises(PySparkException) as failure:
        load(spark, wh, "errors.damaged").collect()
    assert "CORRUPT_DATA: " in our_line(failure)


def test_credentials_are_in_no_text(spark, wh):
    options = {"s3.secret-access-key": "SECRET-VALUE", "s3.access-key-id": "ACCESS-VALUE"}
    with pytest.raises(PySparkException) as failure:
        load(spark, wh, "errors.absent", **options)
    given = {"warehouse": wh.url, "path": "errors.table", **options}
    source = StreamhouseDataSource(given)
    reader = source.reader(schema=source.schema())
    texts = [str(failure.value), repr(reader), repr(source), *map(repr, reader.partitions())]
    texts += [repr(reader.__dict__), *(str(p.value) for p in reader.partitions())]
    frame = load(spark, wh, "errors.table", **options)
    texts.append(frame._jdf.queryExecution().toString())
    assert not any("SECRET-VALUE" in text or "ACCESS-VALUE" in text for text in texts)
