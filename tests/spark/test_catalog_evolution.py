"""WITH SCHEMA EVOLUTION, and MERGE whose ON is not the primary key."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException

from spark.dml import found, merge_into, opened, rows

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

EVOLVING = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"


def evolving(name: str, values: str, columns: str) -> str:
    return merge_into(name, values, EVOLVING, columns=columns).replace("MERGE INTO", "MERGE WITH SCHEMA EVOLUTION INTO")


class TestEvolution:
    @pytest.mark.always
    def test_merge_adds_the_columns_of_its_source(self, spark: Any, filled: str) -> None:
        spark.sql(evolving(filled, "(1L, 'one', 11, 'x'), (20L, 'new', 20, 'y')", "id, name, n, extra"))
        after = rows(spark, filled)
        assert (after[1], after[20], after[2]) == (("one", 11, "x"), ("new", 20, "y"), ("n2", 2, None))

    def test_merge_with_schema_evolution_widens_a_column(self, spark: Any, wh: Any, filled: str) -> None:
        spark.sql(evolving(filled, "(1L, 'one', 5000000000L)", "id, name, n"))
        assert rows(spark, filled)[1] == ("one", 5_000_000_000)
        assert str(opened(wh, filled).schema.field("n").type) == "int64"

    @pytest.mark.parametrize(
        ("statement", "expected"),
        [
            (
                (
                    "MERGE WITH SCHEMA EVOLUTION INTO {} t USING (SELECT 1 id, 5 n, 'e' extra) s ON t.id = s.id "
                    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                ),
                [(1, 5, (1, "x"), "e")],
            ),
            (
                (
                    "MERGE WITH SCHEMA EVOLUTION INTO {} t USING (SELECT 1L id, 5L m) s ON t.id = s.id "
                    "WHEN MATCHED THEN UPDATE SET m = s.m"
                ),
                [(1, 10, (1, "x"), 5)],
            ),
            (
                (
                    "MERGE WITH SCHEMA EVOLUTION INTO {} t USING (SELECT 2L id, 5L m) s ON t.id = s.id "
                    "WHEN NOT MATCHED THEN INSERT (id, m) VALUES (s.id, s.m)"
                ),
                [(1, 10, (1, "x"), None), (2, None, None, 5)],
            ),
            (
                "INSERT WITH SCHEMA EVOLUTION INTO {} BY NAME SELECT 3 id, 7 n, named_struct('a', 2, 'b', 'y') s",
                [(1, 10, (1, "x")), (3, 7, (2, "y"))],
            ),
            (
                "INSERT WITH SCHEMA EVOLUTION INTO {} SELECT 3, 7, named_struct('a', 2, 'b', 'y'), 9 AS extra",
                [(1, 10, (1, "x"), None), (3, 7, (2, "y"), 9)],
            ),
        ],
        ids=["merge", "merge sets a new column", "merge inserts a new column", "insert by name", "insert by position"],
    )
    @pytest.mark.parametrize("key", ["", ", PRIMARY KEY (id)"], ids=["log", "keyed"])
    @pytest.mark.parametrize("partitions", ["", "PARTITIONED BY (n)"], ids=["plain", "partitioned"])
    def test_narrower_values_are_cast_and_named_columns_are_added(
        self, spark: Any, wh: Any, statement: str, expected: list[Any], key: str, partitions: str
    ) -> None:
        if spark.version < "4.2":
            pytest.skip("Spark 4.1 asks for every change of a type")
        if key and partitions:
            pytest.skip("a partition column is of the key")
        name = f"streamhouse.evolved.t{abs(hash((statement, key, partitions)))}"
        spark.sql("CREATE DATABASE IF NOT EXISTS streamhouse.evolved")
        columns = f"id BIGINT NOT NULL, n BIGINT, s STRUCT<a: INT, b: STRING>{key}"
        spark.sql(f"CREATE TABLE {name} ({columns}) {partitions}")
        spark.sql(f"INSERT INTO {name} VALUES (1, 10, named_struct('a', 1, 'b', 'x'))")
        spark.sql(statement.format(name))
        assert sorted(found(spark, f"SELECT * FROM {name}"), key=str) == expected
        assert str(opened(wh, name).schema.field("n").type) == "int64"

    def test_what_cannot_be_is_refused_and_changes_nothing(self, spark: Any, wh: Any, filled: str) -> None:
        before = opened(wh, filled).state.version
        with pytest.raises(AnalysisException, match=r"n.* cannot become string|STRING"):
            spark.sql(evolving(filled, "(1L, 'one', 'text')", "id, name, n"))
        with pytest.raises(AnalysisException, match="reserved"):
            spark.sql(evolving(filled, "(1L, 'one', 1, 2)", "id, name, n, _bucket"))
        assert opened(wh, filled).state.version == before

    def test_without_the_words_nothing_is_added(self, spark: Any, wh: Any, filled: str) -> None:
        spark.sql(merge_into(filled, "(1L, 'one', 11, 'x')", EVOLVING, columns="id, name, n, extra"))
        assert opened(wh, filled).schema.names == ["id", "name", "n"]

    def test_insert_adds_them_too_or_says_why_not(self, spark: Any, make: Any) -> None:
        name = make(columns="id BIGINT, n INT")
        statement = f"INSERT WITH SCHEMA EVOLUTION INTO {name} BY NAME SELECT 1L AS id, 2 AS n, 'x' AS extra"
        try:
            spark.sql(statement)
        except AnalysisException:  # PySpark that has no such INSERT
            assert found(spark, f"SELECT * FROM {name}") == []
        else:
            assert found(spark, f"SELECT * FROM {name}") == [(1, 2, "x")]


class TestMergeSchema:
    """mergeSchema of DataFrames that the catalog writes by name; rows in the lake and in the log have null there."""

    def test_columns_are_added_once_before_the_rows(self, spark: Any, wh: Any, make: Any) -> None:
        name = make(columns="id BIGINT, n INT")
        spark.sql(f"INSERT INTO {name} VALUES (1, 1)")
        spark.sql(f"CALL streamhouse.system.tier('{name.removeprefix('streamhouse.')}')")
        spark.sql(f"INSERT INTO {name} VALUES (2, 2)")
        frame = spark.range(3, 4).selectExpr("'x' AS extra", "id", "CAST(id AS INT) AS N")
        for _ in range(2):
            frame.writeTo(name).option("mergeSchema", "true").append()
        frame.selectExpr("id", "true AS more").write.option("mergeschema", "TRUE").mode("append").saveAsTable(name)
        assert opened(wh, name).schema.names == ["id", "n", "extra", "more"]
        spark.sql(
            f"MERGE WITH SCHEMA EVOLUTION INTO {name} t USING (SELECT 1L AS id, 10 AS n, 'y' AS last) s "
            "ON t.id = s.id WHEN MATCHED THEN UPDATE SET *"
        )
        assert sorted(found(spark, f"SELECT id, n, extra, more, last FROM {name}"), key=str) == [
            (1, 10, None, None, "y"),
            (2, 2, None, None, None),
            (3, 3, "x", None, None),
            (3, 3, "x", None, None),
            (3, None, None, True, None),
        ]

    def test_what_cannot_be_added_is_refused_and_changes_nothing(self, spark: Any, wh: Any, make: Any) -> None:
        name = make(columns="id BIGINT, gone INT")
        spark.sql(f"ALTER TABLE {name} DROP COLUMN gone")
        before = opened(wh, name).state.version
        for column, says in (("_bucket", "reserved"), ("gone", "mergeSchema does not add columns with a former name")):
            frame = spark.range(1).selectExpr("id", f"1 AS {column}")
            with pytest.raises(AnalysisException, match=says) as refused:
                frame.writeTo(name).option("mergeSchema", "true").append()
            assert "Traceback" not in str(refused.value)
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            spark.range(1).writeTo(f"{name}_none").option("mergeSchema", "true").append()
        assert opened(wh, name).state.version == before


class TestOtherMatches:
    """ON t.name = s.name: a source row that matches none may have the key of another row."""

    INSERTING = "WHEN NOT MATCHED THEN INSERT *"
    BOTH = "WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT *"
    ON = "t.name = s.name"

    @pytest.mark.parametrize("clauses", [INSERTING, BOTH], ids=["insert only", "update too"])
    def test_a_key_that_is_there_is_an_error(self, spark: Any, filled: str, clauses: str) -> None:
        before = rows(spark, filled)
        with pytest.raises(AnalysisException, match=r"SCHEMA_MISMATCH.*id = 2.*insert-existing") as error:
            spark.sql(merge_into(filled, "(2L, 'other', 7), (50L, 'new', 8)", clauses, on=self.ON))
        assert len(str(error.value).splitlines()) == 1
        assert rows(spark, filled) == before

    @pytest.mark.parametrize("clauses", [INSERTING, BOTH], ids=["insert only", "update too"])
    def test_a_new_key_twice_is_an_error(self, spark: Any, filled: str, clauses: str) -> None:
        with pytest.raises(AnalysisException, match=r"2 rows with the primary key \(id = 50\)"):
            spark.sql(merge_into(filled, "(50L, 'a', 7), (50L, 'b', 8)", clauses, on=self.ON))

    def test_the_key_of_a_row_that_it_deletes_may_be_inserted(self, spark: Any, filled: str) -> None:
        clauses = f"{self.INSERTING} WHEN NOT MATCHED BY SOURCE AND t.id = 2 THEN DELETE"
        spark.sql(merge_into(filled, "(2L, 'other', 7)", clauses, on=self.ON))
        assert rows(spark, filled)[2] == ("other", 7)

    @pytest.mark.parametrize("clauses", [INSERTING, BOTH], ids=["insert only", "update too"])
    def test_a_property_makes_an_upsert_of_it(self, spark: Any, filled: str, clauses: str) -> None:
        spark.sql(f"ALTER TABLE {filled} SET TBLPROPERTIES ('table.merge-into.insert-existing' = 'upsert')")
        spark.sql(merge_into(filled, "(2L, 'other', 7)", clauses, on=self.ON))
        assert rows(spark, filled)[2] == ("other", 7)
