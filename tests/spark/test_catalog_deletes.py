"""DELETE FROM tables without a primary key: Spark's own answer to the condition says which rows have to stay. Some
conditions are understood whole, of the others Spark finds the rows.
"""

from __future__ import annotations

import pytest

from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

COLUMNS = (
    "id BIGINT, small TINYINT, name STRING, amount DECIMAL(6,2), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "yes BOOLEAN, raw BINARY, ratio DOUBLE, code CHAR(4)"
)
VALUES = """
    (1, 1Y, 'one', 1.50, DATE'2026-01-01', TIMESTAMP'2026-01-01 10:00:00', TIMESTAMP_NTZ'2026-01-01 10:00:00',
     true, X'01', 1.0D, 'a'),
    (2, -2Y, 'Two', -2.00, DATE'1969-12-31', TIMESTAMP'1969-12-31 23:59:59.999999', NULL,
     false, X'', CAST('NaN' AS DOUBLE), 'b'),
    (3, NULL, NULL, NULL, NULL, NULL, TIMESTAMP_NTZ'1960-02-29 00:00:00.000001', NULL, NULL, NULL, NULL),
    (4, 4Y, 'ünï_%', 0.00, DATE'2026-07-01', TIMESTAMP'2026-07-01 00:00:00', TIMESTAMP_NTZ'2026-07-01 00:00:00',
     true, X'FF00', -0.0D, 'one'),
    (NULL, 5Y, '', 9999.99, DATE'9999-12-31', TIMESTAMP'2026-03-29 02:30:00', TIMESTAMP_NTZ'2026-03-29 02:30:00',
     false, X'010203', 5.5D, '')
"""
CONDITIONS = [
    "id = 1",
    "id <> 1",
    "2 < id",
    "id IN (1, 4, 77)",
    "id NOT IN (1, 4)",
    "id IS NULL",
    "id <=> 1",
    "NOT (id <=> 1)",
    "name <=> NULL",
    "NOT (id > 2 OR name IS NULL)",
    "id BETWEEN 2 AND 3 AND amount IS NOT NULL",
    "id = 1 OR (name > 'U' AND day < DATE'2026-02-01')",
    "small >= 4",
    "name = 'one'",
    "name >= ''",
    "name LIKE 'ü%'",
    "name LIKE '%o'",
    "amount <= 0",
    "amount = 9999.99",
    "day < DATE'1970-01-01'",
    "at >= TIMESTAMP'2026-03-29 01:30:00'",
    "local > TIMESTAMP_NTZ'1960-02-29 00:00:00'",
    "yes",
    "NOT yes",
    "yes = false",
    "raw = X'FF00'",
]
BY_ROWS = [
    "id IN (1, NULL)",
    "name LIKE '%_n%'",
    "ratio > 1",
    "code = 'a'",
    "id % 2 = 0",
    "upper(name) = 'ONE'",
]


@pytest.mark.parametrize("tiered", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_condition_means_what_it_means_to_spark(spark, wh, tiered):
    table = wh.create_table(f"deletes.meaning_{tiered}", COLUMNS, buckets=2, properties={"bucket.key": "id"})
    name = f"streamhouse.{table.name}"
    spark.sql(f"INSERT INTO {name} VALUES {VALUES}")
    table.refresh()
    rows = table.to_arrow()
    conditions = [*CONDITIONS, *BY_ROWS]
    stays = [f"NOT ({condition}) OR ({condition}) IS NULL" for condition in conditions]
    answers = spark.sql(f"SELECT id, {', '.join(stays)} FROM {name}").collect()
    for position, condition in enumerate(conditions, start=1):
        if tiered:
            tier(spark, wh.url, [table.name])
        version = table.refresh().version
        spark.sql(f"DELETE FROM {name} WHERE {condition}")
        expected = [row.id for row in answers if row[position]]
        deleted_at = table.refresh().version
        ids = table.to_arrow(columns=["id"])["id"].to_pylist()
        assert sorted(ids, key=repr) == sorted(expected, key=repr), condition
        assert deleted_at == version + (len(expected) < 5), "one record, and none where no row matches"
        table.truncate()
        table.append(rows)


@pytest.mark.classic
def test_only_conditions_that_are_not_understood_whole_need_a_job(spark, wh):
    table = wh.create_table("deletes.jobs", COLUMNS)
    for condition in [*CONDITIONS, *BY_ROWS]:
        plan = spark.sql(f"EXPLAIN DELETE FROM streamhouse.{table.name} WHERE {condition}").collect()[0][0]
        assert ("WriteDelta" in plan) == (condition in BY_ROWS), plan
