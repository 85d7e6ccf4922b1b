"""Stores that limit requests, storm, and go away, in real time: what was acknowledged is there once, all else at most
once, and an error comes in bounded time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from kit.tables import tier
from s3.test_tables_through_faults import PLAIN, check, stored
from storage.s3_proxy import Fault, Plan, Request, S3Proxy, always, nothing, running_s3_proxy
from stores.servers import Server
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.storage.remote.retry import PATIENCE_SETTING

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("own_cache")]

AWAY_SECONDS = 60
ANSWER_SECONDS = 4
BOUND_SECONDS = 60
"""An error comes within it, where no request takes longer than `ANSWER_SECONDS`."""
WRITERS = 8
_PREFIXES = {"s3": "s3", "gs": "gcs", "abfss": "adls", "hdfs": "hdfs"}


@pytest.fixture
def proxy(server: Server) -> Iterator[S3Proxy]:
    with running_s3_proxy(server) as running:
        yield running


@pytest.fixture
def location(server: Server) -> str:
    return server.new_url()


@pytest.fixture
def direct(server: Server, location: str) -> Warehouse:
    return Warehouse(location, server.settings)


@pytest.fixture
def through(proxy: S3Proxy, server: Server, location: str) -> Callable[..., Table]:
    """Gives the table of another process, which reaches the store through the proxy."""

    def table(**more: str) -> Table:
        return Warehouse(location, {**server.settings_at(proxy.port), **more}).table("t")

    return table


def limit(per_second: int) -> Plan:
    """Let so many requests through, in bursts of a second's worth at most; others are told to slow down."""
    left, at = float(per_second), time.monotonic()

    def plan(_: Request) -> Fault | None:
        nonlocal left, at
        now = time.monotonic()
        left, at = min(per_second, left + (now - at) * per_second), now
        if left < 1:
            return Fault.SLOW_DOWN
        left -= 1
        return None

    return plan


def storms(calm_seconds: float, storm_seconds: float) -> Plan:
    """Answer nothing but 503 again and again for a while."""
    began = time.monotonic()
    whole = calm_seconds + storm_seconds
    return lambda _: Fault.SLOW_DOWN if (time.monotonic() - began) % whole > calm_seconds else None


def write(through: Callable[..., Table], until: Callable[[int], bool]) -> tuple[set[int], set[int]]:
    """Let writers append, each until its number of batches is enough; returns acknowledged and unclear ids."""
    acknowledged: set[int] = set()
    unclear: set[int] = set()

    def one(writer: int) -> None:
        table, batch = through(), 0
        while not until(batch):
            batch += 1
            number = writer * 10_000 + batch
            (acknowledged if stored(lambda: table.append([{"id": number}])) else unclear).add(number)  # noqa: B023

    with ThreadPoolExecutor(WRITERS) as pool:
        for _ in pool.map(one, range(1, WRITERS + 1)):
            pass
    return acknowledged, unclear


def test_eight_writers_share_a_store_that_limits_requests(proxy, direct, through):
    direct.create_table("t", "id BIGINT", buckets=2, properties={**PLAIN, "bucket.key": "id"})
    proxy.plan = limit(per_second=30)
    acknowledged, unclear = write(through, until=lambda batch: batch == 4)
    log = proxy.log
    refused = sum(fault is not None for _, fault in log)
    print(f"{len(acknowledged)} acknowledged, {len(unclear)} unclear, {len(log)} requests, {refused} refused")  # noqa: T201
    assert refused > WRITERS, "the limit was met"
    assert refused < 3 * (len(log) - refused), "writers wait, longer each time"
    assert len(acknowledged) > 3 * len(unclear)
    proxy.plan = nothing
    check(direct.table("t"), acknowledged, unclear)


def test_storms_of_503_while_rows_are_written_and_tiered(proxy, direct, through):
    table = direct.create_table("t", "id BIGINT", buckets=2, properties={"bucket.key": "id"})
    proxy.plan = storms(calm_seconds=3, storm_seconds=3)
    end = time.monotonic() + 25
    done = threading.Event()
    rounds = 0

    def tier_on() -> None:
        nonlocal rounds
        tiered = through()
        while not done.is_set():
            rounds += stored(lambda: tier(tiered))

    tiering = threading.Thread(target=tier_on)
    tiering.start()
    try:
        acknowledged, unclear = write(through, until=lambda _: time.monotonic() > end)
    finally:
        done.set()
        tiering.join()
    print(f"{len(acknowledged)} acknowledged, {len(unclear)} unclear, {rounds} rounds, {proxy.faults_fired} faults")  # noqa: T201
    assert proxy.faults_fired > WRITERS
    assert unclear == set(), "each storm is shorter than the patience"
    assert len(acknowledged) >= WRITERS
    proxy.plan = nothing
    tier(table)
    for found in (table.to_arrow(), table.lake.to_arrow()):
        assert sorted(found["id"].to_pylist()) == sorted(acknowledged)


def test_half_a_minute_of_503_is_waited_for(proxy, direct, through):
    direct.create_table("t", "id BIGINT")
    table = through()
    proxy.plan = always(Fault.SLOW_DOWN)
    back = threading.Timer(30, lambda: setattr(proxy, "plan", nothing))
    back.start()
    began = time.monotonic()
    assert stored(lambda: table.append([{"id": 0}]))
    back.join()
    assert time.monotonic() - began > 25
    check(direct.table("t"), {0}, set())


def test_a_store_that_goes_away_for_a_minute(proxy, direct, through, location):
    """It does not answer at first, and then takes no connection. Who asked for patience waits until it is back, with a
    read and a write; who did not is told in bounded time. Nothing is lost.
    """
    direct.create_table("t", "id BIGINT", buckets=1).append([{"id": 0}])
    acknowledged, unclear = {0}, set[int]()
    timeout = {f"{_PREFIXES[urlsplit(location).scheme]}.request-timeout": str(ANSWER_SECONDS)}
    plain = through(**timeout)
    patient, reading = (through(**timeout, **{PATIENCE_SETTING: "240"}) for _ in range(2))
    began = time.monotonic()

    def away(_: Request) -> Fault | None:
        seconds = time.monotonic() - began
        return None if seconds > AWAY_SECONDS else Fault.HANG if seconds < AWAY_SECONDS / 2 else Fault.DROP_BEFORE

    proxy.plan = away
    with ThreadPoolExecutor(2) as pool:
        written = pool.submit(patient.append, [{"id": 1}])
        read = pool.submit(reading.to_arrow)
        number, slowest = 1, 0.0
        while time.monotonic() - began < AWAY_SECONDS - 5:
            number += 1
            for act in (lambda: plain.append([{"id": number}]), plain.to_arrow):  # noqa: B023
                asked = time.monotonic()
                assert not stored(act) or time.monotonic() - began > AWAY_SECONDS
                slowest = max(slowest, time.monotonic() - asked)
            unclear.add(number)
        print(f"the slowest of {2 * (number - 1)} errors took {slowest:.1f} s")  # noqa: T201
        assert slowest < BOUND_SECONDS
        written.result(timeout=240)
        assert 0 in read.result(timeout=240)["id"].to_pylist()
    assert time.monotonic() - began > AWAY_SECONDS
    acknowledged.add(1)
    assert stored(lambda: plain.append([{"id": number + 1}])), "the same process goes on"
    check(direct.table("t"), acknowledged | {number + 1}, unclear)
