"""Partitions through the catalog: dropped, of tables with and without a primary key, and shown where they lie."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.errors import PySparkException

from spark.session import load
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark

MON, TUE = dt.date(2026, 3, 2), dt.date(2026, 3, 3)


@pytest.mark.always
def test_partitions_are_dropped_from_log_and_keyed_tables(spark, wh):
    def found(query):
        return [tuple(row) for row in spark.sql(query).collect()]

    log = wh.create_table("parts.log", "id BIGINT, day DATE, land STRING", partition_by=["day", "land"])
    log.append([{"id": 1, "day": MON, "land": "de"}, {"id": 2, "day": MON}, {"id": 3, "day": TUE, "land": "de"}])
    name = "streamhouse.parts.log"
    spark.sql(f"ALTER TABLE {name} DROP PARTITION (day = DATE'2026-03-02', land = 'de')")
    assert found(f"SELECT id FROM {name} WHERE id > 0 ORDER BY id") == [(2,), (3,)]
    assert found(f"SHOW PARTITIONS {name}") == [("day=2026-03-02/land=null",), ("day=2026-03-03/land=de",)]
    with pytest.raises(PySparkException, match=r"PARTITIONS?_NOT_FOUND|partition"):
        spark.sql(f"ALTER TABLE {name} DROP PARTITION (day = DATE'2026-03-02', land = 'de')")
    spark.sql(f"ALTER TABLE {name} DROP IF EXISTS PARTITION (day = DATE'2026-03-02', land = 'de')")
    version = log.refresh().version
    spark.sql(
        f"ALTER TABLE {name} DROP PARTITION (day = DATE'2026-03-02', land = NULL), "
        "PARTITION (day = DATE'2026-03-03', land = 'de')"
    )
    assert found(f"SELECT count(*) FROM {name}") == [(0,)]
    assert log.lake.to_arrow().num_rows == 0
    assert log.refresh().version == version + 1, "both in one step"

    keyed = wh.create_table("parts.keyed", "id BIGINT, day DATE", primary_key=["id", "day"], partition_by=["day"])
    keyed.upsert([{"id": 1, "day": MON}, {"id": 2, "day": MON}, {"id": 3, "day": TUE}])
    spark.sql("ALTER TABLE streamhouse.parts.keyed DROP PARTITION (day = DATE'2026-03-02')")
    assert found("SELECT * FROM streamhouse.parts.keyed") == [(3, TUE)]
    changes = found("SELECT id, _change_type FROM streamhouse.parts.`keyed$changelog` WHERE _log_offset > 2")
    assert sorted(changes) == [(1, "delete"), (2, "delete")]


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
def test_the_partitions_table_shows_log_and_lake_rows(spark, wh, lake_format):
    properties = {"table.datalake.format": lake_format}
    table = wh.create_table(f"parts.{lake_format}", "id BIGINT, day DATE", partition_by=["day"], properties=properties)
    table.append([{"id": 1, "day": MON}, {"id": 2, "day": MON}, {"id": 3, "day": TUE}])
    tier(spark, wh.url, [table.name])
    table.append([{"id": 4, "day": TUE}])
    places = spark.sql(f"SELECT * FROM streamhouse.parts.`{lake_format}$partitions` WHERE day = DATE'2026-03-03'")
    assert [tuple(row)[:4] for row in places.collect()] == [(TUE, 1, 1, 1)]
    places = load(spark, wh, f"{table.name}$partitions").orderBy("day").select("day", "hot_rows", "lake_rows")
    assert [tuple(row) for row in places.collect()] == [(MON, 0, 2), (TUE, 1, 1)]
