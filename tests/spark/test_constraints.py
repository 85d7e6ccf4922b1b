"""CHECK constraints in SQL: their DDL, and each way to write rows."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from spark.dml import found, opened

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

POSITIVE = "table.constraint.positive"


def breach_of(act: Any) -> None:
    with pytest.raises(PySparkException, match=r"CONSTRAINT_VIOLATED: .*positive"):
        act()


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (id)"])
def test_every_statement_keeps_it(spark: Any, wh: Any, make: Any, key: str) -> None:
    other = make("_other", columns="id BIGINT")
    name = f"{other}_checked"
    columns = f"id BIGINT NOT NULL, n INT, CONSTRAINT positive CHECK (n > 0){key}"
    spark.sql(f"CREATE TABLE {name} ({columns})")
    assert opened(wh, name).state.properties[POSITIVE] == "n > 0"
    spark.sql(f"INSERT INTO {name} VALUES (1, 1), (2, NULL)")
    version = opened(wh, name).state.version
    breach_of(lambda: spark.sql(f"INSERT INTO {name} VALUES (3, 3), (4, -4)"))
    breach_of(lambda: spark.sql(f"INSERT OVERWRITE {name} VALUES (3, -3)"))
    breach_of(lambda: spark.sql(f"UPDATE {name} SET n = -1 WHERE id = 1"))
    source = "(SELECT 1L AS id, -1 AS n) AS s"
    merge = f"MERGE INTO {name} AS t USING {source} ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = s.n"
    breach_of(lambda: spark.sql(merge))
    frame = spark.sql("SELECT 3L AS id, -3 AS n")
    breach_of(lambda: frame.writeTo(name).append())
    assert opened(wh, name).state.version == version
    assert "table.constraint.positive" in spark.sql(f"SHOW CREATE TABLE {name}").collect()[0][0]
    spark.sql(f"DROP TABLE {name}")


def test_a_stream_of_rows_in_breach_fails(spark: Any, make: Any, checkpoint: str) -> None:
    source = make("_from", columns="id BIGINT")
    name = make("_to", columns="id BIGINT", bucket_num="1")
    spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT positive CHECK (id > 0)")
    spark.sql(f"INSERT INTO {source} VALUES (1), (-1)")
    stream = spark.readStream.table(source).writeStream.option("checkpointLocation", checkpoint)
    query = stream.trigger(availableNow=True).toTable(name)
    with pytest.raises(StreamingQueryException, match="CONSTRAINT_VIOLATED"):
        query.awaitTermination()
    assert found(spark, f"SELECT * FROM {name}") == []


@pytest.mark.always
def test_a_constraint_is_added_only_if_all_rows_satisfy_it(spark: Any, wh: Any, make: Any) -> None:
    name = make(columns="id BIGINT, n INT", bucket_num="1")
    spark.sql(f"INSERT INTO {name} VALUES (1, -1)")
    with pytest.raises(PySparkException):
        spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT positive CHECK (n > 0)")
    assert POSITIVE not in opened(wh, name).state.properties
    spark.sql(f"DELETE FROM {name} WHERE n < 0")
    spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT positive CHECK (n > 0)")
    with pytest.raises(AnalysisException):
        spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT Positive CHECK (n > 1)")
    breach_of(lambda: spark.sql(f"INSERT INTO {name} VALUES (1, -1)"))
    spark.sql(f"ALTER TABLE {name} DROP CONSTRAINT IF EXISTS other")
    spark.sql(f"ALTER TABLE {name} DROP CONSTRAINT POSITIVE")
    spark.sql(f"INSERT INTO {name} VALUES (1, -1)")
    assert found(spark, f"SELECT * FROM {name}") == [(1, -1)]


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (id)"])
def test_a_stream_of_the_table_goes_on_behind_a_new_constraint(
    spark: Any, make: Any, checkpoint: str, key: str
) -> None:
    target = make("_to", columns="id BIGINT", bucket_num="1")
    source = f"{target}_read"
    spark.sql(f"CREATE TABLE {source} (id BIGINT NOT NULL, n INT{key})")
    read = source if not key else f"{source[: source.rindex('.')]}.`{source.rsplit('.', 1)[1]}$changelog`"
    query = (
        spark.readStream.table(read)
        .select("id")
        .writeStream.option("checkpointLocation", checkpoint)
        .trigger(processingTime="200 milliseconds")
        .toTable(target)
    )
    try:
        spark.sql(f"INSERT INTO {source} VALUES (1, 1)")
        query.processAllAvailable()
        spark.sql(f"ALTER TABLE {source} ADD CONSTRAINT positive CHECK (n > 0)")
        spark.sql(f"INSERT INTO {source} VALUES (2, 2)")
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(found(spark, f"SELECT id FROM {target}")) == [(1,), (2,)]
    described = {row.col_name: row.data_type for row in spark.sql(f"DESCRIBE EXTENDED {source}").collect()}
    assert "table.constraint.positive=n > 0" in described["Table Properties"]
    spark.sql(f"DROP TABLE {source}")


def test_a_stream_into_the_table_goes_on_behind_a_new_constraint(spark: Any, make: Any, checkpoint: str) -> None:
    source = make("_from", columns="id BIGINT")
    target = make("_to", columns="id BIGINT NOT NULL", bucket_num="1")
    stream = spark.readStream.table(source).writeStream.option("checkpointLocation", checkpoint)
    query = stream.trigger(processingTime="200 milliseconds").toTable(target)
    try:
        spark.sql(f"INSERT INTO {source} VALUES (1)")
        query.processAllAvailable()
        spark.sql(f"ALTER TABLE {target} ADD CONSTRAINT positive CHECK (id > 0)")
        spark.sql(f"INSERT INTO {source} VALUES (2)")
        query.processAllAvailable()
        spark.sql(f"INSERT INTO {source} VALUES (-3)")
        with pytest.raises(StreamingQueryException, match="CONSTRAINT_VIOLATED"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(found(spark, f"SELECT id FROM {target}")) == [(1,), (2,)]
