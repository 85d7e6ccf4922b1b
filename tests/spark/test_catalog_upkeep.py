"""A lake's upkeep and adoption by CALL; adopted rows in SQL, in aggregates from metadata and in streams."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from interop.paimon_cases import Stock
from streamhouse_spark import Warehouse
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.table.maintenance.tiering import tier_table

pytestmark = [pytest.mark.spark]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


@pytest.fixture
def lake(spark, wh: Warehouse) -> FileCatalog:
    """The catalog of files, with an Iceberg table for each kind of table, which another engine wrote."""
    spark.sql("CREATE DATABASE IF NOT EXISTS streamhouse.upkeep")
    catalog = FileCatalog(wh.storage)
    for name in ("upkeep.rows", "upkeep.people"):
        if not catalog.table_exists(name):
            made = catalog.create_table(name, SCHEMA, properties={"format-version": "2"})
            made.append(pa.table({"id": [1, 2, 3], "text": ["old"] * 3}, schema=SCHEMA))
    return catalog


def call(spark, procedure: str) -> dict[str, object]:
    (row,) = spark.sql(f"CALL streamhouse.system.{procedure}").collect()
    return row.asDict()


def rows(spark, table: str) -> list[tuple]:
    return sorted(tuple(row) for row in spark.sql(f"SELECT id, text FROM streamhouse.{table}").collect())


def stream_from_the_beginning(spark, tmp_path) -> None:
    full = spark.readStream.table("streamhouse.upkeep.rows").writeStream.format("noop")
    full.option("checkpointLocation", str(tmp_path / "full")).start().awaitTermination()


def test_adopted_rows_are_read_and_maintained_in_sql(spark, wh: Warehouse, lake, tmp_path):
    shown = call(spark, "adopt(table => 'upkeep.rows', dry_run => true)")
    assert (shown["rows"], shown["dry_run"]) == (3, True)
    assert call(spark, "adopt('upkeep.rows')")["rows"] == 3
    old = [(1, "old"), (2, "old"), (3, "old")]
    assert rows(spark, "upkeep.rows") == old
    table = wh.table("upkeep.rows")
    for i in range(4, 10):
        table.append([{"id": i, "text": "new"}])
        if i < 9:
            tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))
    assert call(spark, "tier(table => 'upkeep.rows')")["rows"] == 1
    spark.sql("INSERT INTO streamhouse.upkeep.rows VALUES (10, 'hot')")
    expected = [*old, *((i, "new") for i in range(4, 10)), (10, "hot")]
    assert rows(spark, "upkeep.rows") == expected
    assert rows(spark, "upkeep.`rows$lake`") == expected[:-1]
    assert spark.sql("SELECT count(*), min(id), max(id) FROM streamhouse.upkeep.rows").first()[:] == (10, 1, 10)
    assert call(spark, "compact('upkeep.rows')")["files_removed"] == 6
    assert (
        call(spark, "expire_snapshots(table => 'upkeep.rows', older_than => now(), retain_last => 2)")["snapshots"] > 3
    )
    assert call(spark, "rewrite_manifests('upkeep.rows')")["manifests_added"] <= 1
    shown = call(spark, "optimize(table => 'upkeep.rows', order_by => 'zorder(id, text)', dry_run => true)")
    assert (shown["files_removed"], shown["dry_run"]) == (0, True)  # one file of ours, and one of another engine
    assert spark.sql("CALL streamhouse.system.remove_orphan_files('upkeep.rows')").collect() == []
    assert rows(spark, "upkeep.rows") == expected
    stream = spark.readStream.option("startingOffsets", "earliest").table("streamhouse.upkeep.rows")
    spark.sql("CREATE TABLE streamhouse.upkeep.copy (id BIGINT, text STRING)")
    stream = stream.writeStream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    stream.toTable("streamhouse.upkeep.copy").awaitTermination()
    assert rows(spark, "upkeep.copy") == expected[3:]
    with pytest.raises(StreamingQueryException, match="startingOffsets=earliest"):
        stream_from_the_beginning(spark, tmp_path)
    with pytest.raises(AnalysisException, match="startingOffsets=earliest"):
        spark.sql("SELECT * FROM streamhouse.upkeep.rows WITH (`endingTimestamp` = '2100-01-01T00:00:00Z')").collect()
    hidden = spark.sql("SELECT id, _log_offset FROM streamhouse.upkeep.rows").collect()
    assert dict(map(tuple, hidden)) == {**dict.fromkeys((1, 2, 3)), **{i: i - 4 for i in range(4, 11)}}
    spark.sql("UPDATE streamhouse.upkeep.rows SET text = 'newer' WHERE id > 9")
    spark.sql("UPDATE streamhouse.upkeep.rows SET text = 'x' WHERE id IN (3, 4)")
    assert rows(spark, "upkeep.rows") == [*expected[:2], (3, "x"), (4, "x"), *expected[4:-1], (10, "newer")]


@pytest.mark.long
def test_adopted_keyed_rows_are_changed_in_sql(spark, lake, tmp_path):
    with pytest.raises(AnalysisException, match=r"LAKE_MISMATCH.*'text' of the primary key is optional"):
        call(spark, "adopt(table => 'upkeep.people', primary_key => 'text')")
    call(spark, "adopt(table => 'upkeep.people', primary_key => 'id')")
    spark.sql("UPDATE streamhouse.upkeep.people SET text = 'changed' WHERE id = 2")
    spark.sql("DELETE FROM streamhouse.upkeep.people WHERE id = 3")
    assert rows(spark, "upkeep.people") == [(1, "old"), (2, "changed")]
    call(spark, "tier('upkeep.people')")
    assert rows(spark, "upkeep.people") == [(1, "old"), (2, "changed")] == rows(spark, "upkeep.`people$lake`")
    assert spark.sql("SELECT count(*) FROM streamhouse.upkeep.people").first()[0] == 2
    changes = spark.readStream.table("streamhouse.upkeep.`people$changelog`").select("_change_type", "id", "text")
    query = changes.writeStream.format("parquet").option("path", str(tmp_path / "changes"))
    query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    found = sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / "changes")).collect())
    assert found == [
        ("delete", 3, "old"),
        ("insert", 1, "old"),
        ("insert", 2, "old"),
        ("insert", 3, "old"),
        ("update_after", 2, "changed"),
        ("update_before", 2, "old"),
    ]


@pytest.mark.long
def test_adopted_paimon_rows_are_read_and_changed_in_sql(spark, wh: Warehouse, tmp_path):
    """Files of pypaimon have no field ids, those with a key are merged; aggregates and streams as of any table."""
    spark.sql("CREATE DATABASE IF NOT EXISTS streamhouse.upkeep")
    stock = Stock(wh.storage, tmp_path / "stock")
    old = [{"id": i, "text": "old"} for i in (1, 2, 3)]
    stock.make("upkeep.paimon_rows", SCHEMA, old)
    stock.make("upkeep.paimon_people", SCHEMA, [{"id": 1, "text": "older"}], old, primary_key=["id"], bucket="2")
    assert call(spark, "adopt(table => 'upkeep.paimon_rows', format => 'paimon')")["rows"] == 3
    assert call(spark, "adopt('upkeep.paimon_people')")["rows"] == 4
    spark.sql("INSERT INTO streamhouse.upkeep.paimon_rows VALUES (4, 'new')")
    spark.sql("UPDATE streamhouse.upkeep.paimon_people SET text = 'changed' WHERE id = 2")
    spark.sql("DELETE FROM streamhouse.upkeep.paimon_people WHERE id = 3")
    expected = {
        "paimon_rows": [(1, "old"), (2, "old"), (3, "old"), (4, "new")],
        "paimon_people": [(1, "old"), (2, "changed")],
    }
    for name, wanted in expected.items():
        assert rows(spark, f"upkeep.{name}") == wanted
        assert rows(spark, f"upkeep.`{name}$lake`") == [(1, "old"), (2, "old"), (3, "old")]
        call(spark, f"tier('upkeep.{name}')")
        assert rows(spark, f"upkeep.{name}") == wanted == rows(spark, f"upkeep.`{name}$lake`")
        found = spark.sql(f"SELECT count(*), max(id) FROM streamhouse.upkeep.{name} WHERE text <> 'new'").first()
        assert found[:] == (len([row for row in wanted if row[1] != "new"]), max(i for i, t in wanted if t != "new"))
        assert sorted((row["id"], row["text"]) for row in stock.read(f"upkeep.{name}")) == wanted
    spark.sql("ALTER TABLE streamhouse.upkeep.paimon_rows RENAME COLUMN text TO words")
    found = spark.sql("SELECT words FROM streamhouse.upkeep.paimon_rows WHERE id < 3 OR words = 'new'").collect()
    assert sorted(row[0] for row in found) == ["new", "old", "old"]
