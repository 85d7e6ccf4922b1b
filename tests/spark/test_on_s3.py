"""A warehouse on S3: settings reach the tasks, and nothing else shows them."""

from __future__ import annotations

import pytest

from spark.session import COLUMNS, append, drain, ids, load, load_stream
from storage.s3_server import settings_for
from streamhouse_spark import Warehouse
from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.s3]


@pytest.mark.long
def test_append_tier_read_and_stream(spark, s3_server, checkpoint, capsys):
    settings = settings_for(s3_server.endpoint)
    warehouse = Warehouse(f"s3://{s3_server.new_bucket()}/wh", settings)
    source = warehouse.create_table("s.orders", COLUMNS, buckets=2, properties={"bucket.key": "id"})
    append(spark.range(0, 2000, 1, 2).selectExpr("id", "concat('n', id) name"), warehouse, source.name, **settings)
    assert tier(spark, warehouse.url, settings=settings)[source.name].rows == 2000
    append(spark.range(2000, 2500).selectExpr("id"), warehouse, source.name, **settings)
    assert load(spark, warehouse, source.name, "id long", **settings).selectExpr("count(*)", "sum(id)").first() == (
        2500,
        2499 * 1250,
    )
    assert load(spark, warehouse, f"{source.name}$lake", **settings).count() == 2000
    load(spark, warehouse, f"{source.name}$lake", **settings).explain()
    assert "Spark has no file system s3a; add --packages org.apache.hadoop:hadoop-aws:3." in capsys.readouterr().out
    target = warehouse.create_table("s.copy", COLUMNS)
    drain(load_stream(spark, warehouse, source.name, **settings), warehouse, target.name, checkpoint, **settings)
    assert ids(target) == list(range(2500))
