"""In SQL an error is one line that begins with its condition; what Python said of it is its cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from spark.dml import found, opened

pytestmark = [pytest.mark.spark, pytest.mark.spark41]


def line_of(act: Callable[[], Any]) -> str:
    """The whole text of the error."""
    with pytest.raises(AnalysisException) as error:
        act()
    text = str(error.value)
    assert len(text.splitlines()) == 1, text
    assert "Traceback" not in text
    return text


class TestTasks:
    """Errors that are raised where the rows are, in Python workers of executors."""

    @pytest.mark.always
    def test_an_update_of_the_key_is_rejected_with_both_values(self, spark: Any, filled: str) -> None:
        text = line_of(lambda: spark.sql(f"UPDATE {filled} SET id = 77 WHERE id = 1"))
        assert text.startswith("SCHEMA_MISMATCH: ")
        assert "id = 1 would become 77" in text

    @pytest.mark.long
    def test_an_update_of_the_key_in_many_tasks_is_rejected(self, spark: Any, filled: str) -> None:
        assert "would become" in line_of(lambda: spark.sql(f"UPDATE {filled} SET id = id + 100"))

    def test_a_row_kind_that_is_none(self, spark: Any, filled: str) -> None:
        one = spark.sql("SELECT 1L AS id, 'zz' AS name, 3 AS n")
        write = one.write.option("rowKindColumn", "name").mode("append")
        assert "is 'zz' in a row" in line_of(lambda: write.saveAsTable(filled))

    @pytest.mark.classic
    def test_the_traceback_is_the_cause(self, spark: Any, filled: str) -> None:
        with pytest.raises(AnalysisException) as error:
            spark.sql(f"UPDATE {filled} SET id = 77 WHERE id = 1")
        assert error.value.getCondition() == "SCHEMA_MISMATCH"
        assert "Traceback" in error.value._origin.getCause().getMessage()

    def test_a_damaged_segment_is_corrupt_data_in_one_line(self, spark: Any, wh: Any, make: Any) -> None:
        name = make(columns="id BIGINT, v STRING", bucket_num="1")
        spark.sql(f"INSERT INTO {name} SELECT id, repeat(sha2(cast(id AS string), 512), 5) FROM range(0, 3000, 1, 1)")
        (segment,) = segments(wh, name)
        damaged = bytearray(segment.read_bytes())
        damaged[len(damaged) // 2] ^= 0xFF
        segment.chmod(0o644)
        segment.write_bytes(damaged)
        assert line_of(lambda: spark.sql(f"SELECT max(v) FROM {name}").collect()).startswith("CORRUPT_DATA: ")

    @pytest.mark.long
    def test_a_null_in_a_stream_fails_its_query_in_one_line(self, spark: Any, make: Any, checkpoint: str) -> None:
        source = make("_from", columns="id BIGINT")
        target = make("_to", columns="id BIGINT NOT NULL", bucket_num="1")
        spark.sql(f"INSERT INTO {source} VALUES (1)")
        stream = spark.readStream.table(source).selectExpr("nullif(id, 1) AS id").writeStream
        query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).toTable(target)
        with pytest.raises(StreamingQueryException) as error:
            query.awaitTermination()
        assert "SCHEMA_MISMATCH: column 'id'" in str(error.value).splitlines()[0]
        assert "Traceback" not in str(error.value)


class TestStatements:
    def test_a_stream_of_a_table_with_a_key_fails_when_it_is_named(self, spark: Any, filled: str) -> None:
        with pytest.raises(AnalysisException) as error:
            spark.readStream.table(filled).schema  # noqa: B018 - Connect analyzes only then
        first = str(error.value).splitlines()[0]
        last = filled.rpartition(".")[2]
        assert "INVALID_OPTION: " in first
        assert f"streamhouse.dml.`{last}$changelog`" in first
        assert spark.readStream.table(f"streamhouse.dml.`{last}$changelog`").isStreaming

    @pytest.mark.parametrize(
        ("clause", "says"),
        [
            ("ADD CONSTRAINT c CHECK (soundex(name) <> 'ZZ')", "calls soundex(…), which is not supported"),
            ("ADD CONSTRAINT c UNIQUE (n)", "add constraint"),
            ("ADD CONSTRAINT k PRIMARY KEY (n)", "declare NOT NULL and the primary key in CREATE TABLE"),
            ("DROP CONSTRAINT c", "drop constraint c"),
            ("REPLACE COLUMNS (id BIGINT, other STRING)", "REPLACE COLUMNS would lose the data of"),
        ],
    )
    def test_what_alter_table_does_not_do(self, spark: Any, wh: Any, filled: str, clause: str, says: str) -> None:
        before = opened(wh, filled).state.version
        assert says in line_of(lambda: spark.sql(f"ALTER TABLE {filled} {clause}"))
        assert opened(wh, filled).state.version == before

    @pytest.mark.parametrize(
        ("transforms", "says"),
        [
            ("bucket(0, id)", "found 0 buckets, expected 1 to "),
            ("bucket(-1, id)", "found -1 buckets, expected 1 to "),
            ("bucket(1000000, id)", "found 1000000 buckets, expected 1 to "),
            ("bucket(2, id), bucket(3, n)", "found a second bucket transform"),
            ("bucket(2, id, id)", "id"),
            ("truncate(0, name)", "expected a width above 0 and a column"),
            ("truncate(name)", "expected a width above 0 and a column"),
            ("years(id)", "has type bigint, expected a date or a timestamp"),
            ("hours(n)", "has type date, expected a timestamp"),
            ("nonsense(id)", "unknown transform 'nonsense'"),
            ("truncate(2, name), name", "'name' occurs twice"),
            ("id, id", "id"),
            ("s.x", "found a field of a struct, expected a column"),
            ("bucket(2, s.x)", "found a field of a struct, expected a column"),
            ("s", "partition"),
            ("bucket(2, s)", "bucket"),
        ],
    )
    def test_a_partitioning_that_cannot_be(self, spark: Any, wh: Any, transforms: str, says: str) -> None:
        wh.create_database("dml", if_not_exists=True)
        before = contents(wh)
        for statement in partitioned_by(transforms):
            assert says in line_of(lambda statement=statement: spark.sql(statement))
        assert contents(wh) == before

    @pytest.mark.parametrize(
        ("transforms", "says"),
        [
            ("bucket(99999999999999999999, id)", "Invalid number of buckets: 99999999999999999999"),
            ("bucket(2.5, id)", "Invalid number of buckets: 2.5"),
            ("bucket('2', id)", "Invalid number of buckets: '2'"),
            ("bucket(2, nope)", "find column nope"),
            ("nope", "find column nope"),
        ],
    )
    def test_a_partitioning_that_spark_refuses_itself(self, spark: Any, wh: Any, transforms: str, says: str) -> None:
        """In words of its own, before it asks the catalog."""
        wh.create_database("dml", if_not_exists=True)
        before = contents(wh)
        for statement in partitioned_by(transforms):
            with pytest.raises(AnalysisException, match=says):
                spark.sql(statement)
        assert contents(wh) == before

    def test_replace_where_is_refused_where_it_cannot_hold(self, spark: Any, filled: str) -> None:
        one = spark.sql("SELECT 1L AS id, 'b' AS name, 3 AS n")
        assert "requires mode('overwrite')" in line_of(
            lambda: one.write.option("replaceWhere", "id = 1").mode("append").saveAsTable(filled)
        )
        statement = f"INSERT INTO {filled} REPLACE WHERE id = 1 SELECT 1L, 'b', 3"
        assert "is not partitioned" in line_of(lambda: spark.sql(statement))

    def test_a_time_before_the_table_is_rejected(self, spark: Any, filled: str) -> None:
        query = f"SELECT * FROM {filled} TIMESTAMP AS OF '2001-01-01 00:00:00'"
        assert "the table was created later" in line_of(lambda: spark.sql(query).collect())

    def test_a_stream_makes_a_table(self, spark: Any, make: Any, checkpoint: str) -> None:
        source = make("_from", columns="id BIGINT")
        spark.sql(f"INSERT INTO {source} VALUES (1), (2)")
        stream = spark.readStream.table(source).writeStream.option("checkpointLocation", checkpoint)
        stream.trigger(availableNow=True).toTable(f"{source}_new").awaitTermination()
        assert found(spark, f"SELECT * FROM {source}_new ORDER BY id") == [(1,), (2,)]

    def test_a_stream_into_another_format_is_still_refused(self, spark: Any, make: Any, checkpoint: str) -> None:
        source = make("_from", columns="id BIGINT")
        stream = spark.readStream.table(source).writeStream.option("checkpointLocation", checkpoint).format("csv")
        with pytest.raises(PySparkException, match="USING csv"):
            stream.trigger(availableNow=True).toTable(f"{source}_csv")


def partitioned_by(transforms: str) -> Iterator[str]:
    columns = "id BIGINT, name STRING, n DATE, s STRUCT<x: INT>"
    for create in "CREATE", "CREATE OR REPLACE":
        yield f"{create} TABLE streamhouse.dml.cannot_be ({columns}) PARTITIONED BY ({transforms})"


def contents(wh: Any) -> set[Path]:
    return set(Path(wh.url.removeprefix("file://")).rglob("*"))


def segments(wh: Any, name: str) -> list[Path]:
    folder = Path(wh.url.removeprefix("file://"), "tables", opened(wh, name).uuid, "segments")
    return list(folder.iterdir())


def test_the_words_of_spark_for_what_is_not_installed(spark: Any) -> None:
    spark.conf.set("spark.sql.catalog.no_jar", "io.streamhouse.spark.NotThere")
    with pytest.raises(Exception, match=r"PLUGIN_CLASS_NOT_FOUND|Cannot find catalog plugin class"):  # 4.1: the second
        spark.sql("SELECT * FROM no_jar.d.t").collect()
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        spark.read.format("streamhouse_of_nobody").load().collect()
