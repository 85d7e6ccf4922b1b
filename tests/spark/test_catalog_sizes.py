"""CHAR(n) and VARCHAR(n) in SQL are what they are in Spark's own tables."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark.dml import found
from spark.session import append

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

COLUMNS = "id BIGINT, c CHAR(4) DEFAULT 'x', v VARCHAR(3)"


@pytest.fixture
def tables(spark: Any, make: Any) -> tuple[str, str]:
    """One of ours, and one of Spark's that has the same statements."""
    ours = make(columns=COLUMNS, bucket_num="1")
    theirs = "spark_catalog.default." + ours.rpartition(".")[2]
    spark.sql(f"CREATE TABLE {theirs} ({COLUMNS}) USING parquet")
    return ours, theirs


@pytest.mark.long
def test_statements_do_the_same_as_in_a_table_of_sparks(spark: Any, tables: tuple[str, str]) -> None:
    results = []
    for name in tables:
        spark.sql(f"INSERT INTO {name} VALUES (1, 'ab', 'abc'), (2, 'abcd   ', 'a     '), (3, NULL, '')")
        spark.sql(f"INSERT INTO {name} (id) VALUES (4)")
        for values in ("(5, 'abcde', 'a')", "(5, 'a', 'abcd')"):
            with pytest.raises(PySparkException) as error:
                spark.sql(f"INSERT INTO {name} VALUES {values}")
            assert "EXCEED_LIMIT_LENGTH" in str(error.value)
        results.append(
            [
                found(spark, f"SELECT *, length(c), length(v) FROM {name} ORDER BY id"),
                found(spark, f"SELECT id FROM {name} WHERE c = 'ab'"),
                found(spark, f"SELECT id FROM {name} WHERE c IN ('ab', 'x') AND v IS NOT NULL"),
                [row[:2] for row in found(spark, f"DESCRIBE {name}")[:3]],
            ]
        )
    assert results[0] == results[1]
    assert results[0][3] == [("id", "bigint"), ("c", "char(4)"), ("v", "varchar(3)")]


def test_the_type_stays_in_what_is_shown_and_made_of_it(spark: Any, make: Any) -> None:
    name = make(columns=COLUMNS)
    (shown,) = found(spark, f"SHOW CREATE TABLE {name}")[0]
    assert "CHAR(4)" in shown
    assert "VARCHAR(3)" in shown
    spark.sql(shown.replace(name, f"{name}_again", 1))
    spark.sql(f"CREATE TABLE {name}_copy AS SELECT * FROM {name}")
    for again in (f"{name}_again", f"{name}_copy"):
        assert [row[1] for row in found(spark, f"DESCRIBE {again}")[:3]] == ["bigint", "char(4)", "varchar(3)"]


def test_alter_table_makes_them_longer(spark: Any, make: Any) -> None:
    name = make(columns=COLUMNS)
    spark.sql(f"ALTER TABLE {name} ADD COLUMN w VARCHAR(2)")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN v TYPE VARCHAR(5)")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a', 'abcde', 'ab')")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN w TYPE STRING")
    assert [row[1] for row in found(spark, f"DESCRIBE {name}")[:4]] == ["bigint", "char(4)", "varchar(5)", "string"]


@pytest.mark.long
def test_a_path_and_a_stream_that_spark_does_not_check_are_checked(
    spark: Any, wh: Any, make: Any, checkpoint: str
) -> None:
    name = make(columns=COLUMNS)
    with pytest.raises(PySparkException, match=r"column 'v' of .* is varchar\(3\)"):
        append(spark.sql("SELECT 1L AS id, 'a' AS c, 'abcd' AS v"), wh, name.removeprefix("streamhouse."))
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a', 'b')")
    copy = make("_copy", columns=COLUMNS)
    stream = spark.readStream.table(name).selectExpr("id", "concat(c, 'e') AS c", "v")
    query = stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True).toTable(copy)
    with pytest.raises(PySparkException, match=r"column 'c' of .* is char\(4\)"):
        query.awaitTermination()
    assert found(spark, f"SELECT * FROM {copy}") == []
