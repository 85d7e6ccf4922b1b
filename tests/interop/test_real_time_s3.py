"""Spark's real-time mode over logs on S3, by Hadoop's S3A. `make interop` runs this; Spark fetches 0.7 GB for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import streamhouse_spark
from interop.own_jvm import session_in_own_jvm
from interop.s3a_session import s3a_builder
from spark.noted_stream import WAIT_S, Stream
from storage.s3_proxy import Fault, Request, S3Proxy, running_s3_proxy
from storage.s3_server import SECRET_ACCESS_KEY, S3Server, settings_for
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.warehouse_layout import commit_key

pytestmark = [
    pytest.mark.engines,
    pytest.mark.s3,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
BATCH = "60 seconds"
"""Long enough that all that happens in a test happens in its first batch, when Python asks for nothing."""
LOOKS_OF_PYTHON_MAX = 10
"""Looks for the next record before a batch begins."""
REQUESTS_MAX = 400
"""Looks for ten commits, while rows come: 50 a second of which most find none."""


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with running_s3_proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A warehouse on the disk, whose logs lie on S3."""
    return str(tmp_path_factory.mktemp("near") / "warehouse")


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def spark(proxy: S3Proxy, bucket: str, near: str, events: Path) -> Iterator[Any]:
    builder = s3a_builder(events).config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    settings = settings_for(proxy.endpoint)
    builder = streamhouse_spark.configure(builder, warehouse=f"s3://{bucket}/wh", settings=settings)
    of_logs = {f"log.{name}": value for name, value in settings.items()}
    configured = streamhouse_spark.configure(builder, warehouse=near, catalog="near", settings=of_logs)
    with session_in_own_jvm(configured) as session:
        yield session


class Followed:
    """A query that follows a table of two buckets, and the requests that it sends. Appends do not go by the proxy."""

    def __init__(self, proxy: S3Proxy, table: Table, stream: Stream) -> None:
        self.proxy, self.table, self.stream, self.rows = proxy, table, stream, 0
        self.append(10)
        self.query = stream.start()
        self.wait_until_read(LOOKS_OF_PYTHON_MAX)

    def append(self, count: int, note: str | None = None) -> None:
        self.table.append([{"id": i, "name": f"n{i}", "note": note} for i in range(self.rows, self.rows + count)])
        self.rows += count

    def asked(self) -> list[str]:
        """The objects that were asked for since the plan was set."""
        return [request.path for request, _ in self.proxy.log]

    def segments(self) -> list[Request]:
        return [request for request, _ in self.proxy.log if "/segments/" in request.path]

    def next(self) -> str:
        return commit_key(self.table.uuid, self.table.state.version + 1)

    def wait_until_read(self, more_than: int = 0) -> None:
        """Wait until the query has looked for the record behind the newest one, more often than so many times."""
        end = time.monotonic() + WAIT_S
        while sum(path.endswith(self.next()) for path in self.asked()) <= more_than:
            assert self.query.exception() is None
            assert time.monotonic() < end, self.asked()[-5:]
            time.sleep(0.01)

    def ended(self) -> list[str]:
        """The rows, once the batch is over."""
        found = self.stream.wait_for(self.query, self.rows)
        self.query.stop()
        return found


def of_log(fault: Fault, counted: Callable[[int], bool]) -> Callable[[Request], Fault | None]:
    """Spoil those requests for records and segments whose number, from 0 on, is wanted."""
    numbers = iter(range(10**6))
    return lambda request: fault if "/tables/" in request.path and counted(next(numbers)) else None


def test_rows_come_by_a_request_each_through_every_fault(
    spark: Any, s3_server: S3Server, proxy: S3Proxy, bucket: str, events: Path, tmp_path: Path
) -> None:
    warehouse = Warehouse(f"s3://{bucket}/wh", settings_for(s3_server.endpoint))
    table = warehouse.create_table(
        "s.orders", "id BIGINT, name STRING, note STRING", buckets=2, properties={"bucket.key": "id"}
    )

    def rows() -> Any:
        return spark.readStream.table("streamhouse.s.orders").where("id % 10 < 8").selectExpr("id", "name", "_bucket")

    followed = Followed(proxy, table, Stream(spark, rows, tmp_path, BATCH))
    followed_rows(followed)
    an_idle_log(followed)
    objects(followed)
    for fault in (Fault.SLOW_DOWN, Fault.ERROR_BEFORE, Fault.TRUNCATED):
        proxy.plan = of_log(fault, lambda number: number < 3)
        followed.append(10)
        followed.wait_until_read()
        assert 1 <= proxy.faults_fired <= 3
    a_store_that_is_away(followed)
    proxy.plan = lambda _: None
    wanted = sum(i % 10 < 8 for i in range(followed.rows))
    found = followed.stream.wait_for(followed.query, wanted)
    followed.query.stop()
    assert len(found) == len(set(found)) == wanted
    alone = Stream(spark, rows, tmp_path / "alone")
    assert set(alone.micro_batches()) == set(found)
    followed.append(10)
    more = set(followed.stream.micro_batches()) - set(found)  # from the checkpoint of the batch that was stopped
    assert len(more) == sum(i % 10 < 8 for i in range(followed.rows)) - wanted
    said = "".join(path.read_text("utf-8", "replace") for path in events.rglob("*") if path.is_file())
    assert "s.orders" in said
    assert SECRET_ACCESS_KEY not in said


def followed_rows(followed: Followed) -> None:
    """Small appends need requests for records alone: no listings, and no looks at sizes."""
    followed.proxy.plan = lambda _: None
    for _ in range(10):
        followed.append(10)
        followed.wait_until_read()
    assert set(followed.proxy.methods) == {"GET"}
    records = commit_key(followed.table.uuid, 0).rpartition("/")[0]
    assert all(f"/{records}/" in path for path in followed.asked())
    assert len(followed.asked()) < REQUESTS_MAX


def an_idle_log(followed: Followed) -> None:
    """A log without news for three seconds: fewer and fewer looks, each of them one request."""
    followed.append(10)
    followed.wait_until_read()
    followed.proxy.plan = lambda _: None
    time.sleep(3)
    assert 5 <= len(followed.asked()) <= 60
    assert {path.rpartition("/")[2] for path in followed.asked()} == {followed.next().rpartition("/")[2]}


def objects(followed: Followed) -> None:
    """Rows in objects: one request for the rows of a bucket; of large ones, two for the columns that are needed."""
    followed.table.log_writer.stager()._inline_bytes_max = 0
    for note, num_requests, num_bytes in (("", 2, 1 << 20), ("note" * 1000, 4, 1 << 20)):
        followed.proxy.plan = lambda _: None
        followed.append(1000, note)
        end = time.monotonic() + WAIT_S
        while len(segments := followed.segments()) < num_requests and time.monotonic() < end:
            time.sleep(0.01)
        followed.append(1)
        while len(followed.segments()) == len(segments) and time.monotonic() < end:  # it is behind these rows
            time.sleep(0.01)
        assert len(segments) == num_requests
        assert sum(map(wanted_bytes, segments)) < num_bytes


def wanted_bytes(request: Request) -> int:
    first, _, last = (request.wanted or "").removeprefix("bytes=").partition("-")
    return int(last) + 1 - int(first)


def a_store_that_is_away(followed: Followed) -> None:
    back = time.monotonic() + 3
    followed.proxy.plan = lambda request: (
        Fault.DROP_BEFORE if "/tables/" in request.path and time.monotonic() < back else None
    )
    followed.append(10)
    time.sleep(3)
    followed.wait_until_read()
    assert followed.proxy.faults_fired >= 2


def test_a_log_on_s3_of_a_local_warehouse_is_followed(
    spark: Any, s3_server: S3Server, proxy: S3Proxy, bucket: str, near: str, tmp_path: Path
) -> None:
    """The log of a table of a warehouse on the disk lies on S3, which has settings of its own."""
    settings = {f"log.{name}": value for name, value in settings_for(s3_server.endpoint).items()}
    properties = {"bucket.key": "id", "table.log.location": f"s3://{bucket}/logs"}
    table = Warehouse(near, settings).create_table(
        "s.orders", "id BIGINT, name STRING, note STRING", buckets=2, properties=properties
    )
    proxy.plan = lambda _: None
    stream = Stream(spark, lambda: spark.readStream.table("near.s.orders").select("id"), tmp_path, "10 seconds")
    followed = Followed(proxy, table, stream)
    followed.append(10)
    assert sorted(followed.ended()) == sorted(f"({i},)" for i in range(20))
