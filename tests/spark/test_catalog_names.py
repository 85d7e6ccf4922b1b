"""Names that SQL has to quote, in all that a query does with a partition column, a bucket key and a primary key."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import streamhouse_spark
from spark.dml import found, opened
from streamhouse_spark.schema.ddl import quote_identifier

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

NAMES = ["région", "a b", "a.b", ".lead", "x`y$z", "A-b", "__o'p"]
_numbers = itertools.count()


@pytest.fixture(params=NAMES)
def column(request: pytest.FixtureRequest) -> str:
    return quote_identifier(request.param)


@pytest.fixture
def name(wh: Any) -> str:
    wh.create_database("names")
    return f"streamhouse.names.t{next(_numbers)}"


def test_a_log_table_is_partitioned_by_it(spark: Any, wh: Any, name: str, column: str) -> None:
    spark.sql(f"CREATE TABLE {name} (id BIGINT, {column} STRING, v INT) PARTITIONED BY ({column}, bucket(2, id))")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'x', 1), (2, 'y z', 2), (3, 'x', 3)")
    assert found(spark, f"SELECT id FROM {name} WHERE {column} = 'x' ORDER BY id") == [(1,), (3,)]
    assert found(spark, f"SELECT {column}, count(*) FROM {name} GROUP BY {column} ORDER BY 1") == [("x", 2), ("y z", 1)]
    assert len(found(spark, f"SHOW PARTITIONS {name}")) == 2
    assert found(spark, f"SELECT count(*) FROM {name} a JOIN {name} b USING ({column})") == [(5,)]
    streamhouse_spark.tier(spark, wh.url, [opened(wh, name).name])
    lake = f"`{name.rpartition('.')[2]}$lake`"
    assert found(spark, f"SELECT max({column}) FROM streamhouse.names.{lake}") == [("y z",)]
    (shown,) = found(spark, f"SHOW CREATE TABLE {name}")[0]
    spark.sql(shown.replace(name, f"{name}_again", 1))
    assert opened(wh, f"{name}_again").partition_by == opened(wh, name).partition_by
    spark.sql(f"ALTER TABLE {name} DROP PARTITION ({column} = 'x')")
    assert found(spark, f"SELECT id FROM {name}") == [(2,)]


def test_a_table_is_bucketed_by_it(spark: Any, name: str, column: str) -> None:
    spark.sql(f"CREATE TABLE {name} ({column} BIGINT, v INT) PARTITIONED BY (bucket(2, {column}))")
    spark.sql(f"INSERT INTO {name} SELECT id, 1 FROM range(20)")
    assert found(spark, f"SELECT sum(v), max({column}) FROM {name} WHERE {column} >= 5") == [(15, 19)]
    assert found(spark, f"SELECT count(*) FROM {name} a JOIN {name} b ON a.{column} = b.{column}") == [(20,)]


def test_a_table_is_keyed_by_it(spark: Any, name: str, column: str) -> None:
    spark.sql(
        f"CREATE TABLE {name} ({column} STRING, v INT, PRIMARY KEY ({column})) TBLPROPERTIES ('bucket.num' = '2')"
    )
    spark.sql(f"INSERT INTO {name} VALUES ('a', 1), ('b', 2), ('c', 3)")
    spark.sql(f"UPDATE {name} SET v = v + 10 WHERE {column} = 'a'")
    spark.sql(f"DELETE FROM {name} WHERE {column} = 'b'")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT * FROM VALUES ('c', 30), ('d', 40) AS s(k, v)) s ON t.{column} = s.k "
        f"WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT ({column}, v) VALUES (s.k, s.v)"
    )
    assert found(spark, f"SELECT * FROM {name} ORDER BY {column}") == [("a", 11), ("c", 30), ("d", 40)]


def test_update_sets_a_column_of_such_a_name(spark: Any, name: str, column: str) -> None:
    spark.sql(f"CREATE TABLE {name} (id BIGINT, {column} INT, v INT, PRIMARY KEY (id))")
    spark.sql(f"INSERT INTO {name} VALUES (1, 1, 1), (2, 2, 2)")
    spark.sql(f"UPDATE {name} SET {column} = 7 WHERE id = 1")
    spark.sql(f"UPDATE {name} SET v = 8 WHERE {column} = 2")
    assert found(spark, f"SELECT * FROM {name} ORDER BY id") == [(1, 7, 1), (2, 2, 8)]
