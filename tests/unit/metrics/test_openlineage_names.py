"""Names of tables and lakes in OpenLineage, on each kind of store."""

from __future__ import annotations

import pytest

from streamhouse_spark.core.warehouse_layout import dataset_name


@pytest.mark.parametrize(
    ("url", "namespace", "name"),
    [
        ("s3://lakehouse/team/wh", "s3://lakehouse", "team/wh/sales.orders"),
        ("s3://lakehouse", "s3://lakehouse", "sales.orders"),
        ("gs://bucket/wh/", "gs://bucket", "wh/sales.orders"),
        ("abfss://box@account.dfs.core.windows.net/wh", "abfss://box@account.dfs.core.windows.net", "wh/sales.orders"),
        ("hdfs://names:8020/wh", "hdfs://names:8020", "wh/sales.orders"),
        ("/data/wh", "file", "/data/wh/sales.orders"),
    ],
)
def test_a_table(url, namespace, name):
    assert dataset_name(url, "sales.orders") == (namespace, name)


def test_a_lake_is_its_folder():
    assert dataset_name("s3://b/wh", "lake/sales/orders") == ("s3://b", "wh/lake/sales/orders")
