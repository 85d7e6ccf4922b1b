"""Spark reads lake files on S3 itself, over Hadoop's S3A. `make interop` runs this; Spark fetches 0.7 GB for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamhouse_spark
from interop.own_jvm import session_in_own_jvm
from interop.s3a_session import s3a_builder
from kit.tables import tier
from storage.s3_proxy import S3Proxy, running_s3_proxy
from storage.s3_server import SECRET_ACCESS_KEY, S3Server, settings_for
from streamhouse_spark import Table, Warehouse

pytestmark = [
    pytest.mark.engines,
    pytest.mark.s3,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
NATIVE = "lake files by Spark's reader over s3a"


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def spark(s3_server: S3Server, bucket: str, events: Path) -> Iterator[Any]:
    settings = settings_for(s3_server.endpoint)
    configured = streamhouse_spark.configure(s3a_builder(events), warehouse=f"s3://{bucket}/wh", settings=settings)
    with session_in_own_jvm(configured) as session:
        yield session


@pytest.fixture(scope="module")
def orders(spark: Any, s3_server: S3Server, bucket: str) -> Table:
    return table_of(Warehouse(f"s3://{bucket}/wh", settings_for(s3_server.endpoint)), "s.orders")


def table_of(warehouse: Warehouse, name: str) -> Table:
    table = warehouse.create_table(name, "id BIGINT, `a name` STRING", buckets=2, properties={"bucket.key": "id"})
    table.append([{"id": i, "a name": f"n{i}"} for i in range(1000)])
    tier(table)
    table.append([{"id": i, "a name": f"n{i}"} for i in range(1000, 1100)])
    return table


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().toString())


def test_hot_rows_and_lake_files_on_s3_are_read_by_both_readers(spark, orders):
    for name, rows in (("orders", 1100), ("`orders$lake`", 1000)):
        found = spark.sql(f"SELECT count(id), sum(id), count(`a name`) FROM streamhouse.s.{name} WHERE id >= 0")
        assert found.first() == (rows, rows * (rows - 1) // 2, rows)
        assert NATIVE in plan_of(found)
        assert spark.sql(f"SELECT `a name` FROM streamhouse.s.{name} WHERE id = 7").collect() == [("n7",)]


def test_no_secret_is_in_plans_and_events(spark, orders, events):
    found = spark.sql("SELECT * FROM streamhouse.s.orders WHERE id < 3")
    assert found.count() == 3
    said = "".join(path.read_text("utf-8", "replace") for path in events.rglob("*") if path.is_file())
    assert "streamhouse s.orders" in said
    assert SECRET_ACCESS_KEY not in said + plan_of(found)


def test_two_warehouses_on_one_bucket_have_their_own_keys(spark, orders, s3_server, bucket):
    with running_s3_proxy(s3_server) as proxy:
        other = {**settings_for(proxy.endpoint), "s3.access-key-id": "another-id"}
        table_of(Warehouse(f"s3://{bucket}/other", other), "s.orders")
        spark.conf.set("spark.sql.catalog.other", spark.conf.get("spark.sql.catalog.streamhouse"))
        for key, value in {"warehouse": f"s3://{bucket}/other", **other}.items():
            spark.conf.set(f"spark.sql.catalog.other.{key}", value)
        read = "SELECT sum(id) FROM {}.s.`orders$lake` WHERE id >= 0"
        assert files_over(proxy, lambda: spark.sql(read.format("streamhouse")).collect()) == set()
        assert len(files_over(proxy, lambda: spark.sql(read.format("other")).collect())) == 2


def files_over(proxy: S3Proxy, read: Any) -> set[str]:
    """The lake's data files that were asked for by way of the proxy."""
    seen: set[str] = set()
    proxy.plan = lambda request: seen.add(request.path) if request.path.endswith(".parquet") else None
    assert read() == [(499500,)]
    return seen
