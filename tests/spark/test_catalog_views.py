"""Views in SQL: one life, seen by other sessions and by Python."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException

from streamhouse_spark import Warehouse
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.errors import TableNotFoundError
from streamhouse_spark.log.catalog import name_changes
from streamhouse_spark.log.catalog.names import ViewEntry

pytestmark = [pytest.mark.spark, pytest.mark.spark41]


def rows(frame) -> list[tuple]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.skipif(not spark_versions.HAS_VIEWS, reason="Spark has views in catalogs from 4.2 on")
def test_a_view_is_created_read_altered_and_dropped(spark, wh: Warehouse):
    sql = spark.sql
    sql("CREATE DATABASE streamhouse.views")
    before = spark.catalog.currentCatalog()
    spark.catalog.setCurrentCatalog("streamhouse")
    try:
        sql("USE views")
        sql("CREATE TABLE t (id BIGINT, name STRING)")
        sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        sql("CREATE VIEW v (key COMMENT 'the key', upper) COMMENT 'all' AS SELECT id, upper(name) AS up FROM t")
    finally:
        spark.catalog.setCurrentCatalog(before)
    v, w, t = "streamhouse.views.v", "streamhouse.views.w", "streamhouse.views.t"
    assert rows(sql(f"SELECT * FROM {v}")) == [(1, "A"), (2, "B")], "names in it mean what they meant there"
    sql(f"INSERT INTO {t} VALUES (3, 'c')")
    assert rows(spark.table(v).filter("key > 1")) == [(2, "B"), (3, "C")]
    assert rows(sql(f"SELECT upper FROM {v} JOIN {t} ON key = id WHERE name = 'c'")) == [("C",)]
    with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
        sql(f"CREATE VIEW {v} AS SELECT 1")
    sql(f"CREATE VIEW IF NOT EXISTS {v} AS SELECT 1")

    assert [tuple(r) for r in sql("SHOW VIEWS IN streamhouse.views").collect()] == [("views", "v", False)]
    extended = sql("SHOW TABLE EXTENDED IN streamhouse.views LIKE '*'").collect()
    assert [r.tableName for r in extended if not r.isTemporary] == ["t"]
    assert [r.tableName for r in sql("SHOW TABLES IN streamhouse.views").collect()] == ["t", "v"]
    described = {r.col_name: r for r in sql(f"DESCRIBE EXTENDED {v}").collect()}
    assert (described["key"].data_type, described["key"].comment, described["Type"].data_type) == (
        "bigint",
        "the key",
        "VIEW",
    )
    assert "AS SELECT id, upper(name) AS up FROM t" in sql(f"SHOW CREATE TABLE {v}").collect()[0][0]

    sql(f"CREATE OR REPLACE VIEW {v} AS SELECT id + 1 AS more FROM {t}")
    sql(f"ALTER VIEW {v} SET TBLPROPERTIES ('a' = 'b', 'c' = 'd')")
    sql(f"ALTER VIEW {v} UNSET TBLPROPERTIES ('c')")
    sql(f"ALTER VIEW {v} AS SELECT id + 2 AS more FROM {t}")
    sql(f"ALTER VIEW {v} RENAME TO {w}")
    assert rows(sql(f"SELECT * FROM {w}")) == [(3,), (4,), (5,)]
    assert [tuple(r) for r in sql(f"SHOW TBLPROPERTIES {w}").collect()] == [("a", "b")]
    with pytest.raises(AnalysisException, match="NOT_FOUND"):
        spark.table(v).collect()
    for statement in (f"CREATE TABLE {w} (a INT)", f"CREATE VIEW {t} AS SELECT 1", f"ALTER VIEW {w} RENAME TO {t}"):
        with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
            sql(statement)
    with pytest.raises(AnalysisException, match="NAME_IS_VIEW"):
        sql(f"CREATE OR REPLACE TABLE {w} AS SELECT 1 AS a")
    with pytest.raises(AnalysisException, match="WRONG_COMMAND_FOR_OBJECT_TYPE"):
        sql(f"DROP TABLE {w}")
    with pytest.raises(TableNotFoundError, match="NAME_IS_VIEW"):
        wh.table("views.w")

    with pytest.raises(AnalysisException, match="SCHEMA_NOT_EMPTY"):
        sql("DROP DATABASE streamhouse.views")
    sql(f"DROP VIEW {w}")
    sql(f"DROP VIEW IF EXISTS {w}")
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_FOUND"):
        sql("CREATE VIEW streamhouse.nowhere.v AS SELECT 1")
    sql("CREATE VIEW streamhouse.views.last AS SELECT 1 AS one")
    sql("DROP DATABASE streamhouse.views CASCADE")
    assert "views" not in wh.databases()


def test_a_session_without_views_says_that_a_name_is_one(spark, wh: Warehouse):
    wh.create_database("seen")
    name_changes.create_view(wh.storage, wh.world, TablePath("seen", "v"), ViewEntry("select 1", "{}"), replace=False)
    spark.conf.set("spark.sql.catalog.older", "io.streamhouse.spark.StreamhouseCatalog")
    spark.conf.set("spark.sql.catalog.older.warehouse", wh.url)
    with pytest.raises(AnalysisException, match=r"NAME_IS_VIEW: seen\.v of .* is a view, not a table"):
        spark.sql("SELECT * FROM older.seen.v")
    with pytest.raises(AnalysisException, match="MISSING_CATALOG_ABILITY"):
        spark.sql("CREATE VIEW older.seen.other AS SELECT 1")
    wh.drop_database("seen", cascade=True)
