"""Generated columns in SQL: every statement gives rows their values, and the values are Spark's."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from spark.dml import found, opened
from streamhouse_spark.expressions.functions import FUNCTIONS
from streamhouse_spark.expressions.generated_columns import Generated, fill_generated_columns
from streamhouse_spark.expressions.sql import parse_expression
from streamhouse_spark.schema.table_schema import TableSchema

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

COLUMNS = (
    "id BIGINT, ts TIMESTAMP, n INT, day DATE GENERATED ALWAYS AS (CAST(ts AS DATE)), "
    "twice INT GENERATED ALWAYS AS (n * 2)"
)
DAYS = [dt.date(2024, 1, day) for day in range(1, 10)]


def moment(day: int) -> str:
    return f"TIMESTAMP'2024-01-0{day} 23:30:00Z'"


def rows(spark: Any, name: str) -> list[Any]:
    return sorted(found(spark, f"SELECT id, day, n, twice FROM {name}"), key=str)


def refused(spark: Any, statement: str, says: str) -> None:
    with pytest.raises(PySparkException, match=f"(?s){says}"):
        spark.sql(statement)


def test_every_statement_on_a_log_table_generates_values(spark: Any, wh: Any) -> None:
    wh.create_database("dml")
    name = "streamhouse.dml.generated"
    spark.sql(f"CREATE TABLE {name} ({COLUMNS}) PARTITIONED BY (day)")
    spark.sql(f"INSERT INTO {name} (id, ts, n) VALUES (1, {moment(1)}, 1), (2, NULL, NULL)")
    spark.sql(f"CALL streamhouse.system.tier('{name.removeprefix('streamhouse.')}')")
    spark.sql(f"SELECT 3L AS id, {moment(2)} AS ts, 3 AS n").writeTo(name).append()
    assert rows(spark, name) == [(1, DAYS[0], 1, 2), (2, None, None, None), (3, DAYS[1], 3, 6)]
    spark.sql(f"UPDATE {name} SET n = 10 WHERE id <> 3")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT 2L AS id, {moment(5)} AS ts UNION ALL SELECT 9L, NULL) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.ts = s.ts WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, 5)"
    )
    after = [(1, DAYS[0], 10, 20), (2, DAYS[4], 10, 20), (3, DAYS[1], 3, 6), (9, None, 5, 10)]
    assert rows(spark, name) == after
    refused(spark, f"UPDATE {name} SET twice = 7 WHERE id = 1", "column 'twice' than n \\* 2, such as 7, expected 20")
    refused(spark, f"INSERT INTO {name} VALUES (5, NULL, 1, NULL, 3)", "such as 3, expected 2")
    assert rows(spark, name) == after
    spark.sql(f"INSERT INTO {name} REPLACE WHERE day = DATE'2024-01-02' SELECT 33L, {moment(2)}, 1, NULL, NULL")
    assert rows(spark, name) == [after[0], after[1], (33, DAYS[1], 1, 2), after[3]]
    shown = spark.sql(f"SHOW CREATE TABLE {name}").collect()[0][0]
    assert "'table.generated.twice' = 'n * 2'" in shown
    table = opened(wh, name)
    table.append([{"id": 7, "n": 7}])
    assert (7, None, 7, 14) in rows(spark, name)


def test_every_statement_on_a_keyed_table_generates_values(spark: Any, make: Any) -> None:
    name = make(columns="id BIGINT NOT NULL, a INT, b INT, s INT GENERATED ALWAYS AS (a + b), PRIMARY KEY (id)")
    spark.sql(f"INSERT INTO {name} (id, a, b) VALUES (1, 1, 1), (2, 2, 2)")
    spark.sql(f"UPDATE {name} SET a = 5 WHERE id = 1")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT explode(array(2L, 3L)) AS id, 9 AS b) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET b = s.b WHEN NOT MATCHED THEN INSERT (id, a, b) VALUES (s.id, 1, s.b)"
    )
    assert sorted(found(spark, f"SELECT * FROM {name}")) == [(1, 5, 1, 6), (2, 2, 9, 11), (3, 1, 9, 10)]


def test_what_cannot_be_generated_is_refused(spark: Any, wh: Any) -> None:
    wh.create_database("dml")
    for columns, says in (
        ("id INT, x INT GENERATED ALWAYS AS (abs(id))", r"calls abs\(…\), which is not supported"),
        ("id INT, x INT NOT NULL GENERATED ALWAYS AS (id)", "has NOT NULL as well"),
        ("id INT, x STRING GENERATED ALWAYS AS (id)", "the expression is a int"),
    ):
        refused(spark, f"CREATE TABLE streamhouse.dml.no ({columns})", says)


EXPRESSIONS = [
    "CAST(ts AS DATE)", "date(ntz)", "to_date(ts)", "CAST(d AS TIMESTAMP)", "CAST(d AS TIMESTAMP_NTZ)",
    *(f"{name}({column})" for name in ("year", "quarter", "month", "day", "dayofmonth", "dayofyear", "dayofweek",
                                       "weekofyear") for column in ("d", "ts", "ntz")),
    *(f"{name}({column})" for name in ("hour", "minute", "second") for column in ("ts", "ntz")),
    *(f"date_trunc('{unit}', ts)" for unit in ("year", "quarter", "MON", "week", "dd", "hour", "minute", "second",
                                               "millisecond", "microsecond")),
    *(f"trunc(d, '{unit}')" for unit in ("yyyy", "quarter", "month", "week")),
    "concat(name, '|', name)", "name || CAST(i AS STRING)", "upper(name)", "lower(name)", "length(name)",
    "substring(name, 2)", "substr(name, 0, 3)", "substring(name, 2, 2)", "substring(name, 40, 2)",
    "CAST(t AS INT) + i", "t + 1", "-t * 3 - i", "CAST(i AS BIGINT) * b", "CAST(b AS DOUBLE) * x", "x + f", "f - f * f",
    "char_length(name)", "character_length(name)", "substring(name, -3)", "substring(name, -4, 2)",
    "substr(name, -2, 9)", "substring(name, 3, -1)", "CAST(d AS STRING)", "CAST(ts AS STRING)", "CAST(ntz AS STRING)",
    "CAST(t > 3 AS STRING)", "CAST(m AS STRING)", "m + m", "m * m", "m - i", "b * m", "m * f", "x - m", "t * f", "-m",
    "w + m", "w * m", "w - 0.125", "CAST(m AS DECIMAL(12,1))", "CAST(i AS DECIMAL(20,3))", "CAST(m AS DOUBLE)",
    "CAST(w AS FLOAT)", "i > 5 AND f <= 1", "name LIKE '%a%' OR NOT m > 0", "i IN (1, 2, NULL)", "x > f", "f = 0.1",
    "m BETWEEN -5.5 AND i", r"name LIKE '%\'%' OR name = 'a\u0042'", "name LIKE '%!%%' ESCAPE '!'", "name < 'a'",
    "m NOT IN (0, 1e0)", "w = m", "d >= '2000-01-01'", "t IS NULL OR i + 1 > 0",
    "CAST(i AS FLOAT)", "CAST(CAST(t AS BIGINT) AS SMALLINT)", "CAST(b AS STRING)", "CAST(f AS DOUBLE)",
]  # fmt: skip


def random_rows(chance: random.Random) -> pa.Table:
    schema = TableSchema.of(
        "ts TIMESTAMP, ntz TIMESTAMP_NTZ, d DATE, name STRING, t TINYINT, i INT, b BIGINT, f FLOAT, x DOUBLE, "
        "m DECIMAL(10,2), w DECIMAL(38,10)"
    ).arrow

    def row() -> dict[str, Any]:
        micros = chance.randrange(-2_200_000_000, 4_000_000_000) * 1_000_000 + chance.choice((0, 1, 999_999))
        at = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)
        text = "".join(chance.choices("aB zß€É😀ǅΣσİ'", k=chance.randrange(8)))
        whole = {
            "ts": at.replace(tzinfo=dt.UTC), "ntz": at, "d": at.date(), "name": text, "t": chance.randrange(-127, 127),
            "i": chance.randrange(-(2**30), 2**30), "b": chance.randrange(-(2**32), 2**32),
            "f": chance.choice((0.0, -0.0, 0.1, 1e10, float("nan"))), "x": chance.uniform(-1e6, 1e6),
            "m": Decimal(chance.randrange(-(10**6), 10**6)) / 100,
            "w": Decimal(chance.randrange(10**24)).scaleb(-10),
        }  # fmt: skip
        return {name: None if chance.random() < 0.05 else value for name, value in whole.items()}

    return pa.Table.from_pylist([row() for _ in range(400)], schema)


def test_generated_values_equal_those_of_spark(spark: Any) -> None:
    """In the time zone UTC, which is that of generated columns everywhere."""
    given = random_rows(random.Random(7))
    schema = TableSchema.of(given.schema)
    assert {name for name in FUNCTIONS if any(f"{name}(" in text for text in EXPRESSIONS)} == FUNCTIONS
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        ours = []
        for text in EXPRESSIONS:
            part = parse_expression(text, schema, "column 'g'")
            rows = given.append_column(pa.field("g", part.type), pa.nulls(given.num_rows, part.type))
            ours.append(
                fill_generated_columns([Generated("g", part.type, text, part)], rows, "t").column("g").to_pylist()
            )
        theirs = spark.createDataFrame(given).selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(EXPRESSIONS)))
        for text, mine, column in zip(EXPRESSIONS, ours, theirs.toArrow().columns, strict=True):
            assert list(map(str, mine)) == list(map(str, column.to_pylist())), text
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
