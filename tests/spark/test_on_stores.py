"""A warehouse on real servers of other stores than S3: settings reach the tasks, and Python reads the lake files where
Spark has no file system.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark.session import COLUMNS, append, drain, ids, load, load_stream
from stores.servers import Server, azurite, fake_gcs, hdfs
from streamhouse_spark import Warehouse
from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.stores]


@pytest.fixture(params=[fake_gcs, azurite, hdfs], ids=lambda kind: kind.__name__)
def server(request, tmp_path) -> Iterator[Server]:
    with request.param(tmp_path) as running:
        yield running


def test_append_tier_read_and_stream(spark, server, checkpoint, capsys):
    settings = dict(server.settings)
    warehouse = Warehouse(server.new_url(), settings)
    source = warehouse.create_table("s.orders", COLUMNS, buckets=2, properties={"bucket.key": "id"})
    append(spark.range(0, 2000, 1, 2).selectExpr("id", "concat('n', id) name"), warehouse, source.name, **settings)
    assert tier(spark, warehouse.url, settings=settings)[source.name].rows == 2000
    append(spark.range(2000, 2500).selectExpr("id"), warehouse, source.name, **settings)
    found = load(spark, warehouse, source.name, "id long", **settings).selectExpr("count(*)", "sum(id)").first()
    assert found == (2500, 2499 * 1250)
    assert load(spark, warehouse, f"{source.name}$lake", **settings).count() == 2000
    load(spark, warehouse, f"{source.name}$lake", **settings).explain()
    is_hdfs = warehouse.url.startswith("hdfs://")
    way = "by Spark's reader over hdfs" if is_hdfs else "by Python: Spark has no file system"
    assert f"lake files {way}" in capsys.readouterr().out
    target = warehouse.create_table("s.copy", COLUMNS)
    drain(load_stream(spark, warehouse, source.name, **settings), warehouse, target.name, checkpoint, **settings)
    assert ids(target) == list(range(2500))
