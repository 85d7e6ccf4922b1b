"""Tables whose log lies in another store, in Spark: the settings and the place reach the tasks."""

from __future__ import annotations

import pytest

from spark.session import append, drain, ids, load, load_stream
from storage.s3_server import settings_for
from streamhouse_spark import Warehouse
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark


def lived(spark, warehouse, location, checkpoint, settings) -> None:
    properties = {"table.log.location": location, "bucket.key": "id"}
    source = warehouse.create_table("apart.orders", "id BIGINT, name STRING", buckets=2, properties=properties)
    append(spark.range(0, 500, 1, 2).selectExpr("id", "concat('n', id) name"), warehouse, source.name, **settings)
    assert tier(spark, warehouse.url, settings=settings, tables=[source.name])[source.name].rows == 500
    append(spark.range(500, 600).selectExpr("id"), warehouse, source.name, **settings)
    assert load(spark, warehouse, source.name, "id long", **settings).selectExpr("count(*)", "sum(id)").first() == (
        600,
        599 * 300,
    )
    assert load(spark, warehouse, f"{source.name}$lake", **settings).count() == 500
    target = warehouse.create_table(
        "apart.copy", "id BIGINT, name STRING", primary_key=["id"], properties={"table.log.location": location}
    )
    drain(load_stream(spark, warehouse, source.name, **settings), warehouse, target.name, checkpoint, **settings)
    assert ids(target) == list(range(600))


def test_a_log_in_another_folder_is_written_and_read(spark, tmp_path, checkpoint):
    lived(spark, Warehouse(tmp_path / "wh"), str(tmp_path / "fast"), checkpoint, {})
    assert not list((tmp_path / "wh" / "tables").rglob("*.arrow"))


def test_a_log_location_is_set_in_sql(spark, wh, tmp_path):
    fast = tmp_path / "fast"
    spark.sql("CREATE DATABASE IF NOT EXISTS streamhouse.apart")
    spark.sql(
        "CREATE TABLE streamhouse.apart.sql_made (id BIGINT, v STRING) "
        f"TBLPROPERTIES ('table.log.location' = '{fast}', 'primary.key' = 'id')"
    )
    spark.sql("INSERT INTO streamhouse.apart.sql_made VALUES (1, 'a'), (2, 'b')")
    spark.sql("UPDATE streamhouse.apart.sql_made SET v = 'c' WHERE id = 2")
    found = spark.sql("SELECT id, v FROM streamhouse.apart.sql_made ORDER BY id").collect()
    assert [tuple(row) for row in found] == [(1, "a"), (2, "c")]
    told = {row.col_name: row.data_type for row in spark.sql("DESCRIBE EXTENDED streamhouse.apart.sql_made").collect()}
    assert str(fast) in str(told)
    assert list(fast.glob("tables/*/commits/*.json"))
    assert wh.table("apart.sql_made").lookup([{"id": 2}])["v"].to_pylist() == ["c"]


@pytest.mark.s3
@pytest.mark.long
def test_spark_reads_and_writes_a_log_on_s3(spark, tmp_path, s3_server, checkpoint):
    settings = {f"log.{name}": value for name, value in settings_for(s3_server.endpoint).items()}
    lived(spark, Warehouse(tmp_path / "wh", settings), f"s3://{s3_server.new_bucket()}/l", checkpoint, settings)
