"""Spark's own parser and Arrow conversion agree with ours, and Spark finds the data source by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streamhouse_spark.schema.table_schema import TableSchema

pytestmark = pytest.mark.spark

DDL = (
    "a BIGINT NOT NULL COMMENT 'it\\'s \\\\ \"quoted\"', `b c` struct<`x y`:int,z:array<map<string,decimal(12,2)>>>, "
    "t TIMESTAMP, n TIMESTAMP_NTZ, `ünï` STRING, `a``b` DATE, raw BINARY, f FLOAT, d DOUBLE, i1 TINYINT, i2 SMALLINT, "
    "i4 INT, yes BOOLEAN, dec DECIMAL(38,18), `select` STRING"
)


def test_spark_reads_our_ddl_and_we_read_its_struct_type(spark):
    from pyspark.sql.types import StructType

    schema = TableSchema.of(DDL)
    assert TableSchema.of(StructType.fromDDL(schema.ddl())) == schema


@pytest.mark.parametrize(
    "text",
    [
        "a int, b: string",
        "a struct<x int COMMENT 'c', y: array<int>>, b map<string, struct<z:double>>",
        "a byte, b short, c integer, d long, e real, f dec, g numeric(5), h timestamp_ltz",
        "a char(3), b varchar(10)",
        "`weird ``name``` int NOT NULL COMMENT 'it''s'",
    ],
)
def test_we_read_ddl_as_spark_does(spark, text):
    from pyspark.sql.types import StructType

    assert TableSchema.of(text) == TableSchema.of(StructType.fromDDL(text))


def test_the_arrow_schema_is_what_spark_expects_of_a_reader(spark):
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = TableSchema.of(DDL)
    assert to_arrow_schema(StructType.fromDDL(schema.ddl()), timezone="UTC") == schema.arrow


def test_spark_finds_the_data_source_without_registration(spark, wh):
    table = wh.create_table("words.found", "id bigint")
    table.append([{"id": 7}])
    frame = spark.read.format("streamhouse").option("warehouse", wh.url).load("words.found")
    assert [row.id for row in frame.collect()] == [7]


def test_finding_the_data_source_loads_nothing_of_ours():
    code = "import sys, pyspark_streamhouse as p; print(p.DefaultSource.name(), 'streamhouse_spark' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert result.stdout.split() == ["streamhouse", "False"]
