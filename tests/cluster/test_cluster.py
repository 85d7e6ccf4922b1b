"""Two workers that share nothing but the store: disks, caches and home directories are apart."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cluster import jobs
from cluster.hosts import Hosts
from storage.s3_server import S3Server, settings_for
from streamhouse_spark import Warehouse
from streamhouse_spark.cli.diagnostics import check_lake_reader, spark_jars

pytestmark = [pytest.mark.cluster, pytest.mark.s3]
KILLS = int(os.environ.get("STREAMHOUSE_CLUSTER_KILLS", "8"))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    found = Hosts(tmp_path_factory.mktemp("hosts"), {"PYTHONPATH": str(Path(__file__).parents[1])})
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def settings(s3_server: S3Server) -> dict[str, str]:
    return settings_for(s3_server.endpoint)


@pytest.fixture
def wh(s3_server: S3Server, settings: dict[str, str]) -> Warehouse:
    return Warehouse(f"s3://{s3_server.new_bucket()}/wh", settings)


@pytest.fixture
def start(hosts: Hosts, wh: Warehouse, settings: dict[str, str]) -> Callable[..., Any]:
    """Start a job's driver on a new host."""

    def start(name: str, job: str, **given: Any) -> Any:
        shared = {"master": hosts.master, "warehouse": wh.url, "settings": settings}
        return hosts.driver(name, [sys.executable, jobs.__file__, job, json.dumps({**shared, **given})])

    return start


def answer(hosts: Hosts, name: str, driver: Any) -> dict[str, Any]:
    assert driver.wait() == 0, hosts.log(name)[-6000:]
    found: dict[str, Any] = json.loads(hosts.log(name).strip().splitlines()[-1])
    return found


def test_tables_live_on_workers_that_share_only_a_store(hosts, start, wh):
    found = answer(hosts, "life", start("life", "life"))
    rows = jobs.ROWS
    assert found["executors"] == 2, "tasks ran on one disk"
    assert found["orders"] == [2 * rows, rows * (2 * rows - 1)]
    assert found["lake"] == [rows, rows * (rows - 1) // 2]
    assert found["customers"] == [90, 90 * rows // 100, 10]
    assert found["joined"] == [2 * rows * 90 // 100, 2 * rows, 2 * rows * 90 // 100 * (rows // 100)]
    assert found["tiered"] == ["shop.customers", "shop.orders"]
    assert not any(hosts.disk.iterdir()), "something was written on the disk of this machine"
    assert wh.table("shop.customers").lookup([{"id": 3}])["name"].to_pylist() == ["C3"]


def test_executors_killed_in_writes_and_tiering(hosts, start, wh):
    """Batches have transactions, so that a job that fails is started again: each row is stored once."""
    table = wh.create_table("t", "id BIGINT, text STRING", buckets=4, properties={"bucket.key": "id"})
    chance, kills, runs, batches = random.Random(1), 0, 0, 12
    driver = start("batches-0", "batches", table="t", batches=batches)
    while kills < KILLS or driver.poll() is None:
        if driver.poll() is not None:
            if driver.returncode == 0:
                batches += 12
            runs += 1
            driver = start(f"batches-{runs}", "batches", table="t", batches=batches)
        seen = table.refresh().version
        until = time.monotonic() + 240
        while table.refresh().version == seen and driver.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 0.5))
        executors = hosts.executors()
        if kills < KILLS and executors and driver.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(executors), signal.SIGKILL)
                kills += 1
    if driver.returncode != 0:
        answer(hosts, "last", start("last", "batches", table="t", batches=batches))
    exactly_once(wh, "t", batches * jobs.ROWS)


def exactly_once(wh: Warehouse, name: str, num_rows: int) -> None:
    table = wh.table(name)
    assert sorted(table.to_arrow(columns=["id"])["id"].to_pylist()) == list(range(num_rows))
    lake = table.lake.to_arrow(columns=["id"])["id"].to_pylist()
    assert len(lake) == len(set(lake))


def test_a_stream_continues_on_another_host_after_its_driver_was_killed(hosts, start, wh):
    """The checkpoint lies on the store; each driver has an empty disk."""
    rows = 30_000
    source = wh.create_table("source", "id BIGINT, text STRING", buckets=2, properties={"bucket.key": "id"})
    target = wh.create_table("target", "id BIGINT, text STRING", buckets=2, properties={"bucket.key": "id"})
    source.append([{"id": i, "text": "x"} for i in range(rows)])
    [finding] = check_lake_reader(wh.url, spark_jars({}))
    bucket = wh.url.removeprefix("s3://").partition("/")[0]
    endpoint = wh.storage.home._settings.endpoint
    hadoop = {
        "spark.jars.packages": finding.remedy.rpartition(" ")[2],
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": wh.storage.home._settings.access_key_id,
        "spark.hadoop.fs.s3a.secret.key": wh.storage.home._settings.secret_access_key,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    }
    given = {
        "source": "source", "table": "target", "conf": hadoop, "checkpoint": f"s3a://{bucket}/checkpoints/copy",
    }  # fmt: skip
    chance = random.Random(2)
    for number in range(2):
        seen = target.refresh().version
        driver = start(f"copy-{number}", "copy", **given)
        while target.refresh().version < seen + 2:
            assert driver.poll() is None, hosts.log(f"copy-{number}")[-6000:]
            time.sleep(0.1)
        time.sleep(chance.uniform(0, 0.5))
        hosts.kill_driver(driver)
        found = target.to_arrow(columns=["id"])["id"].to_pylist()
        assert len(found) == len(set(found)) < rows
    answer(hosts, "copy-last", start("copy-last", "copy", **given))
    exactly_once(wh, "target", rows)
