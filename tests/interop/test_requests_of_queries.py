"""Requests of queries of a lake on a distant store, over S3A, and the rows that such queries see. `make interop` runs
this.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import streamhouse_spark
from interop.own_jvm import session_in_own_jvm
from interop.s3a_session import s3a_builder
from kit.tables import tier
from storage.s3_proxy import S3Proxy, running_s3_proxy
from storage.s3_server import S3Server, settings_for
from streamhouse_spark import Table, Warehouse

pytestmark = [
    pytest.mark.engines,
    pytest.mark.s3,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
LAKE = "streamhouse.far.`orders$lake`"
LOG = "streamhouse.far.clicks"
ROWS = 40_000
FILES = 2
DELAY_SECONDS = 0.1
LOOKS = 2 * 3
"""When Spark analyzes a query, and when it runs it: the next record of the log, the next version of the lake, and the
mark of a lake that was dropped.
"""


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with running_s3_proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def warehouse(s3_server: S3Server, proxy: S3Proxy) -> Warehouse:
    return Warehouse(f"s3://{s3_server.new_bucket()}/wh", settings_for(proxy.endpoint))


@pytest.fixture(scope="module")
def orders(warehouse: Warehouse) -> Table:
    columns = "id BIGINT, v DOUBLE, text STRING"
    table = warehouse.create_table("far.orders", columns, buckets=FILES, properties={"bucket.key": "id"})
    numbers = random.Random(1)
    table.append([{"id": i, "v": float(i), "text": f"{numbers.random()}"} for i in range(ROWS)])
    tier(table)
    return table


@pytest.fixture(scope="module")
def clicks(warehouse: Warehouse) -> Table:
    table = warehouse.create_table("far.clicks", "id BIGINT")
    table.append([{"id": 0}])
    return table


@pytest.fixture(scope="module")
def spark(warehouse: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    builder = s3a_builder(tmp_path_factory.mktemp("events"))
    settings = settings_for(warehouse.settings["s3.endpoint"])
    configured = streamhouse_spark.configure(builder, warehouse=warehouse.url, settings=settings)
    with session_in_own_jvm(configured) as session:
        yield session


@pytest.fixture
def far(proxy: S3Proxy) -> Iterator[S3Proxy]:
    """The store is distant."""
    proxy.delay_seconds = DELAY_SECONDS
    yield proxy
    proxy.delay_seconds = 0.0


def requests_of(proxy: S3Proxy, spark: Any, query: str) -> Counter[str]:
    proxy.plan = lambda _: None
    spark.sql(query).collect()
    return Counter(path.rpartition(".")[2] if ".parquet" in path else "look" for path in paths_of(proxy))


def paths_of(proxy: S3Proxy) -> list[str]:
    assert set(proxy.methods) <= {"GET"}
    return [request.path.partition("?")[0] for request, _ in proxy.log]


@pytest.mark.parametrize(
    ("query", "reads"),
    [
        (f"SELECT count(*) FROM {LAKE}", 0),
        (f"SELECT sum(v) FROM {LAKE}", FILES),
        (f"SELECT id % 10, sum(v) FROM {LAKE} GROUP BY 1", FILES),
        (f"SELECT sum(a.v) FROM {LAKE} a JOIN {LAKE} b ON a.id = b.id", 2 * FILES),
    ],
)
def test_a_query_reads_no_footer_again(spark, orders, far, query, reads):
    found = [requests_of(far, spark, query) for _ in range(3)][-1]
    assert +found == +Counter({"look": LOOKS, "parquet": reads})


def test_a_query_of_lake_and_log_asks_python_for_no_plan_again(spark, warehouse, far):
    columns = "id BIGINT, v DOUBLE"
    table = warehouse.create_table("far.both", columns, buckets=1, properties={"bucket.key": "id"})
    table.append([{"id": i, "v": float(i)} for i in range(ROWS)])
    tier(table)
    table.append([{"id": ROWS, "v": 1.0}])
    found = [requests_of(far, spark, "SELECT sum(v) FROM streamhouse.far.both") for _ in range(4)][-1]
    # Two are for the next record, then come the lake's next version and its mark, and the record of the hot row.
    assert found == Counter({"look": 2 + 2 + 1, "parquet": 1})
    table.append([{"id": ROWS, "v": 1.0}])
    assert spark.sql("SELECT count(*) FROM streamhouse.far.both WHERE v >= 0").first() == (ROWS + 2,)


def test_what_is_written_after_a_dataframe_was_made_is_seen(spark, clicks, far):
    for _ in range(5):
        made = spark.table(LOG)
        before = spark.table(LOG).count()
        clicks.append([{"id": 1}])
        assert made.count() == before + 1
        made = spark.table(LOG)
        clicks.append([{"id": 1}])
        assert made.count() == before + 2
        spark.sql(f"INSERT INTO {LOG} VALUES (1)")
        assert made.count() == before + 3


def test_a_writer_nearer_to_the_store_is_seen(spark, warehouse, s3_server, clicks, far):
    """Its commits take less time than one request of this session."""
    near = Warehouse(warehouse.url, settings_for(s3_server.endpoint)).table("far.clicks")
    for _ in range(5):
        before = spark.table(LOG).count()
        made = spark.table(LOG)
        near.append([{"id": 1}])
        assert made.count() == before + 1


def test_each_run_of_a_dataframe_sees_the_rows_of_another_process(spark, warehouse, orders, far):
    other = Warehouse(warehouse.url, warehouse.settings).table("far.orders")
    for name, add in ((LOG, clicks_by(warehouse)), (LAKE, lambda: (other.append([{"id": 7}]), tier(other)))):
        frame = spark.table(name)
        count = frame.count()
        for i in range(1, 4):
            add()
            assert frame.count() == count + i
            assert spark.sql(f"SELECT count(*) FROM {name}").first() == (count + i,)


def clicks_by(warehouse: Warehouse) -> Any:
    table = Warehouse(warehouse.url, warehouse.settings).table("far.clicks")
    return lambda: table.append([{"id": 2}])


def test_a_query_is_of_one_state(spark, clicks, far):
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            clicks.append([{"id": 3}])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            found = spark.sql(f"SELECT (SELECT count(id) FROM {LOG} WHERE id >= 0), count(*) FROM {LOG}").first()
            assert found[0] == found[1]
    finally:
        over.set()
        writer.join()
