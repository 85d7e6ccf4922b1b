"""Writes through the catalog: what SQL and frames add and replace, what is refused, and how rows lie in buckets."""

from __future__ import annotations

import datetime as dt
import re
import threading
import time
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from spark.session import COLUMNS, ids, rows
from streamhouse_spark import Warehouse
from streamhouse_spark.errors import TableNotFoundError
from streamhouse_spark.log.bucketing import iceberg_buckets
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark
TYPED = "id BIGINT NOT NULL, name STRING, amount DECIMAL(6,2), day DATE"


def own_name(request) -> str:
    return re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")[:60]


@pytest.fixture
def table(wh, request):
    """Of this test alone: two buckets, partitioned by day."""
    properties = {"bucket.num": "2", "bucket.key": "id"}
    return wh.create_table(f"writes.{own_name(request)}", TYPED, partition_by=["day"], properties=properties)


@pytest.fixture
def name(table) -> str:
    return f"streamhouse.{table.name}"


def actions(table) -> list[str]:
    return table.inspect.commits()["actions"].to_pylist()


def found(spark, name: str) -> list[tuple]:
    return [tuple(row) for row in spark.table(name).orderBy("id").collect()]


# -- INSERT INTO -------------------------------------------------------------------------------------------------------


@pytest.mark.spark41
def test_insert_matches_columns_by_position_list_or_name(spark, table, name):
    spark.sql(f"INSERT INTO {name} VALUES (1, 'one', 1.5, DATE'2026-01-01')")
    spark.sql(f"INSERT INTO {name} (amount, id) VALUES (2, 2)")
    spark.sql(f"INSERT INTO {name} BY NAME SELECT 'three' AS name, 3 AS id")
    spark.sql(f"INSERT INTO {name} PARTITION (day = DATE'2026-01-04') VALUES (4, 'four', NULL)")
    spark.sql(f"INSERT INTO {name} SELECT 5, 8, 9.999, NULL")
    assert found(spark, name) == [
        (1, "one", Decimal("1.50"), dt.date(2026, 1, 1)),
        (2, None, Decimal("2.00"), None),
        (3, "three", None, None),
        (4, "four", None, dt.date(2026, 1, 4)),
        (5, "8", Decimal("10.00"), None),
    ]


REFUSED_INSERTS = [
    ("(name) VALUES ('x')", "CANNOT_FIND_DATA.*`id`"),
    ("BY NAME SELECT 'x' AS name", "CANNOT_FIND_DATA.*`id`"),
    ("BY NAME SELECT 1 AS id, 2 AS x", "EXTRA_COLUMNS.*`x`"),
    ("(id, x) VALUES (1, 2)", "UNRESOLVED_COLUMN.*`x`"),
    ("VALUES (1, 'x')", "NOT_ENOUGH_DATA_COLUMNS"),
    ("VALUES (1, 'x', 1, NULL, 1)", "TOO_MANY_DATA_COLUMNS"),
    ("VALUES (NULL, 'x', 1, NULL)", "NOT_NULL_ASSERT_VIOLATION|NULL value appeared in non-nullable"),
    ("SELECT if(id = 3, NULL, id), 'x', 1, NULL FROM range(5)", "NOT_NULL_ASSERT_VIOLATION|NULL value appeared"),
    ("VALUES ('1', 'x', 1, NULL)", "CANNOT_SAFELY_CAST.*`id`"),
    ("VALUES (1, 'x', 99999999, NULL)", "CAST_OVERFLOW_IN_TABLE_INSERT"),
]


@pytest.mark.spark41
def test_refused_inserts_leave_nothing(spark, table, name):
    version = table.refresh().version
    for clause, says in REFUSED_INSERTS:
        with pytest.raises(PySparkException, match=f"(?s){says}"):
            spark.sql(f"INSERT INTO {name} {clause}")
    assert table.refresh().version == version


# -- frames ------------------------------------------------------------------------------------------------------------


@pytest.mark.spark41
def test_each_way_of_a_frame_appends_rows(spark, table, name):
    spark.range(0, 10).writeTo(name).append()
    spark.range(10, 20).selectExpr("CAST(id AS INT) AS id", "'x' AS name").write.mode("append").saveAsTable(name)
    whole = spark.range(20, 30).selectExpr("id", "'y'", "1", "DATE'2026-01-01'")
    whole.write.insertInto(name)
    assert ids(table) == list(range(30))
    version = table.refresh().version
    for write, says in (
        (lambda: spark.range(1).write.saveAsTable(name), "ALREADY_EXISTS"),
        (lambda: spark.range(1).selectExpr("id", "1 AS x").writeTo(name).append(), "EXTRA_COLUMNS"),
        (lambda: whole.write.option("mergeSchema", "true").insertInto(name), "use df.writeTo"),
        (lambda: spark.range(1).writeTo(name).option("txnApp", "a").append(), "did you mean txnAppId"),
        (lambda: spark.range(1).writeTo(name).option("txnAppId", "a").append(), "without txnVersion"),
    ):
        with pytest.raises(PySparkException, match=says) as refused:
            write()
        assert "Traceback" not in str(refused.value)
    spark.range(1).write.mode("ignore").saveAsTable(name)
    assert table.refresh().version == version


@pytest.mark.spark41
def test_a_transaction_is_stored_once(spark, table, name):
    def write(frame, version, mode="append"):
        writer = frame.writeTo(name).option("txnAppId", "nightly").option("txnVersion", str(version))
        writer.append() if mode == "append" else writer.overwrite(f.lit(True))

    write(spark.range(5), 1)
    write(spark.range(5), 1)
    write(spark.range(3), 0)
    assert ids(table) == list(range(5))
    write(spark.range(5, 7), 2, "overwrite")
    write(spark.range(9), 2, "overwrite")
    assert ids(table) == [5, 6]


# -- overwrite ---------------------------------------------------------------------------------------------------------


@pytest.mark.spark41
def test_all_rows_are_replaced_in_one_record(spark, wh: Warehouse, table, name):
    table.append([{"id": i} for i in range(10)])
    tier(spark, wh.url, [table.name])
    before = table.refresh().version
    spark.sql(f"INSERT OVERWRITE {name} (id) SELECT id FROM range(10, 15)")
    assert ids(table) == list(range(10, 15))
    spark.range(20, 25).writeTo(name).overwrite(f.lit(True))
    assert ids(table) == list(range(20, 25))
    columns = ("id", "'x'", "1", "DATE'2026-01-01'")
    spark.range(30, 35).selectExpr(*columns).write.mode("overwrite").insertInto(name)
    assert ids(table) == list(range(30, 35))
    spark.sql(f"INSERT OVERWRITE {name} SELECT * FROM {name} WHERE id < 32")
    assert ids(table) == [30, 31]
    assert actions(table)[-4:] == ["truncate, append"] * 4
    assert table.refresh().table_uuid == table.uuid
    was = spark.sql(f"SELECT id FROM {name} VERSION AS OF {before}").collect()
    assert sorted(row.id for row in was) == list(range(10))
    spark.sql(f"TRUNCATE TABLE {name}")
    assert spark.table(name).count() == 0
    assert actions(table)[-1] == "truncate"


def test_a_reader_sees_one_of_the_two_states(spark, table, name):
    table.append([{"id": i} for i in range(100)])
    seen, done = [], threading.Event()

    def look():
        while not (seen and done.is_set()):
            counted = spark.sql(f"SELECT count(*), min(id), max(id), sum(id) FROM {name} WHERE id >= 0").first()
            seen.append(tuple(counted))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        states = {(100, 0, 99, 4950)}
        for start in (1000, 2000, 3000):
            spark.range(start, start + 50, 1, 4).writeTo(name).overwrite(f.lit(True))
            states.add((50, start, start + 49, 50 * start + 1225))
    finally:
        done.set()
        reader.join()
    assert set(seen) <= states


# -- replace -----------------------------------------------------------------------------------------------------------


@pytest.mark.spark41
def test_a_replaced_table_stays_that_table(spark, wh: Warehouse, table, name):
    """``saveAsTable`` with mode overwrite is REPLACE TABLE AS SELECT to Spark."""
    table.append([{"id": i} for i in range(10)])
    before = table.refresh().version
    rows = "id", "'x' AS name", "CAST(NULL AS DECIMAL(6,2)) AS amount", "CAST(NULL AS DATE) AS day"
    spark.range(10, 15).selectExpr(*rows[1:], "CAST(id AS INT) AS ID").write.mode("overwrite").saveAsTable(name)
    assert found(spark, name) == [(i, "x", None, None) for i in range(10, 15)]
    spark.table(name).where("id < 12").write.mode("overwrite").saveAsTable(name)
    assert ids(table) == [10, 11]
    spark.range(20, 22).selectExpr(*rows).writeTo(name).using("streamhouse").createOrReplace()
    assert ids(table) == [20, 21]
    one = "SELECT 1L AS id, 'x' AS name, 2.50BD AS amount, DATE'2026-01-01' AS day"
    spark.sql(f"CREATE OR REPLACE TABLE {name} PARTITIONED BY (day, bucket(2, id)) AS {one}")
    assert ids(table) == [1]
    assert actions(table)[-4:] == ["truncate, append"] * 4
    again = wh.table(table.name)
    assert (again.uuid, again.num_buckets, again.partition_by) == (table.uuid, 2, ("day",))
    assert len(spark.sql(f"SELECT id FROM {name} VERSION AS OF {before}").collect()) == 10
    new = f"{name}_new"
    spark.range(3).writeTo(new).createOrReplace()
    spark.range(3, 5).write.mode("overwrite").saveAsTable(new)
    assert [row.id for row in spark.table(new).orderBy("id").collect()] == [3, 4]


@pytest.mark.spark41
@pytest.mark.parametrize(
    ("statement", "columns", "partition_by"),
    [
        ("CREATE OR REPLACE TABLE {} AS SELECT 1L AS id, 2 AS x", ["id", "x"], ()),
        ("REPLACE TABLE {} PARTITIONED BY (n) AS SELECT 1L AS id, 'x' AS name, 3 AS n", ["id", "name", "n"], ("n",)),
        ("REPLACE TABLE {} TBLPROPERTIES ('table.log.ttl' = '3d') AS SELECT 1L AS id, 'x' AS name", ["id", "name"], ()),
        ("REPLACE TABLE {} AS SELECT 'x' AS id", ["id"], ()),
        ("CREATE OR REPLACE TABLE {} (id BIGINT, y INT, PRIMARY KEY (id))", ["id", "y"], ()),
    ],
)
def test_another_table_takes_the_place(spark, wh: Warehouse, table, name, statement, columns, partition_by):
    table.append([{"id": 1}])
    tier(spark, wh.url, [table.name])
    table.append([{"id": 5}])
    before_ms = wh.storage.now_ms()
    time.sleep(0.01)
    spark.sql(statement.format(name))
    new = wh.table(table.name)
    assert new.uuid != table.uuid
    then = f"timestamp_millis({before_ms})"
    assert {row.id for row in spark.sql(f"SELECT * FROM {name} TIMESTAMP AS OF {then}").collect()} == {1, 5}
    options = {"asOfTimestamp": before_ms, "warehouse": wh.url}
    plain = spark.read.format("streamhouse").options(**options).load(table.name)
    assert (plain.columns, plain.count()) == (table.schema.names, 2)
    assert (new.schema.names, new.partition_by) == (columns, partition_by)
    rows = 0 if "(id BIGINT" in statement else 1
    assert spark.table(name).count() == new.to_arrow().num_rows == rows
    if rows:
        tier(spark, wh.url, [table.name])
        assert new.lake.to_arrow().num_rows == 1
    with pytest.raises(TableNotFoundError):
        table.append([{"id": 2}])
    back = wh.undrop_table(table.name, uuid=table.uuid, to=f"{table.name}_old")
    assert sorted(back.to_arrow()["id"].to_pylist()) == [1, 5]
    assert wh.table(table.name).uuid == new.uuid


def test_a_replacement_that_fails_leaves_the_table(spark, wh: Warehouse, table, name):
    table.append([{"id": 1}])
    version = table.refresh().version
    as_select = "AS SELECT 1L AS id"
    for statement, says in (
        (f"REPLACE TABLE {name} USING parquet {as_select}", "found USING parquet, expected streamhouse"),
        (f"REPLACE TABLE {name}_absent {as_select}", "TABLE_OR_VIEW_NOT_FOUND|cannot be found"),
        (f"REPLACE TABLE {name} AS SELECT CAST(raise_error('no luck') AS STRING) AS x, 1L AS id", "no luck"),
        (f"REPLACE TABLE {name} TBLPROPERTIES ('table.log.tll' = '3d') {as_select}", "table.log.ttl"),
    ):
        with pytest.raises(PySparkException, match=f"(?s){says}"):
            spark.sql(statement)
    assert table.refresh().version == version
    assert not [dropped for dropped in wh.dropped_tables() if dropped.uuid == table.uuid]


def test_a_table_whose_first_rows_fail_is_not_there(spark, wh: Warehouse, table, name):
    with pytest.raises(PySparkException, match="no luck"):
        spark.sql(f"CREATE TABLE {name}_new AS SELECT CAST(raise_error('no luck') AS STRING) AS name, 1L AS id")
    assert f"{table.name}_new" not in wh.tables("writes")


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_table_created_again_meanwhile_is_not_written_to(spark, wh: Warehouse, table, name):
    url, short = wh.url, table.name

    @f.udf("bigint")
    def meanwhile(value):
        other = Warehouse(url)
        other.drop_table(short)
        other.create_table(short, TYPED)
        return value

    for write in (
        lambda frame: frame.writeTo(name).append(),
        lambda frame: frame.writeTo(name).overwrite(f.lit(True)),
    ):
        with pytest.raises(PySparkException, match=r"(TABLE_NOT_FOUND|CONFLICT): .*dropped"):
            write(spark.range(0, 1, 1, 1).select(meanwhile("id").alias("id")))
        assert ids(wh.table(short)) == []


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_failing_task_leaves_nothing_visible(spark, table, name, mode):
    table.append([{"id": 1}])
    version = table.refresh().version

    @f.udf("bigint")
    def unlucky(value):
        if value == 77:
            raise ValueError("no luck")
        return value

    writer = spark.range(0, 100, 1, 4).select(unlucky("id").alias("id")).writeTo(name)
    with pytest.raises(PySparkException, match="no luck"):
        writer.append() if mode == "append" else writer.overwrite(f.lit(True))
    assert table.refresh().version == version
    assert spark.table(name).count() == 1


# -- buckets -----------------------------------------------------------------------------------------------------------

KEYS = {
    "i8": pa.array([-128, -1, 0, 1, 127, None], pa.int8()),
    "i16": pa.array([-32768, -1, 0, 34, 32767, None], pa.int16()),
    "i32": pa.array([-(2**31), -1, 0, 34, 2**31 - 1, None], pa.int32()),
    "i64": pa.array([-(2**63), -1, 0, 34, 2**63 - 1, None], pa.int64()),
    "d5": pa.array([Decimal(v) for v in ("-99999", "-128", "0", "127", "99999")] + [None], pa.decimal128(5, 0)),
    "d18": pa.array([Decimal(v) for v in ("-1.280", "-0.001", "0.000", "14.200")] + [None] * 2, pa.decimal128(18, 3)),
    "d38": pa.array(
        [Decimal(v) for v in (f"-{'9' * 28}.{'9' * 10}", "-0.0000000001", "0", "1.28", f"{'9' * 28}.{'9' * 10}")]
        + [None],
        pa.decimal128(38, 10),
    ),
    "s": pa.array(["", "iceberg", "é\u0301", "日本語🙂", "\x00\x01", None], pa.string()),
    "b": pa.array([b"", b"\x00", b"\x00\x01\x02\x03", b"\xff" * 7, b"abc", None], pa.binary()),
    "d": pa.array([-719162, -1, 0, 1, 20000, None], pa.date32()),
    "t": pa.array([-62135596800000000, -1, 0, 1, 1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
    "n": pa.array([-62135596800000000, -1, 0, 1, 1_700_000_000_123_456, None], pa.timestamp("us")),
}
"""Keys of every type that can be a bucket's."""


@pytest.fixture(scope="module")
def keys(wh) -> pa.Table:
    """One row for each value of each column; the other columns of the row are null."""
    count = len(next(iter(KEYS.values())))
    columns = {"id": pa.array(range(count * len(KEYS)))}
    for place, (column, values) in enumerate(KEYS.items()):
        before, after = place * count, (len(KEYS) - place - 1) * count
        columns[column] = pa.concat_arrays([pa.nulls(before, values.type), values, pa.nulls(after, values.type)])
    every = pa.table(columns)
    wh.create_table("writes.keys", every.schema).append(every)
    return every


@pytest.mark.spark41
def test_the_bucket_function_is_our_hash(spark, keys):
    calls = [f"streamhouse.system.bucket({n}, {c}) AS {c}_{n}" for c in KEYS for n in (1, 7, 1000)]
    answers = spark.sql(f"SELECT {', '.join(calls)} FROM streamhouse.writes.keys ORDER BY id").toArrow()
    for column in KEYS:
        for n in (1, 7, 1000):
            assert answers[f"{column}_{n}"].to_pylist() == iceberg_buckets(keys[column], n).tolist(), (column, n)


@pytest.mark.parametrize("column", KEYS)
def test_rows_are_right_for_every_type_of_bucket_key(spark, wh: Warehouse, keys, column):
    target = f"writes.by_{column}"
    kind = spark.table("streamhouse.writes.keys").schema[column].dataType.simpleString()
    spark.sql(f"CREATE TABLE streamhouse.{target} (id BIGINT, k {kind}) PARTITIONED BY (bucket(3, k))")
    spark.sql(f"INSERT INTO streamhouse.{target} SELECT id, {column} FROM streamhouse.writes.keys")
    answer = spark.sql(f"SELECT id, k, _bucket FROM streamhouse.{target} ORDER BY id").toArrow()
    assert answer["id"].to_pylist() == keys["id"].to_pylist()
    assert answer["k"].to_pylist() == keys[column].to_pylist()
    assert answer["_bucket"].to_pylist() == iceberg_buckets(keys[column], 3).tolist()
    value = keys[column].drop_null()[-1]
    matching = wh.table(target).to_arrow()
    assert len(matching) == len(keys)
    position = keys[column].to_pylist().index(value.as_py())
    joined = spark.sql(
        f"SELECT t.id FROM streamhouse.{target} t JOIN streamhouse.writes.keys s ON t.k = s.{column} "
        f"WHERE s.id = {position}"
    )
    assert [row.id for row in joined.collect()] == [position]


@pytest.mark.spark41
@pytest.mark.parametrize("way", ["insert", "append", "overwrite"])
def test_a_write_of_many_partitions_makes_one_segment_a_bucket(spark, wh: Warehouse, way):
    properties = {"bucket.num": "4", "bucket.key": "id"}
    table = wh.create_table(f"writes.clustered_{way}", COLUMNS, properties=properties)
    name = f"streamhouse.{table.name}"
    frame = spark.range(0, 40_000, 1, 8).selectExpr("id", "repeat(CAST(id AS STRING), 5) AS name", "0.5D AS amount")
    if way == "insert":
        frame.createOrReplaceTempView("many_partitions")
        spark.sql(f"INSERT INTO {name} SELECT * FROM many_partitions")
    elif way == "append":
        frame.writeTo(name).append()
    else:
        table.append(rows(5))
        frame.writeTo(name).overwrite(f.lit(True))
    segments = spark.sql(f"SELECT bucket, file IS NOT NULL FROM streamhouse.writes.`clustered_{way}$segments`")
    assert sorted(tuple(row) for row in segments.collect()) == [(bucket, True) for bucket in range(4)]
    assert spark.table(name).selectExpr("count(*)", "count(DISTINCT id)", "sum(id)").first() == (
        40_000,
        40_000,
        799_980_000,
    )
    assert spark.table(name).where("_bucket <> streamhouse.system.bucket(4, id)").count() == 0


def test_without_a_bucket_key_rows_come_as_they_are(spark, wh: Warehouse):
    table = wh.create_table("writes.no_key", COLUMNS)
    spark.range(0, 100, 1, 8).selectExpr("id").writeTo(f"streamhouse.{table.name}").append()
    assert ids(table) == list(range(100))
    assert len(actions(table)) == 2


def test_an_empty_insert_is_no_commit(spark, table, name):
    version = table.refresh().version
    spark.sql(f"INSERT INTO {name} (id) SELECT id FROM range(10) WHERE id > 100")
    assert table.refresh().version == version
