"""Defaults of columns in Spark: in SQL, by DataFrames and in streams, of the catalog and of the plain data source."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from pyspark.errors import AnalysisException

from spark.session import append, drain
from streamhouse_spark import Warehouse

pytestmark = [pytest.mark.spark]

TYPES = {
    "b": ("BOOLEAN", "true", True),
    "i1": ("TINYINT", "-128", -128),
    "i2": ("SMALLINT", "7", 7),
    "i4": ("INT NOT NULL", "-5", -5),
    "i8": ("BIGINT", "-9223372036854775808", -(2**63)),
    "f4": ("FLOAT", "0.5", 0.5),
    "f8": ("DOUBLE", "CAST('-Infinity' AS DOUBLE)", float("-inf")),
    "h": ("DOUBLE", "-1e300", -1e300),
    "d": ("DECIMAL(10,2)", "1.5", Decimal("1.50")),
    "s": ("STRING", r"""'it''s \\ a\n"q"'""", 'it\'s \\ a\n"q"'),
    "x": ("BINARY", "X'00FF'", b"\x00\xff"),
    "day": ("DATE", "DATE '2026-01-31'", dt.date(2026, 1, 31)),
    "ts": ("TIMESTAMP", "TIMESTAMP '2026-01-31 12:00:00'", dt.datetime(2026, 1, 31, 17, tzinfo=dt.UTC)),  # New York
    "n": ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ '2026-01-31 12:00:00.25'", dt.datetime(2026, 1, 31, 12, 0, 0, 250_000)),
}


@pytest.fixture
def name(spark, request) -> str:
    """The name of a table of this test, in a database of its own."""
    database = f"db_{abs(hash(request.node.nodeid)) % 10**9}"
    spark.sql(f"CREATE DATABASE streamhouse.{database}")
    return f"{database}.t"


def found(table, order="id"):
    table.refresh()
    return [tuple(row.values()) for row in table.to_arrow().sort_by(order).to_pylist()]


@pytest.mark.spark41
def test_every_type_is_made_filled_in_shown_and_made_again(spark, wh: Warehouse, name):
    columns = ", ".join(f"{column} {kind} DEFAULT {sql}" for column, (kind, sql, _) in TYPES.items())
    spark.sql(f"CREATE TABLE streamhouse.{name} (id BIGINT, {columns}, a ARRAY<INT>)")
    expected = tuple(value for _, _, value in TYPES.values())
    spark.sql(f"INSERT INTO streamhouse.{name} (id) VALUES (1)")  # Spark fills in
    append(spark.range(2, 3), wh, name)  # we do
    table = wh.table(name)
    assert found(table) == [(1, *expected, None), (2, *expected, None)]
    first, second = spark.table(f"streamhouse.{name}").drop("id").collect()
    assert first == second
    schema = table.state.schema
    statement = spark.sql(f"SHOW CREATE TABLE streamhouse.{name}").collect()[0][0]
    described = spark.sql(f"DESCRIBE EXTENDED streamhouse.{name}").collect()
    assert ("i2", "smallint", "7") in [tuple(row) for row in described]
    spark.sql(f"DROP TABLE streamhouse.{name}")
    spark.sql(statement)
    assert wh.table(name).state.schema == schema


@pytest.mark.spark41
def test_every_statement_fills_in(spark, wh: Warehouse, name):
    sql = f"streamhouse.{name}"
    spark.sql(f"CREATE TABLE {sql} (id INT, v STRING DEFAULT 'x', w INT, PRIMARY KEY (id))")
    spark.sql(f"INSERT INTO {sql} (id) VALUES (1)")
    spark.sql(f"INSERT INTO {sql} VALUES (2, DEFAULT, DEFAULT)")
    spark.sql(f"INSERT INTO {sql} (id, v) VALUES (3, NULL), (4, NULL)")
    spark.sql(f"INSERT INTO {sql} BY NAME SELECT 5 AS w, 5 AS id")
    spark.sql(f"UPDATE {sql} SET v = DEFAULT, w = 9 WHERE id = 4")
    spark.sql(f"""
        MERGE INTO {sql} t USING (SELECT explode(array(5, 6)) AS id) s ON t.id = s.id
        WHEN MATCHED THEN UPDATE SET w = DEFAULT WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)
    """)
    spark.sql(f"""
        MERGE INTO {sql} t USING (SELECT 7 AS id) s ON t.id = s.id
        WHEN NOT MATCHED THEN INSERT (id, v, w) VALUES (s.id, DEFAULT, 1)
    """)
    spark.range(8, 9).selectExpr("int(id) id").writeTo(sql).append()
    spark.range(9, 10).selectExpr("int(id) id").write.mode("append").saveAsTable(sql)
    append(spark.range(10, 11).selectExpr("int(id) id", "9 w"), wh, name)
    append(spark.range(10, 12).selectExpr("int(id) id", "10 w"), wh, name, partialUpdate="true")
    assert found(wh.table(name)) == [
        (1, "x", None), (2, "x", None), (3, None, None), (4, "x", 9), (5, "x", None), (6, "x", None), (7, "x", 1),
        (8, "x", None), (9, "x", None), (10, "x", 10), (11, "x", 10),
    ]  # fmt: skip
    spark.sql(f"INSERT OVERWRITE {sql} (id) VALUES (1)")
    assert found(wh.table(name)) == [(1, "x", None)]


@pytest.mark.spark41
def test_streams_fill_missing_columns_with_defaults(spark, wh: Warehouse, name, tmp_path):
    wh.create_table(name, "id BIGINT, v STRING NOT NULL", defaults={"v": "x"})
    wh.create_table(f"{name}_source", "id BIGINT").append([{"id": 1}, {"id": 2}])
    source = spark.readStream.table(f"streamhouse.{name}_source")
    drain(source.selectExpr("id"), wh, name, str(tmp_path / "plain"))
    writer = source.selectExpr("id + 2 id").writeStream.option("checkpointLocation", str(tmp_path / "catalog"))
    writer.trigger(availableNow=True).toTable(f"streamhouse.{name}").awaitTermination()
    assert found(wh.table(name)) == [(i, "x") for i in range(1, 5)]


@pytest.mark.spark41
def test_defaults_change_and_older_rows_stay(spark, wh: Warehouse, name):
    sql = f"streamhouse.{name}"
    spark.sql(f"CREATE TABLE {sql} (id INT)")
    spark.sql(f"INSERT INTO {sql} VALUES (1)")
    spark.sql(f"CALL streamhouse.system.tier('{name}')").collect()
    spark.sql(f"ALTER TABLE {sql} ADD COLUMN v INT")
    spark.sql(f"ALTER TABLE {sql} ALTER COLUMN v SET DEFAULT 5")
    spark.sql(f"INSERT INTO {sql} (id) VALUES (2)")
    spark.sql(f"ALTER TABLE {sql} ALTER COLUMN v SET DEFAULT 6")
    spark.sql(f"INSERT INTO {sql} (id) VALUES (3)")
    spark.sql(f"ALTER TABLE {sql} ALTER COLUMN v DROP DEFAULT")
    spark.sql(f"INSERT INTO {sql} (id) VALUES (4)")
    for _ in range(2):  # Spark's own reader gives a column that a file lacks the default that it knows of
        rows = spark.sql(f"SELECT id, v FROM {sql} ORDER BY id").collect()
        assert [tuple(row) for row in rows] == [(1, None), (2, 5), (3, 6), (4, None)]
        assert spark.sql(f"SELECT id FROM {sql} WHERE v IS NULL").count() == 2
        spark.sql(f"CALL streamhouse.system.tier('{name}')").collect()
    spark.sql(f"ALTER TABLE {sql} ALTER COLUMN v SET DEFAULT 7")
    assert spark.sql(f"SELECT id FROM {sql} WHERE v = 7").count() == 0
    assert spark.sql(f"SELECT id FROM {sql} WHERE v IS NULL").count() == 2


def test_a_query_does_not_hand_its_defaults_on(spark, wh: Warehouse, name):
    spark.sql(
        "CREATE TABLE spark_catalog.default.elsewhere (id INT, ts TIMESTAMP DEFAULT current_timestamp()) USING parquet"
    )
    for statement in ("CREATE TABLE", "CREATE OR REPLACE TABLE", "REPLACE TABLE"):
        spark.sql(f"{statement} streamhouse.{name} AS SELECT * FROM spark_catalog.default.elsewhere")
    assert wh.table(name).state.schema.ddl() == "id INT, ts TIMESTAMP"
    spark.sql("DROP TABLE spark_catalog.default.elsewhere")
    spark.sql(f"CREATE OR REPLACE TABLE streamhouse.{name}2 (id INT, n INT DEFAULT 5)")
    assert wh.table(f"{name}2").state.schema.ddl() == "id INT, n INT DEFAULT 5"


@pytest.mark.spark41
def test_functions_are_values_of_the_statement(spark, wh: Warehouse, name, tmp_path):
    sql = f"streamhouse.{name}"
    spark.sql(
        f"CREATE TABLE {sql} (id BIGINT, at TIMESTAMP DEFAULT current_timestamp(), day DATE DEFAULT current_date(), "
        "by STRING DEFAULT current_user())"
    )
    begun = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    spark.sql(f"INSERT INTO {sql} (id) SELECT id FROM range(0, 4, 1, 4)")
    spark.sql(f"INSERT INTO {sql} VALUES (4, DEFAULT, DEFAULT, NULL)")
    append(spark.range(5, 9, numPartitions=4), wh, name)
    wh.create_table(f"{name}_source", "id BIGINT").append([{"id": 9}, {"id": 10}])
    writer = spark.readStream.table(f"{sql}_source").writeStream.option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).toTable(sql).awaitTermination()
    rows = wh.table(name).to_arrow().sort_by("id").to_pylist()
    moments = [row["at"] for row in rows]
    assert [len(set(moments[a:b])) for a, b in ((0, 4), (5, 9), (9, 11))] == [1, 1, 1]
    assert sorted(moments) == moments
    assert begun <= moments[0]
    assert moments[-1] <= dt.datetime.now(dt.UTC)
    assert {row["by"] for row in rows} == {None, spark.sql("SELECT current_user()").first()[0]}
    assert all(abs((row["day"] - row["at"].date()).days) <= 1 for row in rows)
    statement = spark.sql(f"SHOW CREATE TABLE {sql}").collect()[0][0]
    spark.sql(f"DROP TABLE {sql}")
    spark.sql(statement)
    assert wh.table(name).state.schema.columns[3].default_sql == "current_user()"
    spark.sql(f"ALTER TABLE {sql} ALTER COLUMN at DROP DEFAULT")
    spark.sql(f"ALTER TABLE {sql} ALTER COLUMN at SET DEFAULT now()")
    spark.sql(
        f"MERGE INTO {sql} t USING (SELECT 1L AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    )
    assert spark.table(sql).filter("at > timestamp '2026-01-01' AND by = current_user()").count() == 1


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE TABLE {}2 (at DATE DEFAULT current_timestamp())", "which is a timestamp"),
        ("CREATE TABLE {}2 (a INT DEFAULT 1 + 1)", "is not a constant"),
        ("CREATE TABLE {}2 (a ARRAY<INT> DEFAULT array(1))", "cannot have a default"),
        ("CREATE TABLE {}2 (a INT DEFAULT 'x')", "INT"),
        ("ALTER TABLE {} ADD COLUMN b INT DEFAULT 3", "ALTER COLUMN … SET DEFAULT"),
        ("ALTER TABLE {} ALTER COLUMN at SET DEFAULT rand()", "DEFAULT|default"),
        ("ALTER TABLE {} ALTER COLUMN a SET DEFAULT 'x'", "INT"),
        ("ALTER TABLE {} ALTER COLUMN nope SET DEFAULT 1", "(?i)nope"),
    ],
)  # fmt: skip
def test_what_is_refused_changes_nothing(spark, wh: Warehouse, name, statement, says):
    table = wh.create_table(name, "a int, at timestamp")
    with pytest.raises(AnalysisException, match=says):
        spark.sql(statement.format(f"streamhouse.{name}"))
    assert table.refresh().version == 1
    assert wh.tables(name.partition(".")[0]) == [name]
